package broker

import (
	"context"

	"github.com/agenthandoff/handoff/protocol"
)

// traceKey is under which a context carries a trace.
type traceKey struct{}

// WithTrace says which span what is done under the context follows from: a
// handoff that is submitted there, and has no trace of its own, is in that trace,
// and the engine's messages name it. A worker's handler has it of its work. One
// that breaks the rules is none.
func WithTrace(ctx context.Context, t protocol.TraceContext) context.Context {
	if t.Validate() != nil {
		t = protocol.TraceContext{}
	}
	return context.WithValue(ctx, traceKey{}, t)
}

// TraceFrom is the span of WithTrace; zero is none.
func TraceFrom(ctx context.Context) protocol.TraceContext {
	t, _ := ctx.Value(traceKey{}).(protocol.TraceContext)
	return t
}

// withHandoffTrace lets the engine's messages about a handoff name it, where it is in a
// trace that another program knows of. Any other costs nothing.
func withHandoffTrace(ctx context.Context, s *protocol.State) context.Context {
	if s.Trace == nil {
		return ctx
	}
	return WithTrace(ctx, s.TraceAt(protocol.SpanHandoff, 0))
}

// summaryTrace is the trace that a summary says: given, or of the context.
func summaryTrace(ctx context.Context, given *protocol.TraceContext) *protocol.TraceContext {
	if given == nil {
		return nilIfZero(TraceFrom(ctx))
	}
	return given
}

// nilIfZero is how a summary has a trace.
func nilIfZero(t protocol.TraceContext) *protocol.TraceContext {
	if t.IsZero() {
		return nil
	}
	own := t // so that none allocates nothing
	return &own
}

// childSpan is the span that a child's package names, or a span inside of the work
// under which it is handed off; nil is the work itself, which goes without saying.
func childSpan(ctx context.Context, parent protocol.State, given *protocol.TraceContext) *protocol.TraceContext {
	if t := summaryTrace(ctx, given); t != nil && t.SpanID() != parent.SpanID(protocol.SpanWork, parent.Fence) {
		return t
	}
	return nil
}
