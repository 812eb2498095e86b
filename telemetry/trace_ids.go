package telemetry

import (
	"context"
	"encoding/hex"
	"math/rand/v2"

	"go.opentelemetry.io/otel/trace"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// Spans whose ids follow from the ledger, and the way between our traces and
// those of OpenTelemetry.

// ids are what a span that is about to begin is called.
type ids struct {
	trace trace.TraceID
	span  trace.SpanID
	own   bool // the trace began with a handoff
}

func idsOf(s protocol.State, kind protocol.Span, n uint64) ids {
	return ids{s.TraceID(), s.SpanID(kind, n), s.Trace == nil || s.Trace.Own}
}

type idsKey struct{}

func withIDs(ctx context.Context, of ids) context.Context {
	return context.WithValue(ctx, idsKey{}, of)
}

// fixedIDs gives a span the ids that its context says.
type fixedIDs struct{}

// NewIDs implements sdktrace.IDGenerator.
func (fixedIDs) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	of, ok := ctx.Value(idsKey{}).(ids)
	if !ok { // a span of another library: ours all have ids
		return trace.TraceID{15: 1}, trace.SpanID{7: byte(rand.IntN(255) + 1)}
	}
	return of.trace, of.span
}

// NewSpanID implements sdktrace.IDGenerator.
func (g fixedIDs) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	_, span := g.NewIDs(ctx)
	return span
}

// Context gives the context of a worker's handler to OpenTelemetry: spans that
// are begun under it are children of the work. Anything else stays as it is.
//
//	func (a *agent) Handle(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
//		ctx, span := tracer.Start(telemetry.Context(ctx), "read the change")
func Context(ctx context.Context) context.Context {
	parent, ok := spanContext(broker.TraceFrom(ctx))
	if !ok {
		return ctx
	}
	return trace.ContextWithRemoteSpanContext(ctx, parent)
}

// Carry is the other way: what is submitted or handed off under the context that
// it returns follows from the span of OpenTelemetry that ctx has, if it has one.
//
//	head, err := b.Submit(telemetry.Carry(ctx), prepared)
func Carry(ctx context.Context) context.Context {
	span := trace.SpanContextFromContext(ctx)
	if !span.IsValid() {
		return ctx
	}
	flags := hex.EncodeToString([]byte{byte(span.TraceFlags())})
	t := protocol.TraceContext{Parent: "00-" + span.TraceID().String() + "-" + span.SpanID().String() + "-" + flags, State: span.TraceState().String()}
	return broker.WithTrace(ctx, t)
}

// spanContext is one of ours as OpenTelemetry has it.
func spanContext(t protocol.TraceContext) (trace.SpanContext, bool) {
	if t.IsZero() || t.Validate() != nil {
		return trace.SpanContext{}, false
	}
	var flags trace.TraceFlags
	if t.Sampled() {
		flags = trace.FlagsSampled
	}
	state, _ := trace.ParseTraceState(t.State) // one that it cannot read is left out
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: t.TraceID(), SpanID: t.SpanID(),
		TraceFlags: flags, TraceState: state, Remote: true}), true
}
