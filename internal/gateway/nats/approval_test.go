package natsgateway_test

import (
	"errors"
	"testing"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	natsgateway "github.com/agenthandoff/handoff/internal/gateway/nats"
	"github.com/agenthandoff/handoff/protocol"
)

// An untrusted agent decides about what it is asked for, and about nothing else.
func TestApprovalsThroughGateway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.register("coder", "lead", "spy", "planner", "head")
	if err := w.b.PutProfile(t.Context(), protocol.Profile{ID: "lead", EscalatesTo: "head"}); err != nil {
		t.Fatal(err)
	}
	w.open(natsgateway.Config{})
	pkg := protocol.Package{Key: "k", Target: protocol.Target{Agent: "coder"}, Reason: "r", Task: protocol.Task{Description: "t"},
		Approval: &protocol.Approval{Required: true, By: "lead"}}
	state, err := w.client("planner").Submit(t.Context(), pkg)
	if err != nil || state.Phase != protocol.AwaitingApproval {
		t.Fatalf("%s, %v", state.Phase, err)
	}
	for _, c := range []struct {
		agent string
		code  protocol.Code
	}{{"spy", protocol.CodeNotFound}, {"planner", protocol.CodeForbidden}, {"coder", protocol.CodeForbidden}} {
		_, approved := w.client(c.agent).Approve(t.Context(), api.Verdict{Ticket: state.Ticket})
		_, denied := w.client(c.agent).Deny(t.Context(), api.Verdict{Ticket: state.Ticket, Reason: "no"})
		for _, err := range []error{approved, denied} {
			if !errors.Is(err, &protocol.Error{Code: c.code}) {
				t.Errorf("%s: %v, want the code %s", c.agent, err, c.code)
			}
		}
	}
	if seen, err := w.client("head").Status(t.Context(), state.Ticket); err != nil || seen.Gate.Approver != "lead" {
		t.Errorf("above the approver: %+v, %v", seen.Gate, err)
	}
	if _, err := w.client("head").Deny(t.Context(), api.Verdict{Ticket: state.Ticket}); !errors.Is(err, &protocol.Error{Code: protocol.CodeMissing}) {
		t.Errorf("a denial from above, without a reason: %v", err)
	}
	if _, err := w.client("lead").Approvals(t.Context()); !errors.Is(err, broker.ErrNoAnswer) && !errors.Is(err, broker.ErrUnreachable) {
		t.Errorf("without an index: %v", err)
	}
	if state, err = w.client("lead").Approve(t.Context(), api.Verdict{Ticket: state.Ticket, Agent: "coder"}); err != nil || state.Phase != protocol.Pending {
		t.Fatalf("%s, %v", state.Phase, err)
	}
}
