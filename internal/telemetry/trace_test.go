package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// traced is an engine in memory and a broker over it whose spans are recorded.
type traced struct {
	*testing.T
	engine broker.Engine
	b      *broker.Broker
	traces *Traces
	kept   *tracetest.InMemoryExporter
}

func newTraced(t *testing.T, sampler sdk.Sampler) *traced {
	t.Helper()
	w := &traced{T: t, engine: brokertest.NewMemory(), kept: tracetest.NewInMemoryExporter()}
	w.traces = newTraces(sampler, sdk.WithSyncer(w.kept))
	t.Cleanup(w.traces.Stop)
	var err error
	w.b, err = broker.New(w.engine, broker.Config{Observer: w.traces.Observer()})
	w.must(err)
	brokertest.Register(t, w.b, "lead", "coder", "tester")
	return w
}

func (w *traced) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *traced) submit(pkg protocol.Package) broker.Head {
	w.Helper()
	return brokertest.Submit(w, w.b, pkg)
}

func (w *traced) offer(agent string) (*broker.Offer, protocol.Holder) {
	w.Helper()
	holder := brokertest.PutHolder(w, w.b, agent, time.Minute)
	return brokertest.Offer(w, w.b, agent), holder
}

func (w *traced) accept(agent string) *broker.Claim {
	w.Helper()
	offer, holder := w.offer(agent)
	claim, err := offer.Acknowledge(w.Context(), holder, protocol.Ack{Status: protocol.AckAccepted}, true)
	w.must(err)
	return claim
}

// decide does what a supervisor does when the handoff's next timer fires.
func (w *traced) decide(ticket string) broker.Head {
	w.Helper()
	head, _, err := brokertest.Update(w.Context(), w.b, ticket, func(h broker.Head, q lifecycle.Query) (lifecycle.Step, error) {
		return lifecycle.Decide(h.State, q.Directory.At(q.Now.Add(time.Hour)))
	})
	w.must(err)
	return head
}

// spans are the recorded spans of a handoff by name.
func (w *traced) spans(ticket string) map[string]tracetest.SpanStub {
	w.Helper()
	all := map[string]tracetest.SpanStub{}
	for _, s := range w.kept.GetSpans() {
		if attributeOf(s, "handoff.ticket") != ticket {
			continue
		}
		name := s.Name
		for n := 2; all[name].Name != ""; n++ {
			name = fmt.Sprintf("%s %d", s.Name, n)
		}
		all[name] = s
		if s.EndTime.Before(s.StartTime) {
			w.Errorf("%s ends before it begins", s.Name)
		}
	}
	return all
}

func attributeOf(s tracetest.SpanStub, name string) string {
	for _, a := range s.Attributes {
		if string(a.Key) == name {
			return a.Value.String()
		}
	}
	return ""
}

func names(spans map[string]tracetest.SpanStub) string {
	return strings.Join(slices.Sorted(maps.Keys(spans)), ", ")
}

// TestSpansOfARelay checks that every stage of a handoff is a span, that a child follows from the
// work that handed it off, and a return from the end.
func TestSpansOfARelay(t *testing.T) {
	w := newTraced(t, sdk.ParentBased(sdk.AlwaysSample()))
	head := w.submit(protocol.Package{Source: "lead", Target: protocol.Target{Agent: "coder"}, Type: protocol.Delegation,
		Return: &protocol.ReturnProtocol{Expected: true, TimeoutMS: 60_000}})
	claim := w.accept("coder")
	fence := claim.Fence()
	w.must(claim.Progress(t.Context(), protocol.Progress{Percent: 40, Message: "a word of the agent's own"}))
	w.must(claim.Complete(t.Context(), protocol.Result{Usage: &protocol.Usage{Tokens: 7}}, broker.Child{Package: protocol.Package{
		Reason: "next", Target: protocol.Target{Agent: "tester"}, Task: protocol.Task{Description: "test it"}}}))
	ended := w.head(head.Ticket)
	w.must(w.b.EnsureReturn(t.Context(), ended))
	back := w.accept("lead")
	w.must(back.Complete(t.Context(), protocol.Result{}))
	w.must(w.b.EnsureReturn(t.Context(), ended))

	spans := w.spans(head.Ticket)
	if got := names(spans); got != "acknowledge coder, handoff coder, queue coder, return lead, submit coder, work coder" {
		t.Fatalf("the spans are %s", got)
	}
	whole, work := spans["handoff coder"], spans["work coder"]
	trace := trace.TraceID(ended.State.TraceID())
	for name, s := range spans {
		if s.SpanContext.TraceID() != trace {
			t.Errorf("%s is in the trace %s, want %s", name, s.SpanContext.TraceID(), trace)
		}
		if name != "handoff coder" && s.Parent.SpanID() != whole.SpanContext.SpanID() {
			t.Errorf("%s has the parent %s", name, s.Parent.SpanID())
		}
	}
	if whole.Parent.IsValid() || work.SpanContext.SpanID() != ended.State.SpanID(protocol.SpanWork, fence) {
		t.Errorf("the whole has the parent %s, the work is %s", whole.Parent.SpanID(), work.SpanContext.SpanID())
	}
	if !whole.StartTime.Equal(ended.State.SubmittedAt) || !whole.EndTime.Equal(ended.State.ClosedAt) {
		t.Errorf("the whole goes from %s to %s, the handoff from %s to %s", whole.StartTime, whole.EndTime, ended.State.SubmittedAt, ended.State.ClosedAt)
	}
	for name, want := range map[string]string{"handoff.outcome": "success", "handoff.tokens": "7", "handoff.agent": "coder", "messaging.message.id": head.Ticket} {
		if got := attributeOf(whole, name); got != want {
			t.Errorf("%s of the whole is %q, want %q", name, got, want)
		}
	}
	if attributeOf(work, "handoff.attempt") != "1" || work.Status.Code != codes.Unset || work.SpanKind.String() != "consumer" {
		t.Errorf("the work: %+v", work)
	}
	for _, s := range w.kept.GetSpans() {
		if strings.Contains(fmt.Sprint(s), "a word of the agent's own") {
			t.Errorf("%s contains a text of the agent", s.Name)
		}
	}

	child := w.head(protocol.ChildTicketN(head.Ticket, 0))
	if got := w.spans(child.Ticket)["submit tester"]; got.Parent.SpanID() != child.State.SpanID(protocol.SpanHandoff, 0) {
		t.Errorf("the child's submission has the parent %s", got.Parent.SpanID())
	}
	ret := w.spans(ended.State.ReturnTicket)["handoff lead"]
	if ret.SpanContext.TraceID() != trace || ret.Parent.SpanID() != spans["return lead"].SpanContext.SpanID() || !ret.Parent.IsSampled() {
		t.Errorf("the return: %+v", ret.Parent)
	}
	w.must(w.accept("tester").Complete(t.Context(), protocol.Result{}))
	if got := w.spans(child.Ticket)["handoff tester"]; got.Parent.SpanID() != work.SpanContext.SpanID() || got.SpanContext.TraceID() != trace {
		t.Errorf("the child follows from %s, the work is %s", got.Parent.SpanID(), work.SpanContext.SpanID())
	}
}

func (w *traced) head(ticket string) broker.Head {
	w.Helper()
	head, err := w.b.Head(w.Context(), ticket, 0)
	w.must(err)
	return head
}

// TestSpansOfTrouble checks the spans of failures, rejections, questions and timeouts, and that
// the stages of a handoff do not overlap.
func TestSpansOfTrouble(t *testing.T) {
	w := newTraced(t, sdk.ParentBased(sdk.AlwaysSample()))
	head := w.submit(protocol.Package{Source: "lead", Target: protocol.Target{Agent: "coder"}})
	w.must(w.accept("coder").Fail(t.Context(), broker.Failure{Code: "exit_3", Message: "no", Retryable: true}))
	w.decide(head.Ticket) // retrying
	w.decide(head.Ticket) // offered again
	offer, holder := w.offer("coder")
	claim, err := offer.Claim(t.Context(), holder, 0)
	w.must(err)
	w.must(claim.Acknowledge(t.Context(), protocol.Ack{Status: protocol.AckConditional, NeedsContext: []string{"which branch?"}}, false))
	_, err = w.b.Answer(t.Context(), head.Ticket, protocol.Answer{By: "human", Question: 1, Text: "main"})
	w.must(err)
	offer, holder = w.offer("coder")
	_, err = offer.Acknowledge(t.Context(), holder, protocol.Ack{Status: protocol.AckRejected, ReasonCode: "unable", Reason: "no"}, false)
	w.must(err)
	_, err = w.b.Cancel(t.Context(), head.Ticket, "human", "")
	w.must(err)
	for range 3 { // until nothing is left to decide
		w.decide(head.Ticket)
	}

	spans := w.spans(head.Ticket)
	const want = "acknowledge coder, acknowledge coder 2, acknowledge coder 3, handoff coder, " +
		"queue coder, queue coder 2, queue coder 3, submit coder, wait coder, wait coder 2, wait coder 3, work coder"
	if got := names(spans); got != want {
		t.Fatalf("the spans are %s, want %s", got, want)
	}
	if s := spans["work coder"]; s.Status.Code != codes.Error || s.Status.Description != "exit_3" {
		t.Errorf("the failed work: %+v", s.Status)
	}
	acks := map[string]int{}
	var stages []tracetest.SpanStub
	unique := map[trace.SpanID]string{}
	for name, s := range spans {
		if other := unique[s.SpanContext.SpanID()]; other != "" {
			t.Errorf("%s and %s have the same id", name, other)
		}
		unique[s.SpanContext.SpanID()] = name
		switch kind, _, _ := strings.Cut(name, " "); kind {
		case "acknowledge":
			acks[attributeOf(s, "handoff.acknowledgement")]++
		case "queue", "work", "wait":
			stages = append(stages, s)
		}
	}
	if acks["accepted"] != 1 || acks["conditional"] != 1 || acks["rejected"] != 1 {
		t.Errorf("acknowledged as %v", acks)
	}
	slices.SortFunc(stages, func(a, b tracetest.SpanStub) int { return a.StartTime.Compare(b.StartTime) })
	for i := range stages[1:] {
		if stages[i+1].StartTime.Before(stages[i].EndTime) {
			t.Errorf("%s begins before %s has ended", stages[i+1].Name, stages[i].Name)
		}
	}
}

// TestSampling checks that the sampler decides by the trace's id, for the handoff and all that
// follows from it, unless another process has decided.
func TestSampling(t *testing.T) {
	relay := func(w *traced, traceparent string) (spans int, of protocol.TraceContext) {
		before := len(w.kept.GetSpans())
		w.submit(protocol.Package{Source: "lead", Target: protocol.Target{Agent: "coder"}, TraceParent: traceparent})
		claim := w.accept("coder")
		of = w.traces.WorkContext(claim.State())
		w.must(claim.Complete(t.Context(), protocol.Result{}, broker.Child{Package: protocol.Package{
			Reason: "next", Target: protocol.Target{Agent: "tester"}, Task: protocol.Task{Description: "test it"}}}))
		w.must(w.accept("tester").Complete(t.Context(), protocol.Result{}))
		return len(w.kept.GetSpans()) - before, of
	}
	half := sdk.TraceIDRatioBased(.5)
	for _, sampler := range []sdk.Sampler{half, sdk.ParentBased(half)} {
		w, seen := newTraced(t, sampler), map[int]int{}
		for range 40 {
			n, of := relay(w, "")
			if seen[n]++; of.Sampled() != (n > 0) {
				t.Errorf("the program has the sampled flag %t, and there are %d spans", of.Sampled(), n)
			}
		}
		if len(seen) != 2 || seen[0] == 0 || seen[10] == 0 { // all or none
			t.Errorf("%s: spans of a relay, and how often: %v", sampler.Description(), seen)
		}
	}
	w := newTraced(t, sdk.ParentBased(half))
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-"
	if n, of := relay(w, parent+"01"); n != 10 || !of.Sampled() {
		t.Errorf("a trace that is sampled: %d spans, %+v", n, of)
	}
	if n, of := relay(w, parent+"00"); n != 0 || of.Sampled() {
		t.Errorf("a trace that is not: %d spans, %+v", n, of)
	}
}

// TestNoTraces checks that nothing is traced without an endpoint.
func TestNoTraces(t *testing.T) {
	for _, env := range []map[string]string{
		{},
		{"OTEL_EXPORTER_OTLP_ENDPOINT": " "},
		{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318", "OTEL_SDK_DISABLED": "TRUE"},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://localhost:4318", "OTEL_TRACES_EXPORTER": "none"},
	} {
		none, err := StartTraces(t.Context(), TracesConfig{Env: func(name string) string { return env[name] }})
		if none != nil || err != nil || none.Observer() != nil {
			t.Errorf("%v: %v, %v", env, none, err)
		}
		none.Stop()
	}
	for want, env := range map[string]map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT":         {"OTEL_EXPORTER_OTLP_ENDPOINT": "localhost:4318"},
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT":  {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "ftp://localhost"},
		"OTEL_EXPORTER_OTLP_PROTOCOL":         {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
		"OTEL_TRACES_SAMPLER is":              {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost", "OTEL_TRACES_SAMPLER": "jaeger_remote"},
		"OTEL_TRACES_SAMPLER_ARG is \"10%\"":  {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost", "OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "10%"},
		"OTEL_TRACES_EXPORTER is \"console\"": {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost", "OTEL_TRACES_EXPORTER": "console"},
	} {
		if none, err := StartTraces(t.Context(), TracesConfig{Env: func(name string) string { return env[name] }}); err == nil || !strings.Contains(err.Error(), want) || none != nil {
			t.Errorf("%v: %v", env, err)
		}
	}
}

// TestFreeWhenOff checks that an append allocates nothing for tracing without an endpoint.
func TestFreeWhenOff(t *testing.T) {
	var none *Traces
	if MultiObserver(nil, none.Observer()) != nil {
		t.Error("a nil *Traces is an observer")
	}
	ctx, before, after := context.Background(), protocol.State{}, broker.Head{}
	if n := testing.AllocsPerRun(100, func() {
		none.Appended(ctx, before, after, nil)
		if !broker.TraceFrom(ctx).IsZero() {
			t.Error("an empty context has a trace")
		}
	}); n != 0 {
		t.Errorf("%v allocations an append", n)
	}
}

// TestUnreachableCollector checks that a collector that does not answer is logged once, and delays
// Stop no longer than its timeout.
func TestUnreachableCollector(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	var log strings.Builder
	traces, err := StartTraces(t.Context(), TracesConfig{Role: "test", ShortLived: true, Log: slog.New(slog.NewTextHandler(&log, nil)),
		Env: func(name string) string {
			return map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}[name]
		}})
	if err != nil {
		t.Fatal(err)
	}
	submitOne(t, traces)
	traces.Stop()
	if got := strings.Count(log.String(), "spans are not exported"); got != 1 {
		t.Errorf("the log says %q", log.String())
	}
}

// BenchmarkAppended measures the cost of a traced append.
func BenchmarkAppended(b *testing.B) {
	traces := newTraces(sdk.AlwaysSample(), sdk.WithBatcher(tracetest.NewNoopExporter()))
	defer traces.Stop()
	now := time.Now()
	before := protocol.State{Ticket: protocol.NewTicket(), Phase: protocol.Pending, Agent: "coder", Offer: 1, OfferedAt: now, SubmittedAt: now}
	after := before
	after.Phase, after.Holder, after.Fence, after.AcceptedAt = protocol.Working, "w", 2, now
	events := []protocol.Event{&protocol.Accepted{Meta: protocol.Meta{At: now}, Agent: "coder"}, &protocol.Started{Meta: protocol.Meta{At: now}}}
	head := broker.Head{Ticket: before.Ticket, Seq: 2, State: after}
	b.ReportAllocs()
	for b.Loop() {
		traces.Appended(b.Context(), before, head, events)
	}
}

// TestSpansOfALostWorker checks that the worker that takes over ends the span of the lost work,
// and that an offer has one queue span.
func TestSpansOfALostWorker(t *testing.T) {
	traces := newTraces(sdk.AlwaysSample())
	defer traces.Stop()
	at := func(seconds int) time.Time { return time.Date(2026, 6, 1, 12, 0, seconds, 0, time.UTC) }
	meta := func(seconds int) protocol.Meta { return protocol.Meta{At: at(seconds)} }
	working := protocol.State{Ticket: protocol.NewTicket(), Phase: protocol.Working, Agent: "coder", Holder: "a", Fence: 5, Offer: 2,
		Attempt: 1, SubmittedAt: at(0), OfferedAt: at(1), AcceptedAt: at(2), UpdatedAt: at(2)}
	taken := working
	taken.Holder, taken.Fence, taken.Attempt, taken.AcceptedAt, taken.UpdatedAt = "b", 9, 2, at(40), at(40)
	lost := working
	lost.Phase, lost.Holder, lost.Fence, lost.UpdatedAt = protocol.Pending, "", 0, at(40)
	again := lost
	again.Offer, again.OfferedAt, again.AcceptedAt, again.UpdatedAt = 11, at(42), time.Time{}, at(42)
	for _, c := range []struct {
		name          string
		before, after protocol.State
		events        []protocol.Event
		want          string
	}{
		{"taken over at once", working, taken, []protocol.Event{&protocol.LeaseLost{Meta: meta(40)}, &protocol.Accepted{Meta: meta(40), Agent: "coder"}},
			"work 5 from 2 to 40: lease_lost; acknowledge 9"},
		{"found by a supervisor", working, lost, []protocol.Event{&protocol.LeaseLost{Meta: meta(40)}}, "work 5 from 2 to 40: lease_lost"},
		{"offered again", lost, again, []protocol.Event{&protocol.Offered{Meta: meta(42), Agent: "coder"}}, "wait 9 from 40 to 42"},
		{"stuck", again, again, []protocol.Event{&protocol.Stuck{Meta: meta(43)}}, ""},
		{"taken", again, taken, []protocol.Event{&protocol.Accepted{Meta: meta(45), Agent: "coder"}}, "queue 11 from 42 to 45; acknowledge 9"},
	} {
		var got []string
		for _, s := range traces.endedSpans(c.before, broker.Head{Seq: 9, State: c.after}, c.events) {
			text := fmt.Sprintf("%s %d", s.kind, s.n)
			if s.kind != protocol.SpanAcknowledge { // which ends at the time of the test
				text += fmt.Sprintf(" from %d to %d", s.start.Second(), s.end.Second())
			}
			if s.failed != "" {
				text += ": " + s.failed
			}
			got = append(got, text)
		}
		if text := strings.Join(got, "; "); text != c.want {
			t.Errorf("%s: %s, want %s", c.name, text, c.want)
		}
	}
}
