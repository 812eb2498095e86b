package worker_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// tidy is a Handler that is a Cleaner.
type tidy struct {
	worker.Handler
	cleanup func(ctx context.Context, h worker.Handoff, why error) error
}

func (c tidy) Cleanup(ctx context.Context, h worker.Handoff, why error) error {
	return c.cleanup(ctx, h, why)
}

// Cleanup is called where the handoff leaves the worker without a result, before
// the ledger hears of it, and nowhere else.
func TestCleanup(t *testing.T) {
	request := func(ask func(w *world, ticket string)) func(*world, *serving, string) {
		return func(w *world, _ *serving, ticket string) { ask(w, ticket) }
	}
	cancel := request(func(w *world, ticket string) { _, _ = w.b.Cancel(w.ctx, ticket, "lead", "x") })
	rollBackRequest := request(func(w *world, ticket string) { _, _ = w.b.RollBack(w.ctx, ticket, "lead", "x") })
	takeAway := request(func(w *world, ticket string) { w.takeAway(ticket) })
	failure := errors.New("no disk")
	for name, c := range map[string]struct {
		meanwhile func(w *world, s *serving, ticket string) // then the context ends; nil is that it does not
		returns   error
		why       error  // nil is that it is not called
		held      bool   // the handoff was still this worker's when it was called
		last      string // append
	}{
		"rolled back":          {nil, worker.RollBack("not worth it", nil), worker.ErrReturned, true, "rolled_back"},
		"returned":             {rollBackRequest, failure, worker.ErrReturned, true, "rolled_back"},
		"returned, with words": {rollBackRequest, worker.RollBack("half", nil), worker.ErrReturned, true, "rolled_back"},
		"cancelled":            {cancel, failure, worker.ErrCancelled, true, "released+closed"},
		"lost":                 {takeAway, failure, broker.ErrLeaseLost, false, "accepted+started"},
		"cut off": {func(w *world, s *serving, _ string) {
			s.m.Disconnect()
			pass(time.Minute)
			s.m.Reconnect()
		}, failure, broker.ErrLeaseLost, true, "released+offered"},

		"completed":          {nil, nil, nil, false, "completed"},
		"failed":             {nil, failure, nil, false, "failed"},
		"refused":            {nil, worker.Reject("no", ""), nil, false, "rejected"},
		"escalated":          {nil, worker.Escalate("two ways", ""), nil, false, "escalated+offered"},
		"returned, and done": {rollBackRequest, nil, nil, false, "completed"},
		"lost, and done":     {takeAway, nil, nil, false, "result_parked"},
		"shut down":          {func(_ *world, s *serving, _ string) { s.stop() }, failure, nil, false, "released+offered"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				var whys []error
				held := false
				s := w.serve(worker.Config{}, tidy{worker.HandlerFunc(func(ctx context.Context, _ worker.Handoff) (protocol.Result, error) {
					if c.meanwhile != nil {
						<-ctx.Done()
					}
					return protocol.Result{}, c.returns
				}), func(_ context.Context, h worker.Handoff, why error) error {
					whys = append(whys, why)
					held = w.status(h.Ticket).Fence == h.Fence
					return nil
				}})
				ticket := w.submit(nil)
				synctest.Wait()
				if c.meanwhile != nil {
					c.meanwhile(w, s, ticket)
				}
				pass(worker.DrainTimeoutDefault + time.Second)
				s.stop()
				pass(worker.DrainTimeoutDefault + time.Second)
				if c.why == nil && len(whys) > 0 || c.why != nil && (len(whys) == 0 || !errors.Is(whys[0], c.why)) || held != c.held {
					t.Errorf("called with %v, held %t; want %v, %t", whys, held, c.why, c.held)
				}
				if events := w.events(ticket); !strings.Contains(events+" ", " "+c.last+" ") {
					t.Errorf("events %s, want %s", events, c.last)
				}
			})
		})
	}
}

// A handler that never began has nothing to put away.
func TestNoCleanupOfWhatWasNotBegun(t *testing.T) {
	inBubble(t, func(w *world) {
		s := w.serve(worker.Config{}, asking{tidy{done, func(context.Context, worker.Handoff, error) error {
			t.Error("cleaned up")
			return nil
		}}, func(context.Context, worker.Handoff) (protocol.Ack, error) { return protocol.Ack{}, errors.New("no") }})
		w.submit(nil)
		synctest.Wait()
		if s.Stats().Failed != 1 {
			t.Errorf("stats %+v", s.Stats())
		}
	})
}

// What goes wrong in it keeps neither the handoff nor the worker.
func TestCleanupThatFails(t *testing.T) {
	for name, c := range map[string]struct {
		cleanup func(ctx context.Context) error
		words   string
		took    time.Duration
	}{
		"an error":          {func(context.Context) error { return errors.New("branch is locked") }, "branch is locked", 0},
		"a panic":           {func(context.Context) error { panic("index out of range") }, "index out of range", 0},
		"goexit":            {func(context.Context) error { runtime.Goexit(); return nil }, "ended its goroutine", 0},
		"slow":              {func(context.Context) error { time.Sleep(4 * time.Second); return nil }, "", 4 * time.Second},
		"until its context": {func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, "deadline exceeded", 5 * time.Second},
		"for ever":          {func(context.Context) error { time.Sleep(time.Hour); return nil }, "it goes on after 5s", 6 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				s := w.serve(worker.Config{CleanupTimeout: 5 * time.Second, AbandonTimeout: -1}, tidy{worker.HandlerFunc(func(context.Context, worker.Handoff) (protocol.Result, error) {
					return protocol.Result{}, worker.RollBack("not worth it", nil)
				}), func(ctx context.Context, _ worker.Handoff, _ error) error { return c.cleanup(ctx) }})
				begin := time.Now()
				ticket := w.submit(nil)
				state := w.closed(ticket)
				if took := time.Since(begin); state.Outcome != protocol.OutcomeRolledBack || took < c.took || took > c.took+2*time.Second {
					t.Errorf("after %v: %+v", took, state)
				}
				if !strings.Contains(state.Message, "not worth it") || !strings.Contains(state.Message, c.words) || (c.words != "") != strings.Contains(state.Message, "cleanup failed") {
					t.Errorf("message %q", state.Message)
				}
				if err := s.drain(); err != nil { // it waits for what is still being put away
					t.Error(err)
				}
				if took := time.Since(begin); name == "for ever" && took < time.Hour {
					t.Errorf("drained after %v", took)
				}
				if busy := s.Stats().Busy; busy != 0 {
					t.Errorf("%d slots busy", busy)
				}
			})
		})
	}
}

// The lease lives on while a worker puts its things away: nobody begins anew.
func TestBeatsWhileItCleansUp(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise()
		s := w.serve(worker.Config{CleanupTimeout: 10 * time.Minute, Lease: 3 * time.Second}, tidy{worker.HandlerFunc(func(context.Context, worker.Handoff) (protocol.Result, error) {
			return protocol.Result{}, worker.RollBack("not worth it", nil)
		}), func(context.Context, worker.Handoff, error) error { time.Sleep(9 * time.Minute); return nil }})
		ticket := w.submit(nil)
		for range 8 {
			pass(time.Minute)
			if state := w.status(ticket); state.Holder != s.Holder() || w.others() != 0 {
				t.Fatalf("state %+v", state)
			}
		}
		if state := w.closed(ticket); state.Outcome != protocol.OutcomeRolledBack || state.LeasesLost != 0 {
			t.Errorf("state %+v", state)
		}
	})
}
