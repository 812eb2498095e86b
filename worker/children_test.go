package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
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

// A sequential handoff is recorded at once, and begins with the result.
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
			if s := w.status(first); s.Offer != 0 {
				t.Errorf("it began before the result: %+v", s)
			}
			if _, err := h.Wait(ctx, first); !errors.Is(err, &protocol.Error{Code: protocol.CodeIllegal}) {
				t.Errorf("waited for: %v", err)
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
		if events := w.events(ticket); events != "submitted+offered accepted+started handed_off handed_off completed" {
			t.Errorf("events %s", events)
		}
		for n, child := range []string{first, second} {
			state := w.status(child)
			if child != w.child(ticket, n) || state.Parent != ticket || state.N != n+1 || state.Source != "coder" || state.Agent != "tester" || state.Type != protocol.Sequential {
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

// Where the attempt fails nothing was handed off, and the next one is free to
// hand off something else.
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
		if state := w.closed(tickets[1]); tickets[0] == tickets[1] || state.Agent != "writer" {
			t.Errorf("tickets %v, state %+v", tickets, state)
		}
	})
}

// What is wrong with a package the handler reads at once, and nothing is handed off.
func TestHandOffOfAPackageThatIsWrong(t *testing.T) {
	inBubble(t, func(w *world) {
		crew(w, "tester")
		handedOn := ""
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
			handedOn = ticket
			return protocol.Result{}, err
		}))
		if s := w.closed(w.submit(nil)); s.ChildTicket(0) != handedOn || s.Children.Count != 1 {
			t.Errorf("ticket %s, children %+v", handedOn, s.Children)
		}
		want := []protocol.Code{protocol.CodeConflict, protocol.CodeUnknownAgent, protocol.CodeInvalid, protocol.CodeMissing, protocol.CodeUnknownAgent, protocol.CodeMissing}
		if !slices.Equal(codes, want) {
			t.Errorf("codes %v, want %v", codes, want)
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
			if h.Package.Returned != nil { // it closes without their ends
				return protocol.Result{}, nil
			}
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
		if third := tickets[2]; !slices.Equal(third[:3], first) || third[3] != w.child(ticket, 3) {
			t.Errorf("the third attempt got %v after %v", third, first)
		}
	})
}

// Another agent that gets the handoff, and asks for the same, goes on with what the agent before it has
// handed off.
func TestHandOffAfterAReroute(t *testing.T) {
	inBubble(t, func(w *world) {
		crew(w, "tester")
		var tickets []string
		handle := func(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
			if h.Package.Returned != nil { // it closes without their ends
				return protocol.Result{}, nil
			}
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
		if len(tickets) != 2 || tickets[0] != w.child(ticket, 0) || tickets[1] != tickets[0] {
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
		w.serveOver(m, sessionOf(brokertest.Over(t, m)), worker.Config{}, worker.HandlerFunc(func(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
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
