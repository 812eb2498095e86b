package apitest

import (
	"errors"
	"testing"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// approvals repeats Approvals until the index answers in time.
func approvals(w *world, caller *api.Session) (waiting []protocol.State, err error) {
	for {
		if waiting, err = caller.Approvals(w.ctx); !errors.Is(err, broker.ErrNoAnswer) {
			return waiting, err
		}
	}
}

// testApprover: the agent that is asked sees the handoff, and decides; no other agent does but one
// above it.
func testApprover(t *testing.T, w *world) {
	caller := func(name string) *api.Session { return w.All(t, api.Agent(name)) }
	pkg := newPackage("coder", protocol.NewTicket())
	pkg.Approval = &protocol.Approval{Required: true, By: "stranger"}
	state, err := w.Source(t, "lead").Submit(w.ctx, pkg)
	w.must(err)
	if state.Phase != protocol.AwaitingApproval || state.Gate == nil || state.Gate.Approver != "stranger" {
		t.Fatalf("it is %s, with the gate %+v", state.Phase, state.Gate)
	}
	_, err = caller("lead").Approve(w.ctx, api.Verdict{Ticket: state.Ticket})
	w.wantCode("its source", err, protocol.CodeForbidden)
	_, err = caller("planner").Approve(w.ctx, api.Verdict{Ticket: state.Ticket})
	w.wantCode("an agent that is not asked", err, protocol.CodeNotFound)
	waiting, err := approvals(w, caller("stranger"))
	w.must(err)
	if len(waiting) != 1 || waiting[0].Ticket != state.Ticket {
		t.Errorf("the approver has %d handoffs to decide about", len(waiting))
	}
	_, err = caller("stranger").Deny(w.ctx, api.Verdict{Ticket: state.Ticket})
	w.wantCode("a denial without a reason", err, protocol.CodeMissing)
	_, err = caller("stranger").Approve(w.ctx, api.Verdict{Ticket: state.Ticket, Agent: "planner"})
	w.wantCode("of another agent", err, protocol.CodeConflict)
	state, err = caller("stranger").Approve(w.ctx, api.Verdict{Ticket: state.Ticket, Agent: "coder"})
	if w.must(err); state.Phase != protocol.Pending || state.Agent != "coder" || state.Gate != nil {
		t.Errorf("approved, it is %s with %q", state.Phase, state.Agent)
	}
	_, err = caller("stranger").Approve(w.ctx, api.Verdict{Ticket: state.Ticket})
	w.wantCode("what asks no more, to an agent that it does not concern", err, protocol.CodeNotFound)
	_, err = w.All(t, api.Local(protocol.Human)).Approve(w.ctx, api.Verdict{Ticket: state.Ticket})
	w.wantCode("what asks no more", err, protocol.CodeIllegal)
	testAboveApprover(t, w)
}

// testAboveApprover: an agent above the approver sees, lists and decides what that is asked.
func testAboveApprover(t *testing.T, w *world) {
	for agent, above := range map[string]string{"clerk": "chief", "chief": "head", "head": "", "other": ""} {
		w.must(w.Broker.PutProfile(w.ctx, protocol.Profile{ID: agent, EscalatesTo: above}))
	}
	caller := func(name string) *api.Session { return w.All(t, api.Agent(name)) }
	submit := func() string {
		pkg := newPackage("coder", protocol.NewTicket())
		pkg.Approval = &protocol.Approval{Required: true, By: "clerk"}
		state, err := w.Source(t, "lead").Submit(w.ctx, pkg)
		w.must(err)
		return state.Ticket
	}
	approved, denied := submit(), submit()
	for _, above := range []string{"chief", "head"} {
		state, err := caller(above).Status(w.ctx, approved)
		if w.must(err); state.Ticket != approved {
			t.Errorf("%s sees %+v", above, state)
		}
		waiting, err := approvals(w, caller(above))
		if w.must(err); len(waiting) != 2 {
			t.Errorf("%s has %d handoffs to decide about", above, len(waiting))
		}
	}
	_, err := caller("other").Status(w.ctx, approved)
	w.wantCode("an agent beside them", err, protocol.CodeNotFound)
	waiting, err := approvals(w, caller("other"))
	if w.must(err); len(waiting) != 0 {
		t.Errorf("an agent beside them has %d handoffs to decide about", len(waiting))
	}
	if state, err := caller("head").Approve(w.ctx, api.Verdict{Ticket: approved}); err != nil || state.Phase != protocol.Pending {
		t.Errorf("approved from above it is %s, %v", state.Phase, err)
	}
	if state, err := caller("chief").Deny(w.ctx, api.Verdict{Ticket: denied, Reason: "no"}); err != nil || state.Gate == nil && state.Outcome != protocol.OutcomeRejected {
		t.Errorf("denied from above it is %s, %v", state.Phase, err)
	}
}
