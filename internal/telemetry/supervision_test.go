package telemetry

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/internal/record"
	"github.com/agenthandoff/handoff/protocol"
)

// TestLife checks the metrics of a handoff that fails, loses a worker and succeeds, and of one
// that is rejected and never accepted.
func TestLife(t *testing.T) {
	inScene(t, func(s *scene) {
		s.agents("coder", "reviewer")
		s.submit("coder")
		after(10 * time.Second) // in the queue
		first := s.holder("coder", time.Hour)
		claim := s.accept(first)
		after(4 * time.Second) // at work
		s.must(claim.Fail(s.ctx, broker.Failure{Code: "exit", Message: "exit code 1", Retryable: true, Usage: &protocol.Usage{Tokens: 100, CostMicros: 20}}))
		after(10 * time.Second)
		short := s.holder("coder", 30*time.Second)
		s.accept(short)
		after(time.Minute) // its lease ends; the supervisor offers the handoff again
		claim = s.accept(first)
		after(6 * time.Second)
		s.must(claim.Spend(s.ctx, protocol.Usage{Tokens: 7}))
		s.must(claim.Complete(s.ctx, protocol.ResultFromOutput([]byte("done"))))
		after(2 * time.Second)
		s.wants(map[string]string{
			"handoff_offers_total{agent=coder,reason=submitted}":  "1",
			"handoff_offers_total{agent=coder,reason=retry}":      "1",
			"handoff_offers_total{agent=coder,reason=lease_lost}": "1",
			"handoff_claims_total{agent=coder}":                   "3",
			"handoff_failures_total{agent=coder}":                 "1",
			"handoff_retries_total{agent=coder}":                  "1",
			"handoff_leases_lost_total{agent=coder}":              "1",
			"handoff_closed_total{agent=coder,outcome=success}":   "1",
			"handoff_tokens_total{agent=coder}":                   "107",
			"handoff_cost_micros_total{agent=coder}":              "20",
			"handoff_work_seconds{agent=coder}":                   "2: 10",
			"handoff_whole_seconds{agent=coder}":                  "1: 90",
			"handoff_events_total{event=completed}":               "1",
			"handoff_append_events_total{event=completed}":        "1",
			"handoff_supervisors":                                 "1",
			"handoff_reconcile_errors_total":                      "0",
		})

		s.submit("coder")
		_, err := s.pull("coder").Acknowledge(s.ctx, first, protocol.Ack{Status: protocol.AckRejected, ReasonCode: "too_large", Reason: "too much", SuggestedAlternative: "reviewer"}, false)
		s.must(err)
		after(queuesCacheTTL + time.Second)
		s.wants(map[string]string{
			"handoff_refusals_total{agent=coder,reason=rejected}":      "1",
			"handoff_reroutes_total{agent=coder}":                      "1",
			"handoff_offers_total{agent=reviewer,reason=reroute}":      "1",
			"handoff_queue_depth{agent=reviewer,lane=normal}":          "1",
			"handoff_queue_oldest_seconds{agent=reviewer,lane=normal}": "6",
			"handoff_queue_depth{agent=coder,lane=normal}":             "0",
			"handoff_workers{agent=reviewer}":                          "0",
			"handoff_workers{agent=coder}":                             "1",
			"handoff_slots{agent=coder}":                               "3",
			"handoff_busy_slots{agent=coder}":                          "1",
		})
		after(2 * time.Minute) // no worker accepts it: it escalates to a person
		s.wants(map[string]string{
			"handoff_timeouts_total{clock=acknowledge}":           "1",
			"handoff_escalations_total{agent=reviewer}":           "1",
			"handoff_offers_total{agent=human,reason=escalation}": "1",
		})
		late := read(t, s.m.registry)["handoff_timers_late_seconds"]
		if due := read(t, s.m.registry)["handoff_timers_due_total"]; due == "0" || !strings.HasPrefix(late, due+": ") {
			t.Errorf("%s timers fired, the lateness of %q is known", due, late)
		}
	})
}

// TestBreaker checks the metrics of a breaker that opens, is half-open, and closes.
func TestBreaker(t *testing.T) {
	inScene(t, func(s *scene) {
		two, open, one, exhausted := 2, int64(60_000), 1, protocol.ExhaustedFail
		s.must(s.b.PutProfile(s.ctx, protocol.Profile{ID: "coder", Breaker: &protocol.Breaker{Threshold: &two, OpenMS: &open},
			Policy: protocol.PolicyOverrides{MaxAttempts: &one, OnExhausted: &exhausted}}))
		s.agents("reviewer")
		breaker := func(state, trips string) {
			s.Helper()
			after(time.Second)
			s.wants(map[string]string{"handoff_breaker_state{agent=coder}": state, "handoff_breaker_trips_total{agent=coder}": trips,
				"handoff_breaker_state{agent=reviewer}": ""})
		}
		breaker("", "")
		holder := s.holder("coder", time.Hour)
		fail := func() {
			s.submit("coder")
			s.must(s.accept(holder).Fail(s.ctx, broker.Failure{Code: "exit", Message: "exit code 1", Retryable: true}))
		}
		fail()
		breaker("0", "")
		fail()
		breaker("2", "1")
		after(2 * time.Minute)
		breaker("1", "1")
		s.submit("coder") // the probe
		s.must(s.accept(holder).Complete(s.ctx, protocol.ResultFromOutput([]byte("done"))))
		breaker("", "1") // a success forgets the failures
	})
}

// TestConflictsCount checks that a repeated submission counts as a conflict and not as an append.
func TestConflictsCount(t *testing.T) {
	inScene(t, func(s *scene) {
		s.agents("coder")
		pkg := protocol.Package{Source: "lead", Target: protocol.Target{Agent: "coder"}, Reason: "r", Task: protocol.Task{Description: "d"}, Key: "k"}
		for range 2 {
			prepared, err := s.b.Prepare(t.Context(), pkg)
			s.must(err)
			_, err = s.b.Submit(s.ctx, prepared)
			s.must(err)
		}
		s.wants(map[string]string{"handoff_append_conflicts_total": "1", "handoff_appends_total": "1", "handoff_append_events_total{event=submitted}": "1"})
	})
}

// TestRedeliveryIsCountedOnce checks that an entry that the engine delivers again is not counted
// again.
func TestRedeliveryIsCountedOnce(t *testing.T) {
	inScene(t, func(s *scene) {
		s.agents("coder")
		watch := NewMetrics()
		sv := watch.Supervision(s.b.Directory, nil)
		s.submit("coder")
		for range 2 {
			s.must(s.b.Entries(s.ctx, nil, func(e broker.Entry) error {
				made, err := record.Decode(e.Body, e.Seq)
				sv.Followed(e, made)
				return err
			}))
		}
		if got := read(t, watch.registry)["handoff_offers_total{agent=coder,reason=submitted}"]; got != "1" {
			t.Errorf("one offer counts as %s", got)
		}
	})
}

// TestLabelsAreBounded checks that labels have at most AgentsMax agents and no value that the code
// does not list, whatever the ledger and the directory contain.
func TestLabelsAreBounded(t *testing.T) {
	inScene(t, func(s *scene) {
		watch := NewMetrics()
		watch.Engine(s.b)
		sv := watch.Supervision(s.b.Directory, nil)
		see := func(seq uint64, agent, word string) {
			state := protocol.State{Ticket: "t", Agent: agent, Closed: true, Outcome: protocol.Outcome(word)}
			sv.Followed(broker.Entry{Seq: seq, At: time.Now()}, protocol.Record{State: state, Events: []protocol.Event{
				&protocol.Offered{Agent: agent, Reason: word}, &protocol.Rejected{Agent: agent}, &protocol.Rerouted{From: agent},
				&protocol.Escalated{From: agent}, &protocol.TimedOut{Agent: agent, Clock: protocol.Clock(word)}, &protocol.Closed{Outcome: protocol.Outcome(word)}}})
		}
		for i := range uint64(2 * agentsMax) {
			see(1+2*i, fmt.Sprintf("stranger-%d", i), fmt.Sprintf("word-%d", i))
			agent := fmt.Sprintf("agent-%d", i)
			s.agents(agent)
			s.holder(agent, time.Hour)
			see(2+2*i, agent, "retry")
		}
		after(time.Second)
		labels := map[string]map[string]bool{}
		families, err := watch.registry.Gather()
		s.must(err)
		for _, family := range families {
			if !strings.HasPrefix(family.GetName(), "handoff_") {
				continue
			}
			for _, metric := range family.Metric {
				for _, label := range metric.Label {
					if labels[label.GetName()] == nil {
						labels[label.GetName()] = map[string]bool{}
					}
					labels[label.GetName()][label.GetValue()] = true
				}
			}
		}
		for name, most := range map[string]int{"agent": agentsMax + 1, "reason": len(lifecycle.OfferReasons) + 2, "outcome": len(protocol.Outcomes) + 1,
			"clock": len(protocol.Clocks) + 1, "event": len(protocol.EventTypes), "lane": len(protocol.Priorities)} {
			if got := len(labels[name]); got == 0 || got > most {
				t.Errorf("label %s has %d values, at most %d are allowed", name, got, most)
			}
		}
		if labels["agent"]["stranger-0"] || !labels["agent"][other] {
			t.Errorf("an unregistered agent must be counted as %q: %v", other, labels["agent"][other])
		}
	})
}

// TestQueuesAreCached checks that frequent scrapes read the queues once, and that the other
// metrics stay if the engine does not answer.
func TestQueuesAreCached(t *testing.T) {
	inScene(t, func(s *scene) {
		s.agents("coder")
		for range 10 {
			s.wants(map[string]string{"handoff_engine_up": "1", "handoff_queue_depth{agent=coder,lane=low}": "0"})
		}
		if n := s.engine.queues.Load(); n != 1 {
			t.Errorf("ten scrapes read the queues %d times", n)
		}
		s.engine.broken.Store(true)
		after(queuesCacheTTL)
		s.wants(map[string]string{"handoff_engine_up": "0", "handoff_queue_depth{agent=coder,lane=low}": "", "handoff_supervisors": "1"})
		s.engine.broken.Store(false)
		after(queuesCacheTTL)
		s.wants(map[string]string{"handoff_engine_up": "1"})
	})
}

func TestReconcilesAndSweeps(t *testing.T) {
	m := NewMetrics()
	s := m.Supervision(nil, []string{"start"})
	s.Reconciled(nil)
	s.Reconciled(errors.New("no"))
	s.Swept("start", 10, 4, 2*time.Second, nil)
	s.Swept("start", 1, 1, time.Second, errors.New("broke off"))
	s.Due(time.Time{})
	got := read(t, m.registry)
	for name, want := range map[string]string{"handoff_reconciles_total": "2", "handoff_reconcile_errors_total": "1", "handoff_sweeps_total{reason=start}": "2",
		"handoff_sweep_errors_total{reason=start}": "1", "handoff_sweep_handoffs": "10", "handoff_sweep_open": "4", "handoff_sweep_seconds": "2",
		"handoff_timers_due_total": "1", "handoff_timers_late_seconds": "0: 0"} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
}

func TestSequenceWindow(t *testing.T) {
	var o sequenceWindow
	other := broker.PartitionBase(1) // of another partition
	is := func(seq uint64, first bool) {
		t.Helper()
		if got := o.firstDelivery(seq); got != first {
			t.Errorf("the first delivery of %d: %v", seq, got)
		}
	}
	for _, seq := range []uint64{1_000, other + 7, 998, 1_001, other + 6, 999} {
		is(seq, true)
		is(seq, false)
	}
	is(1_000, false)
	for i := range uint64(sequenceWindowSize) {
		is(2_000+i, true)
	}
	is(1_000, false)
	is(2_000, false)
	for i := range uint64(2 * sequenceWindowSize) {
		is(1_000_000+i, true)
	}
	is(1_000, true) // it has left the window
}
