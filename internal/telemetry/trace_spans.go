package telemetry

import (
	"cmp"
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// Appended implements broker.Observer. It exports the spans that an append has ended.
func (t *Traces) Appended(_ context.Context, before protocol.State, after broker.Head, events []protocol.Event) {
	if t == nil || len(events) == 0 {
		return
	}
	if spans := t.endedSpans(before, after, events); len(spans) > 0 {
		t.export(after.State, spans)
	}
}

// Conflicted implements broker.Observer. A conflict ends no span.
func (t *Traces) Conflicted(context.Context, string) {}

// endedSpan is a span that an append has ended.
type endedSpan struct {
	kind       protocol.Span
	n          uint64
	name       string
	start, end time.Time
	failed     string // a code; "" is no failure
	attributes []attribute.KeyValue
	events     []spanEvent
}

type spanEvent struct {
	name       string
	at         time.Time
	attributes []attribute.KeyValue
}

// openStage is the stage that an open handoff is in: queue, acknowledge, work or wait. A group has
// none, its members have.
type openStage struct {
	kind  protocol.Span
	n     uint64
	since time.Time
}

func openStageOf(s protocol.State) openStage {
	if s.Aggregate != nil {
		return openStage{}
	}
	switch lifecycle.StageOf(s) {
	case lifecycle.StageNone:
		return openStage{}
	case lifecycle.StageWork:
		return openStage{protocol.SpanWork, s.Fence, s.AcceptedAt}
	case lifecycle.StageAcknowledge:
		return openStage{protocol.SpanAcknowledge, s.Offer, s.ClaimedAt}
	case lifecycle.StageQueue:
		if s.Offer != 0 && s.AcceptedAt.IsZero() && s.ClaimedAt.IsZero() {
			return openStage{protocol.SpanQueue, s.Offer, s.OfferedAt}
		}
	case lifecycle.StageAnswers, lifecycle.StageDeferred, lifecycle.StageChildren:
		return openStage{protocol.SpanWait, 0, s.ConditionedAt}
	}
	return openStage{protocol.SpanWait, 0, s.UpdatedAt}
}

// endedSpans returns the spans that an append has ended.
func (t *Traces) endedSpans(before protocol.State, after broker.Head, events []protocol.Event) []endedSpan {
	s, at := after.State, events[0].When()
	var spans []endedSpan
	if before.Ticket == "" {
		spans = append(spans, endedSpan{kind: protocol.SpanSubmit, name: s.TargetWords(), start: at, end: laterTime(at, t.now()),
			attributes: queueAttributes(s.Agent, "send")})
	}
	old, current := openStageOf(before), openStageOf(s)
	if old.kind != "" && (old.kind != current.kind || old.n != current.n) {
		spans = append(spans, stageSpan(old, before, after, events))
	}
	if ack, answered := acknowledgeSpan(before, after, events, t.now()); answered && old.kind != protocol.SpanAcknowledge {
		spans = append(spans, ack)
	}
	if s.Closed && !before.Closed {
		whole := endedSpan{kind: protocol.SpanHandoff, name: s.TargetWords(), start: s.SubmittedAt, end: laterTime(s.SubmittedAt, s.ClosedAt),
			attributes: outcomeAttributes(s), events: spanEvents(events)}
		switch s.Outcome {
		case protocol.OutcomeFailed, protocol.OutcomeTimeout, protocol.OutcomeRejected:
			whole.failed = cmp.Or(s.Reason, string(s.Outcome))
		}
		if s.CancelRequested {
			whole.events = append(whole.events, spanEvent{name: string(protocol.EventCancelRequested), at: s.CancelRequestedAt})
		}
		spans = append(spans, whole)
	}
	for _, e := range events {
		if returned, ok := e.(*protocol.Returned); ok {
			spans = append(spans, returnSpan(s, *returned))
		}
	}
	return spans
}

// stageSpan is the span of a stage that has ended.
func stageSpan(stage openStage, before protocol.State, after broker.Head, events []protocol.Event) endedSpan {
	end := laterTime(stage.since, events[0].When())
	ended := endedSpan{kind: stage.kind, n: stage.n, name: before.Agent, start: stage.since, end: end, failed: failureCode(events), events: spanEvents(events)}
	switch stage.kind {
	case protocol.SpanQueue:
		ended.attributes = queueAttributes(before.Agent, "")
	case protocol.SpanAcknowledge:
		ended.n = after.Seq // an offer may be claimed several times
		ended.attributes = queueAttributes(before.Agent, "settle")
		if ack, answered := acknowledgeSpan(before, after, events, end); answered {
			ended.attributes = ack.attributes
		}
	case protocol.SpanWork:
		ended.attributes = append(queueAttributes(before.Agent, "process"), attribute.Int("handoff.attempt", before.Attempt),
			attribute.Int("handoff.attempts_total", before.AttemptsTotal), attribute.String("handoff.holder", before.Holder),
			attribute.Int64("handoff.fence", int64(before.Fence)))
		ended.events = append(workEvents(before), ended.events...)
	case protocol.SpanWait:
		ended.n = after.Seq
		ended.attributes = append(queueAttributes(before.Agent, ""), attribute.String("handoff.phase", string(before.Phase)))
		if before.Reason != "" {
			ended.attributes = append(ended.attributes, attribute.String("handoff.reason", before.Reason))
		}
	}
	return ended
}

// acknowledgeSpan is the span of the acknowledgement in an append, if there is one. If the worker
// had not claimed the offer before, the span is as long as the append.
func acknowledgeSpan(before protocol.State, after broker.Head, events []protocol.Event, now time.Time) (endedSpan, bool) {
	for _, e := range events {
		answer := endedSpan{kind: protocol.SpanAcknowledge, n: after.Seq, start: e.When(), end: laterTime(e.When(), now), attributes: queueAttributes(before.Agent, "settle")}
		status, reason := protocol.AckAccepted, ""
		switch e := e.(type) {
		case *protocol.Accepted:
			answer.name = e.Agent
		case *protocol.Rejected:
			answer.name, status, reason = e.Agent, protocol.AckRejected, e.ReasonCode
		case *protocol.Conditioned:
			answer.name, status = e.Agent, protocol.AckConditional
		default:
			continue
		}
		if before.Fence != 0 && status != protocol.AckAccepted { // an acceptance that is withdrawn
			return endedSpan{}, false
		}
		answer.attributes = append(answer.attributes, attribute.String("handoff.acknowledgement", string(status)))
		if reason != "" {
			answer.attributes = append(answer.attributes, attribute.String("handoff.reason", reason))
		}
		return answer, true
	}
	return endedSpan{}, false
}

// returnSpan is the span from the end of a handoff to the return to its source.
func returnSpan(s protocol.State, e protocol.Returned) endedSpan {
	ret := endedSpan{kind: protocol.SpanReturn, name: s.Source, start: s.ClosedAt, end: laterTime(s.ClosedAt, e.When()), attributes: queueAttributes(s.Source, "send")}
	if s.ReturnTicket != "" {
		ret.attributes = append(ret.attributes, attribute.String("handoff.return_ticket", s.ReturnTicket))
	}
	if !e.Delivered {
		ret.failed = "not_delivered"
	}
	return ret
}

// workEvents are the start, the last progress and the last reminder of the work.
func workEvents(s protocol.State) []spanEvent {
	var all []spanEvent
	if !s.StartedAt.IsZero() {
		all = append(all, spanEvent{name: string(protocol.EventStarted), at: s.StartedAt})
	}
	if !s.ProgressAt.IsZero() && s.Progress != nil {
		all = append(all, spanEvent{name: string(protocol.EventProgressed), at: s.ProgressAt,
			attributes: []attribute.KeyValue{attribute.Float64("handoff.percent", float64(s.Progress.Percent))}})
	}
	if !s.RemindedAt.IsZero() {
		all = append(all, spanEvent{name: string(protocol.EventReminded), at: s.RemindedAt})
	}
	return all
}

// spanEvents converts the events of an append: their names, instants and children.
func spanEvents(events []protocol.Event) []spanEvent {
	all := make([]spanEvent, len(events))
	for i, e := range events {
		all[i] = spanEvent{name: string(e.EventType()), at: e.When()}
		if child, ok := e.(*protocol.HandedOff); ok {
			all[i].attributes = []attribute.KeyValue{attribute.String("handoff.child", child.Ticket)}
		}
	}
	return all
}

// export passes spans of a handoff to the exporter, if its trace is sampled.
func (t *Traces) export(s protocol.State, spans []endedSpan) {
	handoffContext, handoffSpan := t.startHandoffSpan(s)
	if !handoffSpan.SpanContext().IsSampled() {
		return
	}
	shared := handoffAttributes(s)
	for _, ended := range spans {
		kind := map[protocol.Span]trace.SpanKind{protocol.SpanSubmit: trace.SpanKindProducer, protocol.SpanReturn: trace.SpanKindProducer,
			protocol.SpanWork: trace.SpanKindConsumer, protocol.SpanAcknowledge: trace.SpanKindClient}[ended.kind]
		parent := handoffContext
		if ended.kind == protocol.SpanHandoff {
			parent = t.parentContext(s)
		}
		parent = contextWithSpanIDs(parent, spanIDsOf(s, ended.kind, ended.n))
		_, out := t.tracer.Start(parent, string(ended.kind)+" "+ended.name, trace.WithTimestamp(ended.start), trace.WithSpanKind(kind),
			trace.WithAttributes(shared...), trace.WithAttributes(ended.attributes...),
			trace.WithAttributes(attribute.String("messaging.operation.name", string(ended.kind))))
		for _, e := range ended.events {
			out.AddEvent(e.name, trace.WithTimestamp(e.at), trace.WithAttributes(e.attributes...))
		}
		if ended.failed != "" {
			out.SetStatus(codes.Error, ended.failed)
		}
		out.End(trace.WithTimestamp(ended.end))
	}
}

// startHandoffSpan starts the span that is the parent of all others of a handoff, to learn whether
// its trace is sampled. Only the process that closes the handoff exports it.
func (t *Traces) startHandoffSpan(s protocol.State) (context.Context, trace.Span) {
	return t.tracer.Start(contextWithSpanIDs(t.parentContext(s), spanIDsOf(s, protocol.SpanHandoff, 0)), string(protocol.SpanHandoff))
}

// parentContext is the context that a handoff's own span starts in: that of its parent span. If
// the trace began with a handoff, this sampler decides by the trace's id, so that every process
// decides alike.
func (t *Traces) parentContext(s protocol.State) context.Context {
	ctx := context.Background()
	if s.Trace == nil {
		return ctx
	}
	of := *s.Trace
	if of.Own {
		_, probe := t.tracer.Start(contextWithSpanIDs(ctx, spanIDsOf(s, protocol.SpanHandoff, 0)), string(protocol.SpanHandoff))
		of = of.WithSampled(probe.SpanContext().IsSampled())
	}
	if parent, ok := spanContext(of); ok {
		return trace.ContextWithRemoteSpanContext(ctx, parent)
	}
	return ctx
}

// WorkContext is the trace context of a handoff's work, for the program that does it. Its sampled
// flag is the sampler's decision, or the ledger's if t is nil.
func (t *Traces) WorkContext(s protocol.State) protocol.TraceContext {
	of := s.WorkTrace()
	if t == nil || !of.Own {
		return of
	}
	_, handoffSpan := t.startHandoffSpan(s)
	return of.WithSampled(handoffSpan.SpanContext().IsSampled())
}
