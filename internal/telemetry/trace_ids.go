package telemetry

import (
	"context"
	"encoding/hex"
	"math/rand/v2"

	"go.opentelemetry.io/otel/trace"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// The ids of spans, derived from the ledger, and the conversion from and to the trace context
// of OpenTelemetry.

// spanIDs are the ids of a span that is about to start.
type spanIDs struct {
	trace trace.TraceID
	span  trace.SpanID
	own   bool // the trace began with a handoff
}

func spanIDsOf(s protocol.State, kind protocol.Span, n uint64) spanIDs {
	return spanIDs{s.TraceID(), s.SpanID(kind, n), s.Trace == nil || s.Trace.Own}
}

type spanIDsKey struct{}

func contextWithSpanIDs(ctx context.Context, of spanIDs) context.Context {
	return context.WithValue(ctx, spanIDsKey{}, of)
}

// ledgerIDGenerator gives a span the ids in its context.
type ledgerIDGenerator struct{}

// NewIDs implements sdktrace.IDGenerator.
func (ledgerIDGenerator) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	of, ok := ctx.Value(spanIDsKey{}).(spanIDs)
	if !ok { // a span that this package did not start
		return trace.TraceID{15: 1}, trace.SpanID{7: byte(rand.IntN(255) + 1)}
	}
	return of.trace, of.span
}

// NewSpanID implements sdktrace.IDGenerator.
func (g ledgerIDGenerator) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	_, span := g.NewIDs(ctx)
	return span
}

// Extract returns a context in which OpenTelemetry starts spans as children of the handoff's work.
// ctx is the context of a worker's handler; any other is returned as it is.
//
//	func (a *agent) Handle(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
//		ctx, span := tracer.Start(telemetry.Extract(ctx), "read the change")
func Extract(ctx context.Context) context.Context {
	parent, ok := spanContext(broker.TraceFrom(ctx))
	if !ok {
		return ctx
	}
	return trace.ContextWithRemoteSpanContext(ctx, parent)
}

// Inject returns a context in which a submission or a hand-off continues the trace of the
// OpenTelemetry span in ctx. Without one, ctx is returned as it is.
//
//	head, err := b.Submit(telemetry.Inject(ctx), prepared)
func Inject(ctx context.Context) context.Context {
	span := trace.SpanContextFromContext(ctx)
	if !span.IsValid() {
		return ctx
	}
	flags := hex.EncodeToString([]byte{byte(span.TraceFlags())})
	t := protocol.TraceContext{Parent: "00-" + span.TraceID().String() + "-" + span.SpanID().String() + "-" + flags, State: span.TraceState().String()}
	return broker.WithTrace(ctx, t)
}

// spanContext converts a trace context to OpenTelemetry's type.
func spanContext(t protocol.TraceContext) (trace.SpanContext, bool) {
	if t.IsZero() || t.Validate() != nil {
		return trace.SpanContext{}, false
	}
	var flags trace.TraceFlags
	if t.Sampled() {
		flags = trace.FlagsSampled
	}
	state, _ := trace.ParseTraceState(t.State) // empty if it cannot be parsed
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: t.TraceID(), SpanID: t.SpanID(),
		TraceFlags: flags, TraceState: state, Remote: true}), true
}
