package supervisor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/protocol"
)

// delegate makes a package a delegation that waits for at most an hour.
func delegate(p *protocol.Package) {
	p.Type = protocol.Delegation
	p.Return = &protocol.ReturnProtocol{TimeoutMS: time.Hour.Milliseconds()}
}

// The return of a delegation is work for its source: it claims and acknowledges
// it, and a return expects none itself (document 1 §4).
func TestDelegationReturns(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise(supervisor.Config{})
		w.agent("lead", nil)
		w.agent("coder", nil)
		lead, coder := w.holder("lead", staying), w.holder("coder", staying)
		ticket := w.submit(delegate)
		w.complete(w.work(coder))
		state := w.closed(ticket)
		if state.Phase != protocol.Complete || state.ReturnTicket == "" {
			t.Fatalf("phase %s, return ticket %q", state.Phase, state.ReturnTicket)
		}
		claim := w.work(lead)
		pkg, err := protocol.DecodePackage(claim.Package)
		if err != nil {
			t.Fatal(err)
		}
		r := pkg.Returned
		if r == nil || r.HandoffID != ticket || r.Status != protocol.ReturnSuccess || r.FromAgent != "coder" || string(r.Result.Body) != `"done"` {
			t.Fatalf("the return is %+v", r)
		}
		w.complete(claim)
		state = w.until(ticket, func(s protocol.State) bool { return s.Phase == protocol.PhaseReturned })
		if state.Outcome != protocol.OutcomeSuccess {
			t.Errorf("outcome %s", state.Outcome)
		}
		w.want(ticket, "0s submitted offered", "0s accepted started", "0s completed return_sent", "30ms returned")
		if s := w.closed(claim.Ticket); s.ReturnTicket != "" || s.Phase != protocol.Complete {
			t.Errorf("the return is %s, with a return %q of its own", s.Phase, s.ReturnTicket)
		}
	})
}

// A source that serves no queue reads its return by ticket, and nothing is left
// to do; one that is registered and away gets it when it is back.
func TestReturnToWhoIsAway(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise(supervisor.Config{})
		w.agent("coder", nil)
		coder := w.holder("coder", staying)
		unknown := w.submit(delegate)
		w.complete(w.work(coder))
		pass(time.Minute)
		w.want(unknown, "0s submitted offered", "0s accepted started", "0s completed")
		if r, err := w.b.Return(w.ctx, unknown); err != nil || r.Status != protocol.ReturnSuccess {
			t.Errorf("return %+v, %v", r, err)
		}
		w.agent("lead", nil)
		away := w.submit(delegate)
		w.complete(w.work(coder))
		pass(24 * time.Hour)
		w.complete(w.work(w.holder("lead", staying)))
		w.complete(w.work(w.holder("lead", staying))) // that of the first: its source is an agent now
		for _, ticket := range []string{unknown, away} {
			w.until(ticket, func(s protocol.State) bool { return s.Phase == protocol.PhaseReturned })
		}
	})
}

// A delegation that is not done in time returns too (document 1 §4.2).
func TestReturnTimeout(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise(supervisor.Config{})
		w.agent("lead", nil)
		w.agent("coder", nil)
		lead := w.holder("lead", staying)
		w.holder("coder", staying)
		ticket := w.submit(delegate)
		claim := w.work(lead)
		pkg, _ := protocol.DecodePackage(claim.Package)
		if pkg.Returned == nil || pkg.Returned.Status != protocol.ReturnTimeout {
			t.Errorf("the return is %+v", pkg.Returned)
		}
		state := w.closed(ticket)
		if state.Reason != "return_timeout" || state.Inbox != protocol.Human {
			t.Errorf("closed by %s, in the inbox of %q", state.Reason, state.Inbox)
		}
	})
}

// What comes back to its source brings what there was of a result.
func TestRollback(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise(supervisor.Config{})
		w.agent("lead", nil)
		w.agent("coder", nil)
		lead, coder := w.holder("lead", staying), w.holder("coder", staying)
		ticket := w.submit(nil)
		claim := w.work(coder)
		if err := claim.Progress(w.ctx, protocol.Progress{Percent: 40, Details: json.RawMessage(`{"files":2}`)}); err != nil {
			t.Fatal(err)
		}
		if err := claim.RollBack(w.ctx, "the spec is wrong", &protocol.Result{Status: protocol.Partial, Body: json.RawMessage(`"half"`)}); err != nil {
			t.Fatal(err)
		}
		got := w.work(lead)
		pkg, _ := protocol.DecodePackage(got.Package)
		r := pkg.Returned
		if r == nil || r.Outcome != protocol.OutcomeRolledBack || string(r.Result.Body) != `"half"` || string(r.Progress.Details) != `{"files":2}` || r.Message != "the spec is wrong" {
			t.Errorf("the return is %+v", r)
		}
		if s := w.closed(ticket); s.Phase != protocol.PhaseReturned || s.Outcome != protocol.OutcomeRolledBack {
			t.Errorf("%s, %s", s.Phase, s.Outcome)
		}
	})
}

// group submits one package to n agents of the names a0, a1, …
func (w *world) group(n int, ret protocol.ReturnProtocol) (ticket string, holders []protocol.Holder) {
	w.Helper()
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("a%d", i))
		w.agent(names[i], nil)
		holders = append(holders, w.holder(names[i], staying))
	}
	ret.Expected = true
	return w.submit(func(p *protocol.Package) {
		p.Type, p.Target, p.Return = protocol.Broadcast, protocol.Target{Agents: names}, &ret
	}), holders
}

// A group closes as soon as its outcome is certain, whatever the others do
// (document 1 §2.3).
func TestAggregation(t *testing.T) {
	for _, c := range []struct {
		mode    protocol.Aggregation
		ends    string // of the members in their order: + success, - failure
		outcome protocol.Outcome
	}{
		{protocol.AggregateAll, "+++", protocol.OutcomeSuccess},
		{protocol.AggregateAll, "+-", protocol.OutcomeFailed},
		{protocol.AggregateAny, "-+", protocol.OutcomeSuccess},
		{protocol.AggregateAny, "---", protocol.OutcomeFailed},
		{protocol.AggregateMajority, "++", protocol.OutcomeSuccess},
		{protocol.AggregateMajority, "--", protocol.OutcomeFailed},
	} {
		t.Run(string(c.mode)+c.ends, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.supervise(supervisor.Config{})
				w.agent("lead", nil)
				ticket, holders := w.group(3, protocol.ReturnProtocol{Aggregation: c.mode, CancelRest: true})
				for i, end := range c.ends {
					if s, _ := w.b.Status(w.ctx, ticket); s.Closed {
						t.Fatalf("closed as %s after %d ends", s.Outcome, i)
					}
					claim := w.work(holders[i])
					if end == '+' {
						w.complete(claim)
					} else if err := claim.Fail(w.ctx, broker.Failure{Code: "no"}); err != nil {
						t.Fatal(err)
					}
					pass(100 * time.Millisecond)
				}
				state := w.closed(ticket)
				if state.Outcome != c.outcome {
					t.Errorf("closed as %s (%s)", state.Outcome, state.Message)
				}
				pass(2 * time.Second)
				members, err := w.b.Members(w.ctx, state)
				if err != nil {
					t.Fatal(err)
				}
				for i, m := range members {
					if want := fmt.Sprintf("a%d", i); m.Agent != want || !m.Closed {
						t.Errorf("member %d is %+v, want %s, closed", i, m, want)
					}
				}
				claim := w.work(w.holder("lead", staying)) // one return for all of them
				pkg, _ := protocol.DecodePackage(claim.Package)
				if pkg.Returned == nil || len(pkg.Returned.Members) != 3 {
					t.Errorf("the return is %+v", pkg.Returned)
				}
			})
		})
	}
}

// A group's return is taken in while its last member closes: the supervisor hears of both at
// once, and settles the return.
func TestReturnTakenInAsTheLastMemberCloses(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise(supervisor.Config{})
		w.agent("lead", nil)
		ticket, holders := w.group(2, protocol.ReturnProtocol{Aggregation: protocol.AggregateAny})
		last := w.work(holders[1])
		w.complete(w.work(holders[0]))
		w.closed(ticket)
		w.work(w.holder("lead", staying))
		w.complete(last)
		pass(100 * time.Millisecond)
		s, err := w.b.Status(w.ctx, ticket)
		if err != nil || s.Phase != protocol.PhaseReturned {
			t.Errorf("%v; the group is %s, want returned", err, s.Phase)
		}
	})
}

// A handoff that waits for its children holds nobody's slot, and is woken by the
// last of them, as the same attempt.
func TestWaitForChildren(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise(supervisor.Config{})
		for _, id := range []string{"coder", "tester"} {
			w.agent(id, nil)
		}
		coder, tester := w.holder("coder", staying), w.holder("tester", staying)
		ticket := w.submit(nil)
		claim := w.work(coder)
		for n := range 2 {
			pkg := protocol.Package{Type: protocol.Delegation, Target: protocol.Target{Agent: "tester"}, Reason: "test it",
				Task: protocol.Task{Description: "test"}, Return: &protocol.ReturnProtocol{TimeoutMS: 60_000, Wait: "block"}}
			if _, err := claim.HandOff(w.ctx, broker.Child{N: n, Package: pkg}); err != nil {
				t.Fatal(err)
			}
		}
		if suspended, err := claim.Suspend(w.ctx, 0, 1); err != nil || !suspended {
			t.Fatalf("suspended %t, %v", suspended, err)
		}
		w.complete(w.work(tester))
		pass(3 * time.Second)
		if s, _ := w.b.Status(w.ctx, ticket); s.Phase != protocol.Conditional || s.Held() {
			t.Fatalf("%s, held by %q, after one of two", s.Phase, s.Holder)
		}
		w.complete(w.work(tester))
		again := w.work(coder)
		if again.Ticket != ticket || again.State().Attempt != 1 {
			t.Errorf("%s, attempt %d", again.Ticket, again.State().Attempt)
		}
		returns, err := w.b.ChildReturns(w.ctx, again.State())
		if err != nil || len(returns) != 2 || returns[0].Status != protocol.ReturnSuccess {
			t.Errorf("returns %+v, %v", returns, err)
		}
		w.complete(again)
		for n := range 2 {
			w.until(w.child(ticket, n), func(s protocol.State) bool { return s.Phase == protocol.PhaseReturned })
		}
	})
}

// withholding is an engine that takes no append of one ticket: what a worker
// meets that dies just before it.
type withholding struct {
	broker.Engine
	ticket string
}

func (e *withholding) Append(ctx context.Context, ticket string, after uint64, id string, says lifecycle.Attention, body []byte) (uint64, error) {
	if ticket == e.ticket {
		return 0, broker.ErrUnreachable
	}
	return e.Engine.Append(ctx, ticket, after, id, says, body)
}

// A child that was recorded by a worker that died before it could submit it is
// submitted by the first supervisor that finds it: by the announcement, or in a sweep.
func TestPromisedChildren(t *testing.T) {
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprint("supervisor comes later: ", late), func(t *testing.T) {
			inBubble(t, func(w *world) {
				if !late {
					w.supervise(supervisor.Config{})
				}
				w.agent("coder", nil)
				w.agent("tester", nil)
				ticket := w.submit(nil)
				child := protocol.ChildTicketN(ticket, 0)
				dying := brokertest.Over(t, &withholding{w.m, child})
				offers, err := dying.Pull(w.ctx, "coder", 1, time.Minute)
				if err != nil {
					t.Fatal(err)
				}
				claim, err := offers[0].Acknowledge(w.ctx, w.holder("coder", staying), protocol.Ack{Status: protocol.AckAccepted}, true)
				if err != nil {
					t.Fatal(err)
				}
				pkg := protocol.Package{Target: protocol.Target{Agent: "tester"}, Reason: "next", Task: protocol.Task{Description: "test"}}
				if err := claim.Complete(w.ctx, protocol.Result{}, broker.Child{N: 0, Package: pkg}); err != nil {
					t.Fatal(err)
				}
				if _, err := w.b.Status(w.ctx, child); err == nil {
					t.Fatal("the child is there, and should be lost")
				}
				if late {
					w.supervise(supervisor.Config{})
				}
				w.complete(w.work(w.holder("tester", staying)))
				if s := w.closed(child); s.Parent != ticket || s.N != 1 || s.Source != "coder" {
					t.Errorf("parent %s, n %d, source %s", s.Parent, s.N, s.Source)
				}
			})
		})
	}
}

// Children are cancelled with their parent if that is asked, and theirs too.
func TestCancelChildren(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise(supervisor.Config{})
		ticket, holders := w.group(5, protocol.ReturnProtocol{})
		w.complete(w.work(holders[0]))
		pass(time.Second)
		if _, err := w.b.CancelTree(w.ctx, ticket, "lead", "no longer needed"); err != nil {
			t.Fatal(err)
		}
		if s := w.closed(ticket); s.Outcome != protocol.OutcomeCancelled {
			t.Errorf("closed as %s", s.Outcome)
		}
		for n := 1; n < 5; n++ {
			if s := w.closed(protocol.ChildTicketN(ticket, n)); s.Outcome != protocol.OutcomeCancelled {
				t.Errorf("member %d closed as %s", n, s.Outcome)
			}
		}
		state := w.until(ticket, func(s protocol.State) bool { return s.Children.Closed.Len() == 5 })
		if state.Children.Succeeded.Len() != 1 {
			t.Errorf("%d succeeded", state.Children.Succeeded.Len())
		}
	})
}
