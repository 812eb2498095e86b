package worker_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

func TestCompletes(t *testing.T) {
	inBubble(t, func(w *world) {
		var got worker.Handoff
		s := w.serve(worker.Config{}, worker.HandlerFunc(func(_ context.Context, h worker.Handoff) (protocol.Result, error) {
			got = h
			return protocol.Result{Body: []byte(`"done"`), Usage: &protocol.Usage{Tokens: 7}}, nil
		}))
		ticket := w.submit(nil)
		state := w.closed(ticket)
		if state.Outcome != protocol.OutcomeSuccess || state.Usage.Total().Tokens != 7 || state.Attempt != 1 {
			t.Errorf("state %+v", state)
		}
		if events := w.events(ticket); events != "submitted+offered accepted+started completed" {
			t.Errorf("events %s", events)
		}
		if got.Ticket != ticket || got.Agent != "coder" || got.Attempt != 1 || got.Fence == 0 ||
			got.Package.Task.Description != "write it" || !strings.Contains(string(got.Raw), "write it") ||
			got.State().Phase != protocol.Working || limitOf(got) != protocol.ClockWork || got.Deadline().IsZero() {
			t.Errorf("the handler was given %+v", got)
		}
		if err := s.drain(); err != nil {
			t.Error(err)
		}
		if depth, _ := w.b.QueueDepth(w.ctx, "coder"); depth != 0 {
			t.Errorf("%d offers left in the queue", depth)
		}
		if stats := s.Stats(); stats != (worker.Stats{Claimed: 1, Completed: 1, Slots: 1}) {
			t.Errorf("stats %+v", stats)
		}
	})
}

// What a handler returns becomes one fact, and nothing else.
func TestWhatAHandlerReturns(t *testing.T) {
	refused := func(ack protocol.Ack) error { return worker.Refuse(ack) }
	for name, c := range map[string]struct {
		err    error
		events string // after the acceptance
		check  func(protocol.State) bool
	}{
		"an error": {errors.New("no disk"), "failed",
			func(s protocol.State) bool { return s.Retryable && s.Reason == "handler" && s.Message == "no disk" }},
		"permanent": {worker.Permanent(errors.New("no such file")), "failed",
			func(s protocol.State) bool { return !s.Retryable && s.Reason == "handler" }},
		"retry after": {worker.RetryAfter(errors.New("429"), time.Minute), "failed",
			func(s protocol.State) bool { return s.Retryable && s.RetryAfterMS == 60_000 }},
		"retry after a week": {worker.RetryAfter(errors.New("429"), 7*24*time.Hour), "failed",
			func(s protocol.State) bool { return s.RetryAfterMS == protocol.RetryAfterMaxMS }},
		"a key that it has": {&worker.Failure{Err: errors.New("429"), RetryAfter: time.Minute, LimitKey: "openai"}, "failed",
			func(s protocol.State) bool { return s.Retryable && s.RetryAfterMS == 60_000 }},
		"another's key": {&worker.Failure{Err: errors.New("429"), RetryAfter: time.Minute, LimitKey: "another"}, "failed",
			func(s protocol.State) bool { return s.Retryable && s.RetryAfterMS == 60_000 }},
		"a code": {&worker.Failure{Err: errors.New("x"), Code: "model_overloaded"}, "failed",
			func(s protocol.State) bool { return s.Retryable && s.Reason == "model_overloaded" }},
		"reject": {worker.Reject("not my language", "translator"), "rejected",
			func(s protocol.State) bool { return s.Alternative == "translator" && s.Attempt == 0 }},
		"need context": {worker.NeedContext("which branch?"), "conditioned",
			func(s protocol.State) bool { return s.Conditions.NeedsContext[0] == "which branch?" && s.Attempt == 0 }},
		"need permission": {worker.NeedPermission("to push"), "conditioned",
			func(s protocol.State) bool { return s.Conditions.NeedsPermission[0] == "to push" }},
		"defer": {worker.Defer("night", time.Hour), "conditioned",
			func(s protocol.State) bool { return s.Conditions == nil && !s.RetryAt.IsZero() }},
		"a rejection without a reason": {refused(protocol.Ack{Status: protocol.AckRejected}), "failed",
			func(s protocol.State) bool { return s.Reason == "invalid_ack" }},
		"an acceptance": {refused(protocol.Ack{Status: protocol.AckAccepted}), "failed",
			func(s protocol.State) bool { return s.Reason == "invalid_ack" }},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.register(protocol.Profile{ID: "coder", LimitsBy: []protocol.KeyLimit{{Key: "openai", MaxConcurrency: 1}}})
				s := w.serve(worker.Config{}, worker.HandlerFunc(func(context.Context, worker.Handoff) (protocol.Result, error) {
					return protocol.Result{}, c.err
				}))
				ticket := w.submit(nil)
				synctest.Wait()
				if events := w.events(ticket); events != "submitted+offered accepted+started "+c.events {
					t.Errorf("events %s", events)
				}
				if state := w.status(ticket); !c.check(state) || state.Held() {
					t.Errorf("state %+v", state)
				}
				if use, err := w.b.KeyLimits().Use(w.ctx, "openai"); err != nil || len(use.Places) > 0 || (use.PausedBy == ticket) != (name == "a key that it has") {
					t.Errorf("use of the key: %+v, %v", use, err)
				}
				if err := s.drain(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestPanicIsAFailedAttempt(t *testing.T) {
	for name, f := range map[string]func(){
		"panic":  func() { panic("index out of range") },
		"goexit": runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				s := w.serve(worker.Config{}, worker.HandlerFunc(func(context.Context, worker.Handoff) (protocol.Result, error) {
					f()
					return protocol.Result{}, nil
				}))
				first, second := w.submit(nil), w.submit(nil)
				synctest.Wait()
				for _, ticket := range []string{first, second} { // it lives on
					state := w.status(ticket)
					if state.Phase != protocol.PhaseFailed || !state.Retryable {
						t.Errorf("state %+v", state)
					}
					if name == "panic" && (state.Reason != "panic" || !strings.Contains(state.Message, "index out of range") || !strings.Contains(state.Message, "worker_test.go")) {
						t.Errorf("%s: %s", state.Reason, state.Message)
					}
				}
				if stats := s.Stats(); stats.Failed != 2 {
					t.Errorf("stats %+v", stats)
				}
			})
		})
	}
}

// A result that breaks the package's schema fails the attempt, in the broker.
func TestResultAgainstTheSchema(t *testing.T) {
	inBubble(t, func(w *world) {
		s := w.serve(worker.Config{}, done)
		ticket := w.submit(func(p *protocol.Package) { p.Expectations.OutputSchema = []byte(`{"type":"object"}`) })
		synctest.Wait()
		state := w.status(ticket)
		if state.Reason != "output_schema" || state.Phase != protocol.PhaseFailed || s.Stats().Failed != 1 {
			t.Errorf("state %+v, stats %+v", state, s.Stats())
		}
	})
}

// A worker has no more offers in its hands than slots, whatever waits.
func TestSlotsAreReservedBeforeClaiming(t *testing.T) {
	inBubble(t, func(w *world) {
		h := newWorking()
		w.serve(worker.Config{Concurrency: 2}, h)
		var tickets []string
		for range 5 {
			tickets = append(tickets, w.submit(nil))
		}
		synctest.Wait()
		if running, free := len(h.began), w.others(); running != 2 || free != 3 {
			t.Errorf("%d run and %d stand in the queue, want 2 and 3", running, free)
		}
		h.end <- nil
		synctest.Wait()
		if running, free := len(h.began), w.others(); running != 3 || free != 2 {
			t.Errorf("%d were begun and %d stand in the queue, want 3 and 2", running, free)
		}
		for range 4 {
			h.end <- nil
		}
		for _, ticket := range tickets {
			w.closed(ticket)
		}
	})
}

func TestConcurrency(t *testing.T) {
	for _, c := range []struct{ asked, profile, want int }{{0, 0, 1}, {0, 3, 3}, {2, 3, 2}, {5, 3, 3}, {5, 0, 5}} {
		inBubble(t, func(w *world) {
			w.register(protocol.Profile{ID: "coder", MaxConcurrency: c.profile})
			if slots := w.serve(worker.Config{Concurrency: c.asked}, done).Stats().Slots; slots != c.want {
				t.Errorf("asked for %d, profile %d: %d slots, want %d", c.asked, c.profile, slots, c.want)
			}
		})
	}
}

func TestRegistersTheAgent(t *testing.T) {
	inBubble(t, func(w *world) {
		cfg := worker.Config{Profile: protocol.Profile{Specialization: "go"}}
		w.serve(cfg, done)
		profile, err := w.b.Profile(w.ctx, "coder")
		if err != nil || profile.Specialization != "go" || !profile.RegisteredByWork {
			t.Fatalf("profile %+v, %v", profile, err)
		}
		profile.Specialization = "changed by a person"
		w.register(profile)
		w.serve(cfg, done)
		if profile, _ = w.b.Profile(w.ctx, "coder"); profile.Specialization != "changed by a person" {
			t.Errorf("profile %+v was overwritten", profile)
		}
		if err := w.b.RemoveProfile(w.ctx, "coder"); err != nil { // as a new, empty engine has it
			t.Fatal(err)
		}
		w.m.Restart()
		synctest.Wait()
		if _, err = w.b.Profile(w.ctx, "coder"); err != nil {
			t.Errorf("after the engine came back: %v", err)
		}
	})
}

// recorder notes the order of calls.
type recorder struct {
	*api.Session
	mu    sync.Mutex
	calls []string
}

func (r *recorder) note(call string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, call)
}

func (r *recorder) ClaimMany(ctx context.Context, request api.ClaimMany) (api.Claims, error) {
	r.note("claim")
	return r.Session.ClaimMany(ctx, request)
}

func (r *recorder) Present(ctx context.Context, p api.Presence) (api.Presented, error) {
	r.note("beat")
	return r.Session.Present(ctx, p)
}

func (r *recorder) Leave(ctx context.Context, p api.Presence) error {
	r.note("remove")
	return r.Session.Leave(ctx, p)
}

func TestPresentFromBeforeTheFirstClaimToTheEnd(t *testing.T) {
	inBubble(t, func(w *world) {
		m := w.m.Connect()
		r := &recorder{Session: sessionOf(brokertest.Over(t, m))}
		s := w.serveOver(m, r, worker.Config{}, done)
		if directory, _ := w.b.Directory(w.ctx); !directory.Present(s.Holder()) {
			t.Error("not present while it runs")
		}
		if err := s.drain(); err != nil {
			t.Error(err)
		}
		if r.calls[0] != "beat" || r.calls[len(r.calls)-1] != "remove" {
			t.Errorf("calls %v", r.calls)
		}
		if directory, _ := w.b.Directory(w.ctx); directory.Present(s.Holder()) {
			t.Error("present after its end")
		}
	})
}

func TestWaitsForTheEngine(t *testing.T) {
	inBubble(t, func(w *world) {
		m := w.m.Connect()
		m.Disconnect()
		s := w.serveOver(m, sessionOf(brokertest.Over(t, m)), worker.Config{}, done)
		w.register(protocol.Profile{ID: "coder"})
		ticket := w.submit(nil)
		pass(time.Hour)
		m.Reconnect()
		w.closed(ticket)
		if err := s.drain(); err != nil {
			t.Error(err)
		}

		m = w.m.Connect()
		m.Disconnect()
		s = w.serveOver(m, sessionOf(brokertest.Over(t, m)), worker.Config{}, done)
		begin := time.Now()
		if err := s.drain(); err != nil || time.Since(begin) != 0 {
			t.Errorf("ended after %v by %v while it waited for the engine", time.Since(begin), err)
		}
	})
}

func TestPausedAgent(t *testing.T) {
	inBubble(t, func(w *world) {
		w.register(protocol.Profile{ID: "coder", Paused: true})
		var handled atomic.Int32
		w.serve(worker.Config{}, worker.HandlerFunc(func(context.Context, worker.Handoff) (protocol.Result, error) {
			handled.Add(1)
			return protocol.Result{}, nil
		}))
		first := w.submit(nil)
		pass(time.Minute)
		if handled.Load() != 0 || w.others() != 1 {
			t.Error("pulled while paused")
		}
		w.register(protocol.Profile{ID: "coder"})
		w.closed(first)
		w.register(protocol.Profile{ID: "coder", Paused: true}) // while a pull is under way
		second := w.submit(nil)
		pass(time.Minute)
		if handled.Load() != 1 || w.others() != 1 {
			t.Error("pulled though it was paused again")
		}
		w.register(protocol.Profile{ID: "coder"})
		w.closed(second)
	})
}

// An engine that is restarted delivers live claims again, to their holders too.
func TestRedeliveryOfItsOwn(t *testing.T) {
	inBubble(t, func(w *world) {
		h := newWorking()
		var asked atomic.Int32
		s := w.serve(worker.Config{Concurrency: 4}, asking{h, func(context.Context, worker.Handoff) (protocol.Ack, error) {
			asked.Add(1)
			return protocol.Ack{Status: protocol.AckAccepted}, nil
		}})
		w.m.SetFaults(brokertest.Faults{DuplicateOffer: func(broker.OfferKey) bool { return true }})
		ticket := w.submit(nil)
		synctest.Wait()
		w.m.Restart()
		pass(time.Minute)
		if len(h.began) != 1 || asked.Load() != 1 {
			t.Fatalf("begun %d times, asked %d times", len(h.began), asked.Load())
		}
		h.end <- nil
		w.closed(ticket)
		pass(2 * broker.AckWait) // the other copy is a ghost now
		if depth, _ := w.b.QueueDepth(w.ctx, "coder"); depth != 0 {
			t.Errorf("%d offers left in the queue", depth)
		}
		if stats := s.Stats(); stats.Claimed != 1 || stats.Completed != 1 || stats.Busy != 0 {
			t.Errorf("stats %+v", stats)
		}
	})
}

// An offer that is gone costs a read of the ledger and no more.
func TestGhostIsDropped(t *testing.T) {
	inBubble(t, func(w *world) {
		w.register(protocol.Profile{ID: "coder"})
		w.m.SetFaults(brokertest.Faults{DuplicateOffer: func(broker.OfferKey) bool { return true }})
		var handled atomic.Int32
		s := w.serve(worker.Config{Concurrency: 4}, worker.HandlerFunc(func(context.Context, worker.Handoff) (protocol.Result, error) {
			handled.Add(1)
			return protocol.Result{}, nil
		}))
		for range 10 {
			w.closed(w.submit(nil))
		}
		pass(2 * broker.AckWait)
		if depth, _ := w.b.QueueDepth(w.ctx, "coder"); handled.Load() != 10 || depth != 0 || s.Stats().Completed != 10 {
			t.Errorf("handled %d, %d offers left, stats %+v", handled.Load(), depth, s.Stats())
		}
	})
}
