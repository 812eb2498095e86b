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

// Appended implements broker.Observer: what an append has ended is emitted.
func (t *Traces) Appended(_ context.Context, before protocol.State, after broker.Head, events []protocol.Event) {
	if t == nil || len(events) == 0 {
		return
	}
	if spans := t.ended(before, after, events); len(spans) > 0 {
		t.emit(after.State, spans)
	}
}

// Conflicted implements broker.Observer. Nothing was written, and nothing ended.
func (t *Traces) Conflicted(context.Context, string) {}

// span is one that has ended.
type span struct {
	kind       protocol.Span
	n          uint64
	name       string
	start, end time.Time
	failed     string // the reason, as a code; "" is no failure
	attributes []attribute.KeyValue
	events     []spanEvent
}

type spanEvent struct {
	name       string
	at         time.Time
	attributes []attribute.KeyValue
}

// stage is what a handoff is in, at every moment from its submission to its end:
// queue, acknowledge, work or wait. A group has none: its members do.
type stage struct {
	kind  protocol.Span
	n     uint64
	since time.Time
}

func stageOf(s protocol.State) stage {
	if s.Aggregate != nil {
		return stage{}
	}
	switch lifecycle.StageOf(s) {
	case lifecycle.StageNone:
		return stage{}
	case lifecycle.StageWork:
		return stage{protocol.SpanWork, s.Fence, s.AcceptedAt}
	case lifecycle.StageAcknowledge:
		return stage{protocol.SpanAcknowledge, s.Offer, s.ClaimedAt}
	case lifecycle.StageQueue:
		if s.Offer != 0 && s.AcceptedAt.IsZero() && s.ClaimedAt.IsZero() {
			return stage{protocol.SpanQueue, s.Offer, s.OfferedAt}
		}
	case lifecycle.StageAnswers, lifecycle.StageDeferred, lifecycle.StageChildren:
		return stage{protocol.SpanWait, 0, s.ConditionedAt}
	}
	return stage{protocol.SpanWait, 0, s.UpdatedAt}
}

// ended are the spans that an append has ended.
func (t *Traces) ended(before protocol.State, after broker.Head, events []protocol.Event) []span {
	s, at := after.State, events[0].When()
	var spans []span
	if before.Ticket == "" {
		spans = append(spans, span{kind: protocol.SpanSubmit, name: s.TargetWords(), start: at, end: later(at, t.now()),
			attributes: addressed(s.Agent, "send")})
	}
	was, is := stageOf(before), stageOf(s)
	if was.kind != "" && (was.kind != is.kind || was.n != is.n) {
		spans = append(spans, ofStage(was, before, after, events))
	}
	if ack, answered := acknowledged(before, after, events, t.now()); answered && was.kind != protocol.SpanAcknowledge {
		spans = append(spans, ack)
	}
	if s.Closed && !before.Closed {
		whole := span{kind: protocol.SpanHandoff, name: s.TargetWords(), start: s.SubmittedAt, end: later(s.SubmittedAt, s.ClosedAt),
			attributes: summed(s), events: told(events)}
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
			spans = append(spans, ofReturn(s, *returned))
		}
	}
	return spans
}

// ofStage is the span of a stage that has ended.
func ofStage(was stage, before protocol.State, after broker.Head, events []protocol.Event) span {
	end := later(was.since, events[0].When())
	ended := span{kind: was.kind, n: was.n, name: before.Agent, start: was.since, end: end, failed: failureOf(events), events: told(events)}
	switch was.kind {
	case protocol.SpanQueue:
		ended.attributes = addressed(before.Agent, "")
	case protocol.SpanAcknowledge:
		ended.n = after.Seq // one offer may be claimed again and again
		ended.attributes = addressed(before.Agent, "settle")
		if ack, answered := acknowledged(before, after, events, end); answered {
			ended.attributes = ack.attributes
		}
	case protocol.SpanWork:
		ended.attributes = append(addressed(before.Agent, "process"), attribute.Int("handoff.attempt", before.Attempt),
			attribute.Int("handoff.attempts_total", before.AttemptsTotal), attribute.String("handoff.holder", before.Holder),
			attribute.Int64("handoff.fence", int64(before.Fence)))
		ended.events = append(during(before), ended.events...)
	case protocol.SpanWait:
		ended.n = after.Seq
		ended.attributes = append(addressed(before.Agent, ""), attribute.String("handoff.phase", string(before.Phase)))
		if before.Reason != "" {
			ended.attributes = append(ended.attributes, attribute.String("handoff.reason", before.Reason))
		}
	}
	return ended
}

// acknowledged is the answer to an offer in an append. Where the worker that
// answers had not claimed it before, it took as long as the append.
func acknowledged(before protocol.State, after broker.Head, events []protocol.Event, now time.Time) (span, bool) {
	for _, e := range events {
		answer := span{kind: protocol.SpanAcknowledge, n: after.Seq, start: e.When(), end: later(e.When(), now), attributes: addressed(before.Agent, "settle")}
		as, reason := protocol.AckAccepted, ""
		switch e := e.(type) {
		case *protocol.Accepted:
			answer.name = e.Agent
		case *protocol.Rejected:
			answer.name, as, reason = e.Agent, protocol.AckRejected, e.ReasonCode
		case *protocol.Conditioned:
			answer.name, as = e.Agent, protocol.AckConditional
		default:
			continue
		}
		if before.Fence != 0 && as != protocol.AckAccepted { // an acceptance that is taken back
			return span{}, false
		}
		answer.attributes = append(answer.attributes, attribute.String("handoff.acknowledgement", string(as)))
		if reason != "" {
			answer.attributes = append(answer.attributes, attribute.String("handoff.reason", reason))
		}
		return answer, true
	}
	return span{}, false
}

// ofReturn is the way of an end back to the source.
func ofReturn(s protocol.State, e protocol.Returned) span {
	ret := span{kind: protocol.SpanReturn, name: s.Source, start: s.ClosedAt, end: later(s.ClosedAt, e.When()), attributes: addressed(s.Source, "send")}
	if s.ReturnTicket != "" {
		ret.attributes = append(ret.attributes, attribute.String("handoff.return_ticket", s.ReturnTicket))
	}
	if !e.Delivered {
		ret.failed = "not_delivered"
	}
	return ret
}

// during are the signs of life of the work, as far as the state knows them.
func during(s protocol.State) []spanEvent {
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

// told are the events of an append as those of a span: their names and instants,
// and what they hand off.
func told(events []protocol.Event) []spanEvent {
	all := make([]spanEvent, len(events))
	for i, e := range events {
		all[i] = spanEvent{name: string(e.EventType()), at: e.When()}
		if child, ok := e.(*protocol.HandedOff); ok {
			all[i].attributes = []attribute.KeyValue{attribute.String("handoff.child", child.Ticket)}
		}
	}
	return all
}

// emit exports spans of a handoff, if its trace is sampled.
func (t *Traces) emit(s protocol.State, spans []span) {
	within, whole := t.whole(s)
	if !whole.SpanContext().IsSampled() {
		return
	}
	common := about(s)
	for _, ended := range spans {
		kind := map[protocol.Span]trace.SpanKind{protocol.SpanSubmit: trace.SpanKindProducer, protocol.SpanReturn: trace.SpanKindProducer,
			protocol.SpanWork: trace.SpanKindConsumer, protocol.SpanAcknowledge: trace.SpanKindClient}[ended.kind]
		parent := within
		if ended.kind == protocol.SpanHandoff {
			parent = t.above(s)
		}
		parent = withIDs(parent, idsOf(s, ended.kind, ended.n))
		_, out := t.tracer.Start(parent, string(ended.kind)+" "+ended.name, trace.WithTimestamp(ended.start), trace.WithSpanKind(kind),
			trace.WithAttributes(common...), trace.WithAttributes(ended.attributes...),
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

// whole begins the span that is the parent of all others of a handoff. The process that
// closes the handoff ends it: here it tells whether the trace is sampled.
func (t *Traces) whole(s protocol.State) (context.Context, trace.Span) {
	return t.tracer.Start(withIDs(t.above(s), idsOf(s, protocol.SpanHandoff, 0)), string(protocol.SpanHandoff))
}

// above is the context that a handoff's own span begins in: that of the span it
// follows from. Where no process has decided whether the trace is sampled, our sampler
// does, by the trace's id: every process decides alike.
func (t *Traces) above(s protocol.State) context.Context {
	ctx := context.Background()
	if s.Trace == nil {
		return ctx
	}
	of := *s.Trace
	if of.Own {
		_, probe := t.tracer.Start(withIDs(ctx, idsOf(s, protocol.SpanHandoff, 0)), string(protocol.SpanHandoff))
		of = of.WithSampled(probe.SpanContext().IsSampled())
	}
	if parent, ok := spanContext(of); ok {
		return trace.ContextWithRemoteSpanContext(ctx, parent)
	}
	return ctx
}

// Work is the context of a handoff's work, for its program: with the flag that
// says whether its spans are exported. A nil t says what the ledger says.
func (t *Traces) Work(s protocol.State) protocol.TraceContext {
	of := s.WorkTrace()
	if t == nil || !of.Own {
		return of
	}
	_, whole := t.whole(s)
	return of.WithSampled(whole.SpanContext().IsSampled())
}
