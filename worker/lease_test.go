package worker_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// While it works the holder stays present and the offer stays its own, for
// long and short leases alike.
func TestBeatsWhileItWorks(t *testing.T) {
	for _, lease := range []time.Duration{worker.LeaseMin, 3 * time.Second, worker.LeaseDefault, time.Hour} {
		t.Run(lease.String(), func(t *testing.T) {
			inBubble(t, func(w *world) {
				h := newWorking()
				s := w.serve(worker.Config{Lease: lease}, h)
				ticket := w.submit(nil)
				for range 600 {
					pass(time.Second)
					directory, err := w.b.Directory(w.ctx)
					if err != nil || !directory.Present(s.Holder()) || w.others() != 0 {
						t.Fatal("not present, or the offer was free")
					}
				}
				if holder, _ := w.b.Holder(w.ctx, s.Holder()); holder.Busy != 1 || holder.Slots != 1 || holder.LeaseMS != lease.Milliseconds() {
					t.Errorf("holder %+v", holder)
				}
				h.end <- nil
				w.closed(ticket)
			})
		})
	}
}

// Others see what a worker has to do without waiting for its next beat; what has
// not changed is not told again.
func TestLoadIsToldBetweenBeats(t *testing.T) {
	inBubble(t, func(w *world) {
		m, h := w.m.Connect(), newWorking()
		b := &counted{Session: sessionOf(brokertest.Over(t, m))}
		s := w.serveOver(m, b, worker.Config{}, h)
		ticket := w.submit(nil)
		busy := func() int {
			holder, err := w.b.Holder(w.ctx, s.Holder())
			if err != nil {
				t.Fatal(err)
			}
			return holder.Busy
		}
		pass(2 * time.Second)
		if busy() != 1 {
			t.Error("2 s after it has begun its worker seems to be free")
		}
		told := b.beats.Load()
		pass(6 * time.Second)
		if again := b.beats.Load() - told; again != 0 {
			t.Errorf("the same load was told %d times", again)
		}
		h.end <- nil
		w.closed(ticket)
		pass(2 * time.Second)
		if busy() != 0 {
			t.Error("2 s after the end its worker seems to be busy")
		}
	})
}

// takeAway lets the core find the holder gone, and another holder accept.
func (w *world) takeAway(ticket string) *broker.Claim {
	w.Helper()
	_, _, err := brokertest.Update(w.ctx, w.b, ticket, func(h broker.Head, q lifecycle.Query) (lifecycle.Step, error) {
		meta := protocol.Meta{At: q.Now, By: "test"}
		return lifecycle.StepOf(h.State,
			&protocol.LeaseLost{Meta: meta, Holder: h.State.Holder, Fence: h.State.Fence, Attempt: h.State.Attempt},
			&protocol.Offered{Meta: meta, Agent: "coder", Reason: "lease_lost"})
	})
	if err != nil {
		w.Fatal(err)
	}
	offers, err := w.b.Pull(w.ctx, "coder", 1, 0)
	if err != nil || len(offers) != 1 {
		w.Fatalf("pull: %d offers, %v", len(offers), err)
	}
	claim, err := offers[0].Acknowledge(w.ctx, w.holder(), protocol.Ack{Status: protocol.AckAccepted}, true)
	if err != nil {
		w.Fatal(err)
	}
	return claim
}

// A handler whose handoff is another's by now is told within a beat, and what
// it returns changes nothing.
func TestLeaseLost(t *testing.T) {
	for name, returns := range map[string]error{"an error": errors.New("late"), "a result": nil} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				cause := make(chan error, 1)
				s := w.serve(worker.Config{}, worker.HandlerFunc(func(ctx context.Context, _ worker.Handoff) (protocol.Result, error) {
					<-ctx.Done()
					cause <- context.Cause(ctx)
					return protocol.Result{}, returns
				}))
				ticket := w.submit(nil)
				synctest.Wait()
				claim := w.takeAway(ticket)
				pass(10 * time.Second)
				if err := <-cause; !errors.Is(err, broker.ErrLeaseLost) {
					t.Errorf("cause %v", err)
				}
				if stats := s.Stats(); stats.Lost != 1 || stats.Busy != 0 {
					t.Errorf("stats %+v", stats)
				}
				if err := claim.Complete(w.ctx, protocol.Result{}); err != nil {
					t.Errorf("the successor cannot complete: %v", err)
				}
				late := "" // a late result is kept in the history
				if returns == nil {
					late = "result_parked "
				}
				if events := w.events(ticket); events != "submitted+offered accepted+started lease_lost+offered accepted+started "+late+"completed" {
					t.Errorf("events %s", events)
				}
			})
		})
	}
}

// A progress report finds out before the next beat does.
func TestProgressAfterTheLeaseIsLost(t *testing.T) {
	inBubble(t, func(w *world) {
		var reported, cause error
		s := w.serve(worker.Config{}, worker.HandlerFunc(func(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
			time.Sleep(time.Second)
			reported = h.Progress(ctx, protocol.Progress{Percent: 1})
			cause = context.Cause(ctx)
			return protocol.Result{}, errors.New("late")
		}))
		ticket := w.submit(nil)
		synctest.Wait()
		w.takeAway(ticket)
		pass(time.Second)
		if !errors.Is(reported, broker.ErrLeaseLost) || !errors.Is(cause, broker.ErrLeaseLost) || s.Stats().Lost != 1 {
			t.Errorf("progress %v, cause %v, stats %+v", reported, cause, s.Stats())
		}
	})
}

// Cut off from the engine, a worker stops its handlers one lease after the
// last beat that was confirmed: from then on a successor may be at work. When
// the engine is back and no other holder took over, it releases what it has.
func TestCutOff(t *testing.T) {
	inBubble(t, func(w *world) {
		h := newWorking()
		s := w.serve(worker.Config{}, h)
		ticket := w.submit(nil)
		pass(15 * time.Second) // beats at 0 and 10 s
		s.m.Disconnect()
		pass(25*time.Second - time.Millisecond)
		if len(h.cause) != 0 {
			t.Fatal("stopped before its lease was over")
		}
		pass(time.Millisecond)
		w.cancelledBy(h, broker.ErrLeaseLost)
		pass(time.Hour / 12)
		if state := w.status(ticket); state.Holder != s.Holder() {
			t.Fatalf("nobody else was there, and it is held by %q", state.Holder)
		}
		s.m.Reconnect()
		pass(5 * time.Second)
		h.end <- nil
		state := w.closed(ticket)
		if state.Attempt != 1 || state.AttemptsTotal != 1 {
			t.Errorf("an attempt was charged for it: %+v", state)
		}
		if events := w.events(ticket); events != "submitted+offered accepted+started released+offered accepted+started completed" {
			t.Errorf("events %s", events)
		}
		if stats := s.Stats(); stats.Claimed != 2 || stats.Released != 1 || stats.Completed != 1 {
			t.Errorf("stats %+v", stats)
		}
	})
}

// A cut that is shorter than the lease is nobody's business.
func TestShortCut(t *testing.T) {
	inBubble(t, func(w *world) {
		h := newWorking()
		s := w.serve(worker.Config{}, h)
		ticket := w.submit(nil)
		pass(15 * time.Second)
		s.m.Disconnect()
		pass(24 * time.Second)
		s.m.Reconnect()
		pass(time.Minute)
		h.end <- nil
		if state := w.closed(ticket); state.Attempt != 1 || w.events(ticket) != "submitted+offered accepted+started completed" {
			t.Errorf("state %+v, events %s", state, w.events(ticket))
		}
	})
}

// While it is cut off for a lease and more it pulls nothing either.
func TestResultIsHandedInAfterACut(t *testing.T) {
	for name, cut := range map[string]time.Duration{"within the lease": 20 * time.Second, "after it": 5 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				m := w.m.Connect()
				w.serveOver(m, sessionOf(brokertest.Over(t, m)), worker.Config{}, worker.HandlerFunc(func(context.Context, worker.Handoff) (protocol.Result, error) {
					m.Disconnect()
					return protocol.Result{Body: []byte(`"expensive"`)}, nil
				}))
				ticket := w.submit(nil)
				pass(cut)
				m.Reconnect()
				if state := w.closed(ticket); state.Outcome != protocol.OutcomeSuccess {
					t.Errorf("state %+v", state)
				}
			})
		})
	}
}

// An engine that hangs and an engine that is away are the same to the lease:
// what counts is when the last confirmed beat was sent.
func TestBeatThatIsAnsweredTooLate(t *testing.T) {
	inBubble(t, func(w *world) {
		m := w.m.Connect()
		slow := &slowBeats{Session: sessionOf(brokertest.Over(t, m))}
		var stopped time.Time
		w.serveOver(m, slow, worker.Config{Lease: 3 * time.Second}, worker.HandlerFunc(func(ctx context.Context, _ worker.Handoff) (protocol.Result, error) {
			<-ctx.Done()
			stopped = time.Now()
			return protocol.Result{}, context.Cause(ctx)
		}))
		w.submit(nil)
		synctest.Wait()
		slow.delay.Store(int64(900 * time.Millisecond)) // within the beat's own time
		pass(time.Minute)
		if !stopped.IsZero() {
			t.Fatal("stopped though every beat was confirmed")
		}
		slow.delay.Store(int64(time.Hour))
		pass(4 * time.Second)
		if after := stopped.Sub(slow.sent); after != 3*time.Second {
			t.Errorf("stopped %v after the last confirmed beat was sent", after)
		}
	})
}

type slowBeats struct {
	*api.Session
	delay atomic.Int64
	sent  time.Time // of the last that was confirmed
}

func (s *slowBeats) Present(ctx context.Context, p api.Presence) (api.Presented, error) {
	sent := time.Now()
	select {
	case <-time.After(time.Duration(s.delay.Load())):
		s.sent = sent
		return s.Session.Present(ctx, p)
	case <-ctx.Done():
		return api.Presented{}, ctx.Err()
	}
}

// asking is a Handler that answers offers first.
type asking struct {
	worker.Handler
	ask func(ctx context.Context, h worker.Handoff) (protocol.Ack, error)
}

func (a asking) Acknowledge(ctx context.Context, h worker.Handoff) (protocol.Ack, error) {
	return a.ask(ctx, h)
}

func TestAcknowledge(t *testing.T) {
	accepted := "accepted+started completed"
	for name, c := range map[string]struct {
		ack    protocol.Ack
		err    error
		events string
		check  func(protocol.State) bool
	}{
		"accepted": {ack: protocol.Ack{Status: protocol.AckAccepted, EstimatedCompletionMS: 60_000}, events: accepted,
			check: func(s protocol.State) bool { return s.EstimatedCompletion.Sub(s.AcceptedAt) == time.Minute }},
		"rejected": {ack: protocol.Ack{Status: protocol.AckRejected, Reason: "no Go", SuggestedAlternative: "gopher"}, events: "rejected",
			check: func(s protocol.State) bool { return s.Message == "no Go" && s.Alternative == "gopher" }},
		"conditional": {ack: protocol.Ack{Status: protocol.AckConditional, NeedsContext: []string{"a branch"}}, events: "conditioned",
			check: func(s protocol.State) bool { return s.Phase == protocol.Conditional }},
		"deferred": {ack: protocol.Ack{Status: protocol.AckConditional, RetryAfterMS: 1000, Reason: "busy"}, events: "conditioned",
			check: func(s protocol.State) bool { return !s.RetryAt.IsZero() }},
		"no reason": {ack: protocol.Ack{Status: protocol.AckRejected}, events: "accepted+started failed",
			check: func(s protocol.State) bool { return s.Reason == "invalid_ack" && s.Attempt == 1 }},
		"error": {err: worker.Permanent(errors.New("no")), events: "accepted+started failed",
			check: func(s protocol.State) bool { return s.Message == "no" && !s.Retryable }},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				s := w.serve(worker.Config{}, asking{done, func(_ context.Context, h worker.Handoff) (protocol.Ack, error) {
					if h.Package.Task.Description != "write it" || h.Progress(w.ctx, protocol.Progress{}) == nil {
						t.Errorf("asked about %+v", h)
					}
					return c.ack, c.err
				}})
				ticket := w.submit(nil)
				synctest.Wait()
				if events := strings.TrimPrefix(w.events(ticket), "submitted+offered claimed "); events != c.events {
					t.Errorf("events %s, want %s", events, c.events)
				}
				if state := w.status(ticket); !c.check(state) {
					t.Errorf("state %+v", state)
				}
				if depth, _ := w.b.QueueDepth(w.ctx, "coder"); depth != 0 || s.Stats().Busy != 0 {
					t.Errorf("%d offers left, stats %+v", depth, s.Stats())
				}
			})
		})
	}
}

// The offer is kept from others while user code thinks about it, and no longer
// than the acknowledge timeout: then it is offered again, and nothing is charged.
func TestSlowAcknowledgement(t *testing.T) {
	inBubble(t, func(w *world) {
		begin := time.Now()
		var took time.Duration
		w.serve(worker.Config{}, asking{done, func(ctx context.Context, _ worker.Handoff) (protocol.Ack, error) {
			if took != 0 { // it comes again
				return protocol.Ack{Status: protocol.AckAccepted}, nil
			}
			<-ctx.Done()
			took = time.Since(begin)
			return protocol.Ack{}, ctx.Err()
		}})
		ms := int64(120_000)
		ticket := w.submit(func(p *protocol.Package) { p.Policy.AckTimeoutMS = &ms })
		for range 119 {
			pass(time.Second)
			if w.others() != 0 {
				t.Fatal("the offer was free")
			}
		}
		pass(time.Second)
		pass(time.Second)
		if state := w.status(ticket); took != 2*time.Minute || state.Phase != protocol.Complete || state.AttemptsTotal != 1 {
			t.Errorf("after %v: %+v", took, state)
		}
	})
}

// User code that does not heed the end of its context keeps the offer from others
// no longer than that either: its claim lapses.
func TestDeafAcknowledgement(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise()
		end := make(chan struct{})
		w.serve(worker.Config{Concurrency: 1}, asking{done, func(context.Context, worker.Handoff) (protocol.Ack, error) {
			<-end
			return protocol.Ack{Status: protocol.AckAccepted}, nil
		}})
		ticket := w.submit(nil)
		free := 0
		for range 90 {
			pass(time.Second)
			free += w.others()
		}
		if state := w.status(ticket); free == 0 || state.Phase != protocol.Pending {
			t.Errorf("in 90 s others had it %d times: %+v", free, state)
		}
		close(end)
	})
}
