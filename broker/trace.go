package broker

import (
	"context"

	"github.com/agenthandoff/handoff/protocol"
)

// traceKey is the context key of a trace.
type traceKey struct{}

// WithTrace sets the span that operations under the context follow from: a handoff submitted there
// without its own trace joins that trace, and the engine's messages name it. A worker's handler
// gets the trace of its work. An invalid trace counts as none.
func WithTrace(ctx context.Context, t protocol.TraceContext) context.Context {
	if t.Validate() != nil {
		t = protocol.TraceContext{}
	}
	return context.WithValue(ctx, traceKey{}, t)
}

// TraceFrom returns the span of WithTrace; zero is none.
func TraceFrom(ctx context.Context) protocol.TraceContext {
	t, _ := ctx.Value(traceKey{}).(protocol.TraceContext)
	return t
}

// withHandoffTrace makes the engine's messages about a handoff name its trace, if another program
// knows that trace. Otherwise it costs nothing.
func withHandoffTrace(ctx context.Context, s *protocol.State) context.Context {
	if s.Trace == nil {
		return ctx
	}
	return WithTrace(ctx, s.TraceAt(protocol.SpanHandoff, 0))
}

// summaryTrace returns the trace of a summary: given, or that of the context.
func summaryTrace(ctx context.Context, given *protocol.TraceContext) *protocol.TraceContext {
	if given == nil {
		return nilIfZero(TraceFrom(ctx))
	}
	return given
}

// nilIfZero converts a trace to the form in a summary.
func nilIfZero(t protocol.TraceContext) *protocol.TraceContext {
	if t.IsZero() {
		return nil
	}
	own := t // a copy, so that the zero case allocates nothing
	return &own
}

// childSpan returns the span that a child's package names, or a span inside of the work that hands
// it off; nil is the work itself.
func childSpan(ctx context.Context, parent protocol.State, given *protocol.TraceContext) *protocol.TraceContext {
	if t := summaryTrace(ctx, given); t != nil && t.SpanID() != parent.SpanID(protocol.SpanWork, parent.Fence) {
		return t
	}
	return nil
}
