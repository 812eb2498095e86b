package api

import (
	"context"
	"encoding/json"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

// Decider is what a holder decides by itself.
type Decider interface {
	// Decide records a decision that the holder makes during the work. Over the risk that the agent
	// and the package allow, the error has CodeAutonomy and nothing is recorded.
	Decide(ctx context.Context, lease string, decision protocol.WorkDecision) (protocol.State, error)
}

// Holder claims handoffs for agents and reports on them.
//
// It serves workers that keep no more than a lease between two calls. Every call with a lease
// makes its holder present for as long as the lease lasts. A report whose lease is lost is
// broker.ErrLeaseLost, and changes nothing.
type Holder interface {
	// Claim takes the most urgent offer of an agent. Without one the error has
	// CodeNothingToClaim.
	Claim(ctx context.Context, request Claim) (Held, error)
	// Acknowledge answers an offer: accepted, rejected or conditional.
	Acknowledge(ctx context.Context, lease string, ack protocol.Ack) (protocol.State, error)
	// Heartbeat keeps a lease and returns what has changed.
	Heartbeat(ctx context.Context, request Heartbeat) (Beat, error)
	// Progress records how far the work is.
	Progress(ctx context.Context, lease string, progress protocol.Progress) (protocol.State, error)
	// Spend records what the attempt has used so far: what is more than it had said counts.
	Spend(ctx context.Context, lease string, usage protocol.Usage) (protocol.State, error)
	// Complete closes a handoff with a result. A result that breaks the rules fails the
	// attempt; one that comes after its lease was lost is kept beside the handoff,
	// and the error is a *LateResultError.
	Complete(ctx context.Context, lease string, result protocol.Result) (protocol.State, error)
	// Fail ends an attempt without a result.
	Fail(ctx context.Context, lease string, failure broker.Failure) (protocol.State, error)
	// Release puts a handoff back into its queue without charging an attempt.
	Release(ctx context.Context, lease, reason string) (protocol.State, error)
	// Escalate passes a handoff to the authority above its agent.
	Escalate(ctx context.Context, lease, rationale, assessment string) (protocol.State, error)
	// RollBackHeld returns a handoff to its source, undone, with what there is of a result.
	RollBackHeld(ctx context.Context, lease, reason string, partial *protocol.Result) (protocol.State, error)
	// HandOff hands part of the work to another agent and keeps track of it.
	HandOff(ctx context.Context, request HandOff) (Child, error)
	// Await releases a handoff until others that it has handed off have closed: those
	// named, or all of them.
	Await(ctx context.Context, lease string, tickets []string) (protocol.State, error)
}

// Claim says what is claimed and for how long.
type Claim struct {
	// Agent is the agent whose queue is read.
	Agent string
	// Wait is how long to wait for an offer; 0 takes what is there.
	Wait time.Duration
	// Lease is how long the claim lives without a heartbeat.
	Lease time.Duration
	// Accept accepts the offer at once.
	Accept bool
	// Host names the machine of the holder, for people.
	Host string
	// AckWithin is the time to acknowledge without Accept; 0 is the handoff's own.
	AckWithin time.Duration
	// Skipped, if not nil, is told of each offer that could not be claimed. refused says
	// that it was refused as unreadable; else it comes again.
	Skipped func(ticket string, refused bool, err error)
}

// Validate checks the request, as Claim does first.
func (r Claim) Validate() error {
	if err := protocol.CheckAgent("agent", r.Agent); err != nil {
		return err
	}
	if err := CheckLease(r.Lease); err != nil {
		return err
	}
	return protocol.CheckAckWithin(r.AckWithin.Milliseconds())
}

// CheckLease checks the length of a lease.
func CheckLease(lease time.Duration) error {
	if ms := lease.Milliseconds(); ms < protocol.LeaseMinMS || ms > protocol.LeaseMaxMS {
		return protocol.Errorf(protocol.CodeInvalid, "lease", "is %v; a lease is between %v and %v",
			explain.Duration(lease), explain.Millis(protocol.LeaseMinMS), explain.Millis(protocol.LeaseMaxMS))
	}
	return nil
}

// Held is a handoff that was claimed or taken.
type Held struct {
	// Lease stands for the handoff in all calls about it. It is a secret of its holder.
	Lease   string
	Agent   string
	State   protocol.State
	Expires time.Time // of the lease, without a heartbeat
	Package json.RawMessage
	Answers []protocol.Answer     // to conditions, oldest first
	Trail   []protocol.TrailEntry // what happened to the handoff before, oldest first
	// Returns are the ends of what it has handed off and waited for. ReturnsErr says why
	// they could not be read; each can be read by its own ticket.
	Returns    []protocol.Return
	ReturnsErr error
	// Children are those that it has handed off, in earlier attempts too: to adopt, by asking for
	// them again or waiting for them, or to cancel.
	Children []broker.HandedOff
}

// Heartbeat says which lease to keep, and asks for more time if Extend is not zero.
type Heartbeat struct {
	Lease  string
	Extend time.Duration
	Reason string
}

// Beat is what a heartbeat returns.
type Beat struct {
	broker.Signal
	State   protocol.State
	Expires time.Time // of the lease, without another heartbeat
}

// HandOff says what is handed off from the work on a handoff.
type HandOff struct {
	Lease string
	// Package is found by its key among what the handoff has handed off, or, without a key, by
	// itself: an attempt that asks for the same as an earlier one goes on with that.
	Package protocol.Package
	// AtOnce begins a sequential one at once, and not with the result of this handoff.
	AtOnce bool
	// Waits records that the program waits for it in its slot: a circle of those is a deadlock.
	Waits bool
}

// Child is a handoff that was handed off from the work on another.
type Child struct {
	Ticket string
	Parent protocol.State
}

// Take says which handoff is taken, by which agent and for how long.
type Take struct {
	Ticket string
	Agent  string
	// Lease is how long the handoff stays the agent's without a heartbeat.
	Lease  time.Duration
	Reason string
	// Host names the machine of the holder, for people.
	Host string
}
