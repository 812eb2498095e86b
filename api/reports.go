package api

import (
	"context"
	"errors"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// Leases finds claims by their leases. An implementation of Holder embeds Reports over it.
type Leases interface {
	// Resume returns the claim of a lease and its holder, which it makes present.
	Resume(ctx context.Context, operation, lease string) (worker.Claim, protocol.Holder, error)
	// Leave ends the presence of a holder that holds nothing any more.
	Leave(ctx context.Context, holder protocol.Holder) error
	// ParkLate keeps a result whose lease is lost.
	ParkLate(ctx context.Context, lease string, result protocol.Result) (kept bool, err error)
}

// Reports has the operations of Holder that take a lease.
type Reports struct{ Leases Leases }

// leaveTimeout bounds the end of a presence, which expires by itself with its lease.
const leaveTimeout = time.Second

// do resumes a claim, reports on it, and returns the state after that.
func (r Reports) do(ctx context.Context, operation, lease string, report func(claim worker.Claim, holder protocol.Holder) error) (protocol.State, error) {
	claim, holder, err := r.Leases.Resume(ctx, operation, lease)
	if err != nil {
		return protocol.State{}, err
	}
	err = report(claim, holder)
	state := claim.State()
	if state.Holder != holder.ID {
		r.leave(ctx, holder)
	}
	return state, err
}

// leave ends a presence, also after ctx has ended.
func (r Reports) leave(ctx context.Context, holder protocol.Holder) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	_ = r.Leases.Leave(ctx, holder)
}

// Acknowledge implements Holder.
func (r Reports) Acknowledge(ctx context.Context, lease string, ack protocol.Ack) (protocol.State, error) {
	return r.do(ctx, "Acknowledge", lease, func(claim worker.Claim, _ protocol.Holder) error { return claim.Acknowledge(ctx, ack, true) })
}

// Heartbeat implements Holder.
func (r Reports) Heartbeat(ctx context.Context, request Heartbeat) (Beat, error) {
	var beat Beat
	state, err := r.do(ctx, "Heartbeat", request.Lease, func(claim worker.Claim, holder protocol.Holder) (err error) {
		if request.Extend != 0 {
			if err := claim.Extend(ctx, request.Extend, request.Reason); err != nil {
				return err
			}
		}
		beat.Signal, err = claim.Beat(ctx)
		beat.Expires = expiry(holder)
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
func (r Reports) Progress(ctx context.Context, lease string, progress protocol.Progress) (protocol.State, error) {
	return r.do(ctx, "Progress", lease, func(claim worker.Claim, _ protocol.Holder) error { return claim.Progress(ctx, progress) })
}

// Complete implements Holder.
func (r Reports) Complete(ctx context.Context, lease string, result protocol.Result) (protocol.State, error) {
	reported := false
	state, err := r.do(ctx, "Complete", lease, func(claim worker.Claim, _ protocol.Holder) error {
		reported = true
		return claim.Complete(ctx, result)
	})
	if !errors.Is(err, broker.ErrLeaseLost) {
		return state, err
	}
	kept := reported // a claim keeps its late result itself
	if !kept {
		var unkept error
		if kept, unkept = r.Leases.ParkLate(ctx, lease, result); unkept != nil {
			return state, &LateResultError{err, unkept}
		}
	}
	if kept {
		err = &LateResultError{Lost: err}
	}
	return state, err
}

// Fail implements Holder.
func (r Reports) Fail(ctx context.Context, lease string, failure broker.Failure) (protocol.State, error) {
	return r.do(ctx, "Fail", lease, func(claim worker.Claim, _ protocol.Holder) error { return claim.Fail(ctx, failure) })
}

// Release implements Holder.
func (r Reports) Release(ctx context.Context, lease, reason string) (protocol.State, error) {
	return r.do(ctx, "Release", lease, func(claim worker.Claim, _ protocol.Holder) error { return claim.Release(ctx, reason) })
}

// Escalate implements Holder.
func (r Reports) Escalate(ctx context.Context, lease, rationale, assessment string) (protocol.State, error) {
	return r.do(ctx, "Escalate", lease, func(claim worker.Claim, _ protocol.Holder) error {
		return claim.Escalate(ctx, rationale, assessment)
	})
}

// RollBackHeld implements Holder.
func (r Reports) RollBackHeld(ctx context.Context, lease, reason string, partial *protocol.Result) (protocol.State, error) {
	return r.do(ctx, "RollBackHeld", lease, func(claim worker.Claim, _ protocol.Holder) error { return claim.RollBack(ctx, reason, partial) })
}

// HandOff implements Holder.
func (r Reports) HandOff(ctx context.Context, request HandOff) (child Child, err error) {
	child.Parent, err = r.do(ctx, "HandOff", request.Lease, func(claim worker.Claim, _ protocol.Holder) (err error) {
		n := request.N - 1
		if made := claim.State().Children; n < 0 {
			if n = 0; made != nil {
				n = made.Count
			}
		}
		child.Ticket, err = claim.HandOff(ctx, broker.Child{N: n, Package: request.Package})
		return err
	})
	return child, err
}

// Await implements Holder.
func (r Reports) Await(ctx context.Context, lease string, tickets []string) (protocol.State, error) {
	return r.do(ctx, "Await", lease, func(claim worker.Claim, _ protocol.Holder) error {
		children, err := awaited(claim.State(), tickets)
		if err != nil {
			return err
		}
		suspended, err := claim.Suspend(ctx, children...)
		if err == nil && !suspended {
			err = protocol.Errorf(protocol.CodeConflict, "ticket", "what it would wait for has ended already; the LEASE is yours still: handoff result TICKET --return")
		}
		return err
	})
}

// awaited returns the ordinals of children by their tickets, or of all without any.
func awaited(s protocol.State, tickets []string) ([]int, error) {
	var made []int
	if s.Children != nil {
		made = s.Children.Made.Without(s.Children.After).Numbers()
	}
	if len(made) == 0 {
		return nil, protocol.Errorf(protocol.CodeIllegal, "lease", "%s has handed off nothing; hand it off with: handoff submit --under LEASE", s.Ticket)
	}
	if len(tickets) == 0 {
		return made, nil
	}
	byTicket := map[string]int{}
	for _, n := range made {
		byTicket[protocol.ChildTicketN(s.Ticket, n)] = n
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
