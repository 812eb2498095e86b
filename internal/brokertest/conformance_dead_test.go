package brokertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// submitDeadLetter submits something and lets it fail for good.
func (r *familyKit) submitDeadLetter(p protocol.Package, agent string) broker.Head {
	r.Helper()
	head := r.submit(p)
	r.must(r.accept(agent).Fail(r.ctx, broker.Failure{Code: "no", Message: "cannot be done"}))
	return r.decide(head.Ticket)
}

func testRedriveOnce(k *kit) {
	r := k.familyKit()
	to := r.registerAgents(3)
	large := pkg("lead", to[0])
	large.Key = "redriven-" + to[0]
	large.Context.Summary = fmt.Sprintf("%0*d", protocol.InlineBytesMax, 0)
	large.Constraints.Deadline = time.Now().Add(time.Hour)
	origin := r.submitDeadLetter(large, to[0])
	again := protocol.RedriveTicket(origin.Ticket)

	// It dies at once, before the submission, or between the submission and the record.
	for _, lives := range []string{"", origin.Ticket, again} {
		worker := k.brokerOver(&failingAppends{Engine: r.Engine, lives: func(t string) bool { return t == lives }})
		if _, err := worker.Redrive(r.ctx, origin.Ticket, "", "human", false); !errors.Is(err, broker.ErrUnreachable) {
			r.Fatalf("redrive by who dies: %v", err)
		}
		if s := r.state(origin.Ticket); s.RedrivenAs != "" {
			r.Fatalf("recorded as %s before it was done", s.RedrivenAs)
		}
	}
	state, err := r.b.Redrive(r.ctx, origin.Ticket, "", "human", false)
	r.must(err)
	if state.Ticket != again || state.Origin != origin.Ticket || state.Agent != to[0] {
		r.Errorf("redriven as %s, origin %s, with %s", state.Ticket, state.Origin, state.Agent)
	}
	if s := r.state(origin.Ticket); s.RedrivenAs != again {
		r.Errorf("recorded as %q", s.RedrivenAs)
	}
	_, err = r.b.Redrive(r.ctx, origin.Ticket, to[1], "human", false)
	wantCode(k, err, protocol.CodeConflict)
	if n := len(r.entries(again)); n != 1 {
		r.Errorf("%d entries", n)
	}
	claim := r.accept(to[0])
	if len(claim.Package) < protocol.InlineBytesMax {
		r.Errorf("the package is %d bytes", len(claim.Package))
	}
	r.must(claim.Complete(r.ctx, protocol.Result{}))
	_, err = r.b.Redrive(r.ctx, again, "", "human", false)
	wantCode(k, err, protocol.CodeIllegal) // it succeeded

	// To another agent, which must exist.
	gone := r.submitDeadLetter(pkg("lead", to[0]), to[0])
	r.must(r.b.RemoveProfile(r.ctx, to[0]))
	_, err = r.b.Redrive(r.ctx, gone.Ticket, "", "human", false)
	wantCode(k, err, protocol.CodeUnknownAgent)
	if s := r.state(gone.Ticket); s.RedrivenAs != "" {
		r.Errorf("refused, and recorded as %s", s.RedrivenAs)
	}
	state, err = r.b.Redrive(r.ctx, gone.Ticket, to[1], "human", false)
	r.must(err)
	if state.Agent != to[1] {
		r.Errorf("with %s", state.Agent)
	}

	// An open handoff and a return are refused.
	open := r.submit(pkg("lead", to[1]))
	_, err = r.b.Redrive(r.ctx, open.Ticket, "", "human", false)
	wantCode(k, err, protocol.CodeIllegal)
	origin = r.submitDeadLetter(delegated(pkg(to[1], to[2])), to[2])
	r.must(r.b.EnsureReturn(r.ctx, origin))
	_, err = r.b.Cancel(r.ctx, origin.State.ReturnTicket, "human", "unread")
	r.must(err)
	_, err = r.b.Redrive(r.ctx, origin.State.ReturnTicket, "", "human", false)
	wantCode(k, err, protocol.CodeIllegal)
}

// testRedriveTrail redrives twice: the third agent reads why the first two failed.
func testRedriveTrail(k *kit) {
	r := k.familyKit()
	to := r.registerAgents(1)
	origin := r.submitDeadLetter(pkg("lead", to[0]), to[0])
	for range 2 {
		state, err := r.b.Redrive(r.ctx, origin.Ticket, "", "human", false)
		r.must(err)
		claim := r.accept(to[0])
		if claim.Ticket != state.Ticket {
			r.Fatalf("got %s, want %s", claim.Ticket, state.Ticket)
		}
		var trail []protocol.EventType
		for _, e := range claim.Trail {
			trail = append(trail, e.Event)
		}
		want := []protocol.EventType{protocol.EventFailed, protocol.EventRedriven}
		if origin.State.Origin != "" {
			want = append(want, want...)
		}
		if !slices.Equal(trail, want) {
			r.Errorf("trail %v, want %v", trail, want)
		}
		r.must(claim.Fail(r.ctx, broker.Failure{Code: "no", Message: "still not"}))
		origin = r.decide(state.Ticket)
	}
}

// testRedriveMember redrives one of a group, shared or of its own, and a whole group.
func testRedriveMember(k *kit) {
	r := k.familyKit()
	to := r.registerAgents(3)
	shared := pkg("lead", to...)
	shared.Return = &protocol.ReturnProtocol{Expected: true, Aggregation: protocol.AggregateAny, CancelRest: true}
	differing := pkg("lead")
	differing.Target, differing.Type = protocol.Target{}, ""
	for _, agent := range to {
		differing.Members = append(differing.Members, protocol.Member{Target: protocol.Target{Agent: agent}, Task: &protocol.Task{Description: "for " + agent}})
	}
	for i, p := range []protocol.Package{shared, differing} {
		group := r.submit(p)
		for _, agent := range to {
			r.must(r.accept(agent).Fail(r.ctx, broker.Failure{Code: "no"}))
		}
		for n := range to {
			r.decide(protocol.ChildTicketN(group.Ticket, n))
		}
		ended, err := r.ensureChildren(group)
		r.must(err)
		closed, _, err := r.b.Update(r.ctx, group, func(h broker.Head, q lifecycle.Query) (lifecycle.Step, error) {
			return lifecycle.MarkChildren(h.State, q, ended)
		})
		r.must(err)
		if closed.State.Outcome != protocol.OutcomeFailed {
			r.Fatalf("the group is %s, %q", closed.State.Phase, closed.State.Outcome)
		}
		member := protocol.ChildTicketN(group.Ticket, 1)
		state, err := r.b.Redrive(r.ctx, member, "", "human", false)
		r.must(err)
		if state.Agent != to[1] || state.Group != "" || state.N != 0 || state.Aggregate != nil || state.Origin != member {
			r.Errorf("the member is redriven to %s, group %q, n %d", state.Agent, state.Group, state.N)
		}
		claim := r.accept(to[1])
		if got, err := protocol.DecodePackage(claim.Package); err != nil || i == 1 && got.Task.Description != "for "+to[1] {
			r.Errorf("its task is %q, %v", got.Task.Description, err)
		}
		r.must(claim.Complete(r.ctx, protocol.Result{}))
		_, err = r.b.Redrive(r.ctx, group.Ticket, to[0], "human", false)
		wantCode(k, err, protocol.CodeConflict)
		state, err = r.b.Redrive(r.ctx, group.Ticket, "", "human", false)
		r.must(err)
		if state.Aggregate == nil || state.Aggregate.Size != 3 {
			r.Fatalf("the group is redriven as %+v", state.Aggregate)
		}
		for n, agent := range to {
			if got := r.accept(agent); got.Ticket != protocol.ChildTicketN(state.Ticket, n) {
				r.Errorf("member %d is %s", n, got.Ticket)
			}
		}
	}
}

// repeatedHeads is an engine that lists some heads twice, first with an older entry, as replicas
// do when an append comes in between.
type repeatedHeads struct {
	broker.Engine
	before map[string]broker.Entry
}

func (s *repeatedHeads) Heads(ctx context.Context, fn func(broker.Entry) error) error {
	for _, e := range s.before {
		if err := fn(e); err != nil {
			return err
		}
	}
	return s.Engine.Heads(ctx, fn)
}

func testListsWithRepeatedHeads(k *kit) {
	r := k.familyKit()
	to := r.registerAgents(2)
	s := &repeatedHeads{Engine: r.Engine, before: map[string]broker.Entry{}}
	b := k.brokerOver(s)
	note := func(ticket string) {
		e, err := r.Last(r.ctx, ticket, 0)
		r.must(err)
		s.before[ticket] = e
	}
	waits := r.submit(pkg("lead", to[0]))
	note(waits.Ticket)
	claim := r.accept(to[0])
	done := r.submit(pkg("lead", to[0]))
	note(done.Ticket)
	r.must(r.accept(to[0]).Complete(r.ctx, protocol.Result{}))
	dead := r.submitDeadLetter(pkg("lead", to[1]), to[1])
	note(dead.Ticket)
	_, err := r.b.Redrive(r.ctx, dead.Ticket, "", "human", false)
	r.must(err)

	inbox, err := b.Inbox(r.ctx, to[0])
	r.must(err)
	if len(inbox) != 1 || inbox[0].State.Ticket != claim.Ticket || inbox[0].Why != lifecycle.InboxHeld {
		r.Errorf("the inbox is %+v, want %s once, held", inbox, claim.Ticket)
	}
	letters, err := b.DeadLetters(r.ctx, func(s protocol.State) bool { return s.Agent == to[1] })
	r.must(err)
	if len(letters) != 1 || letters[0].RedrivenAs == "" {
		r.Errorf("dead letters %+v, want the one, redriven", letters)
	}
}

func testDismissOnce(k *kit) {
	r := k.familyKit()
	to := r.registerAgents(1)
	head := r.submit(pkg("missing-"+to[0], to[0])) // a source without a queue: a person sees the result
	_, err := r.b.Dismiss(r.ctx, head.Ticket, "human", "")
	wantCode(k, err, protocol.CodeIllegal)
	r.must(r.accept(to[0]).RollBack(r.ctx, "not mine", nil))
	listed := func() bool {
		inbox, err := r.b.Inbox(r.ctx, protocol.Human)
		r.must(err)
		return slices.ContainsFunc(inbox, func(w broker.Waiting) bool { return w.State.Ticket == head.Ticket })
	}
	if !listed() {
		r.Error("the inbox does not list it")
	}
	for range 2 {
		state, err := r.b.Dismiss(r.ctx, head.Ticket, "human", "seen")
		r.must(err)
		if state.Inbox != "" {
			r.Errorf("it is still in the inbox of %q", state.Inbox)
		}
	}
	if listed() || len(r.entries(head.Ticket)) != 4 {
		r.Errorf("listed %t after %v", listed(), r.entries(head.Ticket))
	}
	dead, err := r.b.DeadLetters(r.ctx, func(s protocol.State) bool { return s.Ticket == head.Ticket })
	r.must(err)
	if len(dead) != 1 {
		r.Errorf("%d dead letters", len(dead))
	}
}
