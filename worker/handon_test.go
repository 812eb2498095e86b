package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// delegate is a delegation for whose end its parent waits.
func delegate(to, what string) protocol.Package {
	return protocol.Package{Type: protocol.Delegation, Target: protocol.Target{Agent: to}, Reason: "needed", Task: protocol.Task{Description: what},
		Return: &protocol.ReturnProtocol{Expected: true, TimeoutMS: time.Hour.Milliseconds(), Wait: "block"}}
}

// crew starts a supervisor, and agents to hand off to, each of which completes
// what it gets.
func crew(w *world, agents ...string) {
	w.Helper()
	w.supervise()
	for _, agent := range agents {
		w.serve(worker.Config{Agent: agent, Concurrency: 4}, worker.HandlerFunc(func(_ context.Context, h worker.Handoff) (protocol.Result, error) {
			body, _ := json.Marshal(agent + " did: " + h.Package.Task.Description)
			return protocol.Result{Body: body}, nil
		}))
	}
}

// A sequential handoff goes with the result: recorded in the same append, and
// submitted from there under the ticket that the handler has had since.
func TestHandOffWithTheResult(t *testing.T) {
	inBubble(t, func(w *world) {
		w.register(protocol.Profile{ID: "tester"})
		var first, second string
		w.serve(worker.Config{}, worker.HandlerFunc(func(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
			pkg := h.Continue("tester")
			pkg.Task.Description = "test it"
			pkg.Context.Variables["branch"] = []byte(`"new"`)
			var err1, err2 error
			first, err1 = h.HandOff(ctx, pkg)
			pkg.Task.Description = "test it twice"
			second, err2 = h.HandOff(ctx, pkg)
			if _, err := w.b.Status(ctx, first); err == nil {
				t.Error("submitted before the result")
			}
			if string(h.Package.Context.Variables["branch"]) != `"old"` {
				t.Error("the handler's own package was changed")
			}
			return protocol.Result{}, errors.Join(err1, err2)
		}))
		ticket := w.submit(func(p *protocol.Package) {
			p.Context.Variables = map[string]json.RawMessage{"branch": []byte(`"old"`), "n": []byte(`1`)}
			p.Context.Artifacts.List = []protocol.Artifact{{Path: "plan.md"}}
		})
		w.closed(ticket)
		if events := w.events(ticket); events != "submitted+offered accepted+started handed_off+handed_off+completed" {
			t.Errorf("events %s", events)
		}
		for n, child := range []string{first, second} {
			state := w.status(child)
			if child != protocol.ChildTicketN(ticket, n) || state.Parent != ticket || state.N != n+1 || state.Source != "coder" || state.Agent != "tester" || state.Type != protocol.Sequential {
				t.Errorf("child %d: %+v", n, state)
			}
		}
		raw, err := w.b.Package(w.ctx, second)
		pkg, err2 := protocol.DecodePackage(raw)
		if err != nil || err2 != nil || pkg.Task.Description != "test it twice" || string(pkg.Context.Variables["branch"]) != `"new"` ||
			string(pkg.Context.Variables["n"]) != "1" || pkg.Context.Artifacts.List[0].Path != "plan.md" {
			t.Errorf("package %s, %v %v", raw, err, err2)
		}
	})
}

// Where the attempt fails nothing was handed on, and the next one is free to
// hand on something else.
func TestHandOffWithAFailure(t *testing.T) {
	inBubble(t, func(w *world) {
		crew(w, "tester", "writer")
		var tickets []string
		w.serve(worker.Config{}, worker.HandlerFunc(func(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
			to := "tester"
			if h.Attempt == 2 {
				to = "writer"
			}
			ticket, err := h.HandOff(ctx, h.Continue(to))
			tickets = append(tickets, ticket)
			if h.Attempt == 1 {
				err = errors.New("no disk")
			}
			return protocol.Result{}, err
		}))
		ticket := w.submit(nil)
		w.closed(ticket)
		if state := w.closed(tickets[1]); tickets[0] != tickets[1] || state.Agent != "writer" {
			t.Errorf("tickets %v, state %+v", tickets, state)
		}
	})
}

// What is wrong with a package the handler reads at once, and its ordinal is
// free again.
func TestHandOffOfAPackageThatIsWrong(t *testing.T) {
	inBubble(t, func(w *world) {
		crew(w, "tester")
		var codes []protocol.Code
		w.serve(worker.Config{}, worker.HandlerFunc(func(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
			noTimeout := delegate("tester", "x")
			noTimeout.Return = nil
			for _, pkg := range []protocol.Package{h.Continue("coder"), h.Continue("END"), h.Continue("no spaces"), {}, delegate("nobody", "x"), noTimeout} {
				var refused *protocol.Error
				if _, err := h.HandOff(ctx, pkg); !errors.As(err, &refused) {
					t.Errorf("handed off to %v: %v", pkg.Target, err)
					continue
				}
				codes = append(codes, refused.Code)
			}
			ticket, err := h.HandOff(ctx, h.Continue("tester"))
			if want := protocol.ChildTicketN(h.Ticket, 0); ticket != want {
				t.Errorf("ticket %s, want %s", ticket, want)
			}
			return protocol.Result{}, err
		}))
		w.closed(w.submit(nil))
		want := []protocol.Code{protocol.CodeConflict, protocol.CodeUnknownAgent, protocol.CodeInvalid, protocol.CodeMissing, protocol.CodeUnknownAgent, protocol.CodeMissing}
		if !slices.Equal(codes, want) {
			t.Errorf("codes %v, want %v", codes, want)
		}
	})
}

func TestAtMostSoManyGoWithAResult(t *testing.T) {
	inBubble(t, func(w *world) {
		w.register(protocol.Profile{ID: "tester"})
		w.serve(worker.Config{}, worker.HandlerFunc(func(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
			for range broker.HandedOffAtOnceMax {
				if _, err := h.HandOff(ctx, h.Continue("tester")); err != nil {
					return protocol.Result{}, err
				}
			}
			if _, err := h.HandOff(ctx, h.Continue("tester")); !errors.Is(err, &protocol.Error{Code: protocol.CodeTooLarge}) {
				t.Errorf("one too many: %v", err)
			}
			return protocol.Result{}, nil
		}))
		if state := w.closed(w.submit(nil)); state.Children.Count != broker.HandedOffAtOnceMax {
			t.Errorf("%d were handed off", state.Children.Count)
		}
	})
}

// Delegations are there before HandOff returns. A further attempt that makes the
// same calls, in whatever order, sends nothing again; what is not the same call
// is a new handoff.
func TestHandOffOnceOverAttempts(t *testing.T) {
	inBubble(t, func(w *world) {
		crew(w, "tester", "writer")
		var tickets [3][]string
		w.serve(worker.Config{}, worker.HandlerFunc(func(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
			calls := []string{"tester", "tester", "writer"}
			if h.Attempt == 2 {
				slices.Reverse(calls)
			}
			if h.Attempt == 3 {
				calls = append(calls, "writer")
			}
			for _, to := range calls {
				ticket, err := h.HandOff(ctx, delegate(to, "x"))
				if err != nil {
					t.Error(err)
				}
				if state := w.status(ticket); state.Agent != to || state.Type != protocol.Delegation {
					t.Errorf("handed off to %s: %+v", to, state)
				}
				tickets[h.Attempt-1] = append(tickets[h.Attempt-1], ticket)
			}
			if h.Attempt < 3 {
				return protocol.Result{}, errors.New("again")
			}
			return protocol.Result{}, nil
		}))
		ticket := w.submit(nil)
		if state := w.closed(ticket); state.Attempt != 3 || state.Children.Count != 4 {
			t.Errorf("state %+v", state)
		}
		first := tickets[0]
		if want := []string{first[2], first[0], first[1]}; !slices.Equal(tickets[1], want) {
			t.Errorf("the second attempt got %v, want %v", tickets[1], want)
		}
		if third := tickets[2]; !slices.Equal(third[:3], first) || third[3] != protocol.ChildTicketN(ticket, 3) {
			t.Errorf("the third attempt got %v after %v", third, first)
		}
	})
}

// Another agent that gets the handoff means its own calls, though they look like
// those of the agent before.
func TestHandOffAfterAReroute(t *testing.T) {
	inBubble(t, func(w *world) {
		crew(w, "tester")
		var tickets []string
		handle := func(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
			ticket, err := h.HandOff(ctx, delegate("tester", "x"))
			tickets = append(tickets, ticket)
			if err == nil && h.Agent == "coder" {
				err = worker.Reject("not mine", "gopher")
			}
			return protocol.Result{}, err
		}
		w.serve(worker.Config{Agent: "gopher"}, worker.HandlerFunc(handle))
		w.serve(worker.Config{}, worker.HandlerFunc(handle))
		ticket := w.submit(nil)
		if state := w.closed(ticket); state.Agent != "gopher" {
			t.Errorf("state %+v", state)
		}
		if len(tickets) != 2 || tickets[0] != protocol.ChildTicketN(ticket, 0) || tickets[1] != protocol.ChildTicketN(ticket, 1) {
			t.Errorf("tickets %v", tickets)
		}
	})
}

// A holder that has lost its lease hands off nothing.
func TestHandOffAfterTheLeaseIsLost(t *testing.T) {
	inBubble(t, func(w *world) {
		w.register(protocol.Profile{ID: "tester"})
		var handed, cause error
		w.serve(worker.Config{}, worker.HandlerFunc(func(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
			time.Sleep(time.Second)
			_, handed = h.HandOff(ctx, delegate("tester", "x"))
			cause = context.Cause(ctx)
			return protocol.Result{}, handed
		}))
		ticket := w.submit(nil)
		pass(0)
		w.takeAway(ticket)
		pass(time.Second)
		if !errors.Is(handed, broker.ErrLeaseLost) || !errors.Is(cause, broker.ErrLeaseLost) || w.status(ticket).Children != nil {
			t.Errorf("handed off: %v, cause %v, state %+v", handed, cause, w.status(ticket))
		}
	})
}

// The engine is away for a while: the hand-off waits for it, and is one.
func TestHandOffWhileTheEngineIsAway(t *testing.T) {
	inBubble(t, func(w *world) {
		w.register(protocol.Profile{ID: "tester"})
		m := w.m.Connect()
		w.serveOver(m, brokerOver(t, m), worker.Config{}, worker.HandlerFunc(func(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
			m.Disconnect()
			time.AfterFunc(20*time.Second, m.Reconnect)
			_, err := h.HandOff(ctx, delegate("tester", "x"))
			return protocol.Result{}, err
		}))
		if state := w.closed(w.submit(nil)); state.Outcome != protocol.OutcomeSuccess || state.Children.Count != 1 {
			t.Errorf("state %+v", state)
		}
	})
}

// A handler asks before it has accepted: nothing can follow from that.
func TestHandOffBeforeTheAcceptance(t *testing.T) {
	inBubble(t, func(w *world) {
		w.register(protocol.Profile{ID: "tester"})
		w.serve(worker.Config{}, asking{done, func(ctx context.Context, h worker.Handoff) (protocol.Ack, error) {
			if _, err := h.HandOff(ctx, delegate("tester", "x")); !errors.Is(err, &protocol.Error{Code: protocol.CodeIllegal}) {
				t.Errorf("handed off: %v", err)
			}
			return protocol.Ack{Status: protocol.AckAccepted}, nil
		}})
		w.closed(w.submit(nil))
	})
}

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
