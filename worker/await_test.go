package worker_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// A handler that waits holds no slot, is charged no attempt, and finds the
// returns when it runs again: in the order in which it has handed off, whichever
// closed first, however they ended.
func TestAwait(t *testing.T) {
	inBubble(t, func(w *world) {
		crew(w, "tester")
		slow := newWorking()
		w.serve(worker.Config{Agent: "slow"}, slow)
		runs := 0
		s := w.serve(worker.Config{}, worker.HandlerFunc(func(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
			if h.Package.Task.Description == "something else" {
				return protocol.Result{}, nil
			}
			runs++
			first, err1 := h.HandOff(ctx, delegate("slow", "x"))
			second, err2 := h.HandOff(ctx, delegate("tester", "x"))
			if err := errors.Join(err1, err2); err != nil {
				return protocol.Result{}, err
			}
			if _, there := h.Return(first); !there {
				return protocol.Result{}, worker.Await(first, second)
			}
			if len(h.Returns) != 2 || h.Returns[0].HandoffID != first || h.Returns[0].Status != protocol.ReturnFailed || h.Attempt != 1 {
				t.Errorf("attempt %d, returns %+v", h.Attempt, h.Returns)
			}
			ret, _ := h.Return(second)
			return protocol.Result{Body: ret.Result.Body}, nil
		}))
		ticket := w.submit(nil)
		pass(10 * time.Minute)
		if state := w.status(ticket); state.Held() || state.Phase != protocol.Conditional || s.Stats().Suspended != 1 || s.Stats().Busy != 0 {
			t.Errorf("state %+v, stats %+v", state, s.Stats())
		}
		w.closed(w.submit(func(p *protocol.Package) { p.Task.Description = "something else" }))
		slow.end <- worker.Permanent(errors.New("no"))
		state := w.closed(ticket)
		result, _, err := w.b.Result(w.ctx, ticket)
		if state.AttemptsTotal != 1 || runs != 2 || err != nil || string(result.Body) != `"tester did: x"` {
			t.Errorf("%d runs, state %+v, result %s, %v", runs, state, result.Body, err)
		}
	})
}

// Without names it waits for all; rounds of it are allowed; and groups and
// escalations can be waited for like delegations.
func TestAwaitInRounds(t *testing.T) {
	inBubble(t, func(w *world) {
		crew(w, "tester", "writer", "boss")
		w.register(protocol.Profile{ID: "coder", EscalatesTo: "boss"})
		w.serve(worker.Config{}, worker.HandlerFunc(func(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
			group := protocol.Package{Target: protocol.Target{Agents: []string{"tester", "writer"}}, Reason: "all of you", Task: protocol.Task{Description: "x"}}
			if _, err := h.HandOff(ctx, group); err != nil {
				return protocol.Result{}, err
			}
			if len(h.Returns) == 0 {
				return protocol.Result{}, worker.Await()
			}
			up := protocol.Package{Type: protocol.Escalation, Reason: "which one?", Task: protocol.Task{Description: "choose"}, Audit: protocol.Audit{DecisionRationale: "they differ"},
				Return: &protocol.ReturnProtocol{Expected: true, Wait: "block"}}
			choice, err := h.HandOff(ctx, up)
			if err != nil {
				return protocol.Result{}, err
			}
			ret, there := h.Return(choice)
			if !there {
				return protocol.Result{}, worker.Await(choice)
			}
			if len(h.Returns) != 2 || len(h.Returns[0].Members) != 2 || h.Returns[0].Outcome != protocol.OutcomeSuccess {
				t.Errorf("returns %+v", h.Returns)
			}
			return protocol.Result{Body: ret.Result.Body}, nil
		}))
		begin := time.Now()
		ticket := w.submit(nil)
		w.closed(ticket)
		result, state, err := w.b.Result(w.ctx, ticket)
		if err != nil || string(result.Body) != `"boss did: choose"` || state.AttemptsTotal != 1 || state.Children.Count != 2 {
			t.Errorf("result %s, state %+v, %v", result.Body, state, err)
		}
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// The end of a group that expects no return wakes its parent at once, too.
func TestAwaitAGroupThatReturnsNothing(t *testing.T) {
	inBubble(t, func(w *world) {
		crew(w, "tester")
		slow := newWorking()
		w.serve(worker.Config{Agent: "slow"}, slow)
		w.serve(worker.Config{}, worker.HandlerFunc(func(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
			group := protocol.Package{Target: protocol.Target{Agents: []string{"tester", "slow"}}, Reason: "all of you", Task: protocol.Task{Description: "x"}}
			if _, err := h.HandOff(ctx, group); err != nil || len(h.Returns) > 0 {
				return protocol.Result{}, err
			}
			return protocol.Result{}, worker.Await()
		}))
		ticket := w.submit(nil)
		pass(20 * time.Minute)
		begin := time.Now()
		slow.end <- nil
		w.closed(ticket)
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// The process that waits may be another than the one that goes on.
func TestAwaitSurvivesTheWorker(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise()
		slow := newWorking()
		w.serve(worker.Config{Agent: "slow"}, slow)
		handle := worker.HandlerFunc(func(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
			ticket, err := h.HandOff(ctx, delegate("slow", "x"))
			if err != nil {
				return protocol.Result{}, err
			}
			if _, there := h.Return(ticket); !there {
				return protocol.Result{}, worker.Await(ticket)
			}
			return protocol.Result{}, nil
		})
		first := w.serve(worker.Config{}, handle)
		ticket := w.submit(nil)
		pass(time.Second)
		if err := first.drain(); err != nil {
			t.Error(err)
		}
		slow.end <- nil
		pass(5 * time.Second)
		w.serve(worker.Config{}, handle)
		if state := w.closed(ticket); state.Outcome != protocol.OutcomeSuccess || state.Children.Count != 1 || state.AttemptsTotal != 1 {
			t.Errorf("state %+v", state)
		}
	})
}

// What cannot be waited for is a failed attempt, and does not spin.
func TestAwaitInVain(t *testing.T) {
	for name, await := range map[string]func(ctx context.Context, h worker.Handoff) error{
		"nothing": func(context.Context, worker.Handoff) error { return worker.Await() },
		"a stranger": func(_ context.Context, h worker.Handoff) error {
			return worker.Await(h.Ticket)
		},
		"what goes with the result": func(ctx context.Context, h worker.Handoff) error {
			ticket, err := h.HandOff(ctx, h.Continue("tester"))
			if _, waits := h.Wait(ctx, ticket); !errors.Is(waits, &protocol.Error{Code: protocol.CodeIllegal}) {
				return errors.Join(err, waits)
			}
			return worker.Await(ticket)
		},
		"what has returned": func(ctx context.Context, h worker.Handoff) error {
			ticket, err := h.HandOff(ctx, delegate("tester", "x"))
			return errors.Join(err, worker.Await(ticket))
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				crew(w, "tester")
				runs := 0
				w.serve(worker.Config{}, worker.HandlerFunc(func(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
					runs++
					return protocol.Result{}, await(ctx, h)
				}))
				one := 1
				ticket := w.submit(func(p *protocol.Package) {
					p.Policy.MaxAttempts, p.Policy.OnExhausted = &one, new(protocol.ExhaustedFail)
				})
				if state := w.closed(ticket); state.Outcome != protocol.OutcomeFailed || runs > 2 {
					t.Errorf("%d runs, state %+v", runs, state)
				}
				changes, err := w.b.History(w.ctx, ticket)
				if err != nil {
					t.Fatal(err)
				}
				for _, c := range changes {
					for _, e := range c.Record.Events {
						if failed, ok := e.(*protocol.Failed); ok && failed.Code != "await" {
							t.Errorf("failed as %s: %s", failed.Code, failed.Message)
						}
					}
				}
			})
		})
	}
}

// A handler that waits in its slot gets the return, or the cause.
func TestWait(t *testing.T) {
	inBubble(t, func(w *world) {
		crew(w, "tester")
		slow := newWorking()
		w.serve(worker.Config{Agent: "slow"}, slow)
		var waited error
		s := w.serve(worker.Config{}, worker.HandlerFunc(func(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
			ticket, err := h.HandOff(ctx, delegate("tester", "x"))
			if err != nil {
				return protocol.Result{}, err
			}
			ret, err := h.Wait(ctx, ticket)
			if err != nil {
				return protocol.Result{}, err
			}
			if string(ret.Result.Body) != `"tester did: x"` {
				t.Errorf("return %+v", ret)
			}
			if ticket, err = h.HandOff(ctx, delegate("slow", "x")); err != nil {
				return protocol.Result{}, err
			}
			_, waited = h.Wait(context.WithoutCancel(ctx), ticket)
			return protocol.Result{}, waited
		}))
		ticket := w.submit(nil)
		pass(5 * time.Second)
		if s.Stats().Busy != 1 {
			t.Errorf("stats %+v", s.Stats())
		}
		if _, err := w.b.Cancel(w.ctx, ticket, "lead", "changed my mind"); err != nil {
			t.Fatal(err)
		}
		if state := w.closed(ticket); state.Outcome != protocol.OutcomeCancelled || !errors.Is(waited, worker.ErrCancelled) {
			t.Errorf("waited: %v, state %+v", waited, state)
		}
	})
}

// In a test of a handler reports go nowhere, and so does what it hands off.
func TestHandOffWithoutAnEngine(t *testing.T) {
	h := worker.Handoff{Ticket: protocol.NewTicket(), Agent: "coder"}
	ticket, err := h.HandOff(t.Context(), h.Continue("tester"))
	if _, bad := protocol.ParseTicket(ticket); err != nil || bad != nil {
		t.Errorf("%q, %v", ticket, err)
	}
	if _, err := h.Wait(t.Context(), ticket); err == nil {
		t.Error("waited for nothing")
	}
}
