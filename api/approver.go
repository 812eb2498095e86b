package api

import (
	"context"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// Approver decides about handoffs that wait for an approval.
type Approver interface {
	// Approve lets the agent that a gate names have the handoff, on behalf of the caller: the
	// approver, one above it, or a person. Others are refused (CodeForbidden), and so are its source
	// and that agent.
	Approve(ctx context.Context, verdict Verdict) (protocol.State, error)
	// Deny ends a handoff that waits for an approval. The verdict has a reason.
	Deny(ctx context.Context, verdict Verdict) (protocol.State, error)
	// Approvals returns the handoffs that wait for an approval of the caller, oldest change first.
	// Without an index the heads of all handoffs are read for an operator, and for others the error
	// is broker.ErrNoAnswer.
	Approvals(ctx context.Context) ([]protocol.State, error)
}

// Verdict is what an approver says to a handoff that waits for an approval.
type Verdict struct {
	Ticket string
	// Agent is the one that the approver was asked about. Another one by then is a conflict; empty is
	// the one that the handoff is for now.
	Agent string
	// Any approves every agent, so that a reroute asks no more.
	Any bool
	// Reason is why it is denied, or a comment.
	Reason string
}

// Approve implements Approver.
func (c *Session) Approve(ctx context.Context, v Verdict) (protocol.State, error) {
	return c.decide(ctx, "Approve", v, c.s.b.Approve)
}

// Deny implements Approver.
func (c *Session) Deny(ctx context.Context, v Verdict) (protocol.State, error) {
	return c.decide(ctx, "Deny", v, c.s.b.Deny)
}

// decide gives a verdict on a handoff that the caller may see. The core knows who may.
func (c *Session) decide(ctx context.Context, operation string, v Verdict,
	decide func(context.Context, string, broker.ApprovalAnswer) (protocol.State, error)) (protocol.State, error) {
	ticket, err := c.locate(ctx, operation, v.Ticket)
	if err != nil {
		return protocol.State{}, err
	}
	return decide(ctx, ticket, broker.ApprovalAnswer{By: c.caller.Name, Agent: v.Agent, Any: v.Any, Reason: v.Reason})
}

// Approvals implements Approver.
func (c *Session) Approvals(ctx context.Context) ([]protocol.State, error) {
	if err := c.may("Approvals"); err != nil {
		return nil, err
	}
	waiting, err := ask.InboxWithin(ctx, c.s.b, c.s.cfg.Index, c.caller.Name, c.caller.seesAll())
	var states []protocol.State
	for _, w := range waiting {
		if w.Why == lifecycle.InboxApproval {
			states = append(states, w.State)
		}
	}
	return states, err
}
