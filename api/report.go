package api

import (
	"context"
	"errors"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// leaveTimeout bounds the end of a presence, which expires by itself with its lease.
const leaveTimeout = time.Second

// report resumes the claim of a lease, reports on it, and returns the state after that. A
// report is a sign of life. The lease of another agent is refused before anything is read.
func (c *Session) report(ctx context.Context, operation, lease string, report func(claim *broker.Claim) error) (protocol.State, error) {
	if err := c.may(operation); err != nil {
		return protocol.State{}, err
	}
	token, err := broker.ParseLease(lease)
	if err != nil {
		return protocol.State{}, err
	}
	if !c.caller.worksAs(token.Agent) {
		return protocol.State{}, protocol.Errorf(protocol.CodeLeaseInvalid, "lease", "is of an agent that %s does not work as", c.caller.Name)
	}
	claim, err := c.s.b.Resume(ctx, lease)
	if err != nil {
		return protocol.State{}, err
	}
	if claim.Holder.Polling { // a worker beats by itself, and says more of itself
		if err := c.s.b.Beat(ctx, claim.Holder); err != nil {
			return protocol.State{}, err
		}
	}
	err = report(claim)
	state := claim.State()
	if claim.Holder.Polling && state.Holder != claim.Holder.ID {
		c.leave(ctx, claim.Holder)
	}
	return state, err
}

// leave ends the presence of a holder that holds nothing any more, also after ctx has ended.
func (c *Session) leave(ctx context.Context, holder protocol.Holder) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	_ = c.s.b.EndPolling(ctx, holder)
}

// Acknowledge implements Holder.
func (c *Session) Acknowledge(ctx context.Context, lease string, ack protocol.Ack) (protocol.State, error) {
	return c.report(ctx, "Acknowledge", lease, func(claim *broker.Claim) error { return claim.Acknowledge(ctx, ack, true) })
}

// Heartbeat implements Holder.
func (c *Session) Heartbeat(ctx context.Context, request Heartbeat) (Beat, error) {
	var beat Beat
	state, err := c.report(ctx, "Heartbeat", request.Lease, func(claim *broker.Claim) (err error) {
		if request.Extend != 0 {
			if err := claim.Extend(ctx, request.Extend, request.Reason); err != nil {
				return err
			}
		}
		beat.Signal, err = claim.Beat(ctx)
		beat.Expires = expiry(claim.Holder)
		return err
	})
	beat.State = state
	return beat, err
}

// expiry is when the lease of a holder ends that has beaten just now.
func expiry(h protocol.Holder) time.Time {
	return time.Now().Add(time.Duration(h.LeaseMS) * time.Millisecond).UTC().Truncate(time.Second)
}

// Progress implements Holder.
func (c *Session) Progress(ctx context.Context, lease string, progress protocol.Progress) (protocol.State, error) {
	return c.report(ctx, "Progress", lease, func(claim *broker.Claim) error { return claim.Progress(ctx, progress) })
}

// Decide implements Decider.
func (c *Session) Decide(ctx context.Context, lease string, decision protocol.WorkDecision) (protocol.State, error) {
	return c.report(ctx, "Decide", lease, func(claim *broker.Claim) error { return claim.Decide(ctx, decision) })
}

// Spend implements Holder.
func (c *Session) Spend(ctx context.Context, lease string, usage protocol.Usage) (protocol.State, error) {
	return c.report(ctx, "Spend", lease, func(claim *broker.Claim) error { return claim.Spend(ctx, usage) })
}

// Complete implements Holder.
func (c *Session) Complete(ctx context.Context, lease string, result protocol.Result) (protocol.State, error) {
	reported := false
	ctx = c.bound(ctx)
	state, err := c.report(ctx, "Complete", lease, func(claim *broker.Claim) error {
		reported = true
		return claim.Complete(ctx, result)
	})
	if !errors.Is(err, broker.ErrLeaseLost) {
		return state, err
	}
	kept := reported // a claim keeps its late result itself
	if !kept {
		var unkept error
		if kept, unkept = c.s.b.ParkLate(ctx, lease, result); unkept != nil {
			return state, &LateResultError{err, unkept}
		}
	}
	if kept {
		err = &LateResultError{Lost: err}
	}
	return state, err
}

// Fail implements Holder.
func (c *Session) Fail(ctx context.Context, lease string, failure broker.Failure) (protocol.State, error) {
	return c.report(ctx, "Fail", lease, func(claim *broker.Claim) error { return claim.Fail(ctx, failure) })
}

// Release implements Holder.
func (c *Session) Release(ctx context.Context, lease, reason string) (protocol.State, error) {
	return c.report(ctx, "Release", lease, func(claim *broker.Claim) error { return claim.Release(ctx, reason, nil) })
}

// Escalate implements Holder.
func (c *Session) Escalate(ctx context.Context, lease, rationale, assessment string) (protocol.State, error) {
	return c.report(ctx, "Escalate", lease, func(claim *broker.Claim) error {
		return claim.Escalate(ctx, rationale, assessment)
	})
}

// RollBackHeld implements Holder.
func (c *Session) RollBackHeld(ctx context.Context, lease, reason string, partial *protocol.Result) (protocol.State, error) {
	return c.report(ctx, "RollBackHeld", lease, func(claim *broker.Claim) error { return claim.RollBack(ctx, reason, partial) })
}

// HandOff implements Holder.
func (c *Session) HandOff(ctx context.Context, request HandOff) (child Child, err error) {
	ctx = c.bound(ctx)
	child.Parent, err = c.report(ctx, "HandOff", request.Lease, func(claim *broker.Claim) (err error) {
		child.Ticket, err = claim.HandOff(ctx, broker.Child{Package: request.Package, AtOnce: request.AtOnce, Waits: request.Waits})
		return err
	})
	return child, err
}

// Await implements Holder.
func (c *Session) Await(ctx context.Context, lease string, tickets []string) (protocol.State, error) {
	return c.report(ctx, "Await", lease, func(claim *broker.Claim) error {
		children, err := Awaited(claim.State(), tickets)
		if err != nil {
			return err
		}
		suspended, err := claim.Suspend(ctx, children...)
		if err == nil && !suspended {
			err = ErrAwaited
		}
		return err
	})
}

// ErrAwaited reports that a holder got the ends of all that it would wait for, with its claim. It has
// its lease still.
var ErrAwaited = protocol.Errorf(protocol.CodeConflict, "ticket", "what it would wait for has ended, and your claim brought the ends; the lease is yours still")

// Awaited returns the ordinals of children by their tickets. Without any, they are those that this
// attempt asked for.
func Awaited(s protocol.State, tickets []string) ([]int, error) {
	made, asked := protocol.Bits(""), protocol.Bits("")
	if c := s.Children; c != nil {
		made, asked = c.Made.Without(c.After), c.Asked.Without(c.After)
	}
	switch {
	case made == "":
		return nil, protocol.Errorf(protocol.CodeIllegal, "children", "%s has handed off nothing yet; hand off under its lease", s.Ticket)
	case len(tickets) == 0 && asked == "":
		return nil, protocol.Errorf(protocol.CodeIllegal, "children", "this attempt at %s has handed off nothing; name what it waits for, of the children of its claim", s.Ticket)
	case len(tickets) == 0:
		return asked.Numbers(), nil
	}
	byTicket := map[string]int{}
	for _, n := range made.Numbers() {
		byTicket[s.ChildTicket(n)] = n
	}
	var children []int
	for _, ticket := range tickets {
		n, ok := byTicket[ticket]
		if !ok {
			return nil, protocol.Errorf(protocol.CodeIllegal, "ticket", "%s was not handed off from %s", ticket, s.Ticket)
		}
		children = append(children, n)
	}
	return children, nil
}
