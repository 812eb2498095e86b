package natsgateway

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
	"github.com/agenthandoff/handoff/worker"
)

// heldLease is what the lease of a Client stands for. It has the key of the holder beside the
// gateway's lease, so that any process that has the text makes the holder present.
type heldLease struct {
	broker.LeaseToken
	ref     claimRef
	key     string
	leaseMS int64
}

func (l heldLease) String() string {
	return strings.Join([]string{l.ref.Lease, strconv.FormatUint(l.ref.Fence, 10), strconv.FormatInt(l.leaseMS, 10), l.key}, ".")
}

// LeaseAgent returns the agent of a lease that a claim through a gateway returned; ok is false
// for any other.
func LeaseAgent(lease string) (agent string, ok bool) {
	first, _, ok := strings.Cut(lease, ".")
	token, err := broker.ParseLease(first)
	return token.Agent, ok && err == nil
}

// parseLease reads the text of a heldLease of this client's agent.
func (c *Client) parseLease(text string) (heldLease, error) {
	parts := strings.Split(text, ".")
	if len(parts) != 4 {
		return heldLease{}, protocol.Errorf(protocol.CodeLeaseInvalid, "lease", "is not a lease that a claim through a gateway returned")
	}
	token, err := broker.ParseLease(parts[0])
	if err != nil {
		return heldLease{}, err
	}
	fence, errFence := strconv.ParseUint(parts[1], 10, 64)
	leaseMS, errLease := strconv.ParseInt(parts[2], 10, 64)
	if errFence != nil || errLease != nil || token.Agent != c.agent || HolderID(c.agent, parts[3]) != token.Holder {
		return heldLease{}, protocol.Errorf(protocol.CodeLeaseInvalid, "lease", "is not a lease of %s", c.agent)
	}
	return heldLease{token, claimRef{parts[0], fence}, parts[3], leaseMS}, nil
}

// polls returns the holder of one lease.
func polls(agent, id, host string, leaseMS int64) protocol.Holder {
	return protocol.Holder{ID: id, Agent: agent, LeaseMS: leaseMS, Slots: 1, Busy: 1, Polling: true, Host: host}
}

// Claim implements api.Holder. What is claimed through a gateway is accepted at once: an offer
// that is not stays with the gateway, which may end.
func (c *Client) Claim(ctx context.Context, r api.Claim) (held api.Held, err error) {
	if err := r.Validate(); err != nil {
		return held, err
	}
	if err := c.checkAgent(r.Agent); err != nil {
		return held, err
	}
	if !r.Accept {
		return held, invalid("accept", "is not set: a claim through a gateway accepts at once")
	}
	holder := polls(c.agent, c.NewHolder(c.agent), r.Host, r.Lease.Milliseconds())
	key, _ := c.key(holder.ID)
	defer func() {
		if err != nil {
			c.leave(ctx, key)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.keys, holder.ID)
	}()
	for until := time.Now().Add(r.Wait); ; {
		if err := c.present(ctx, key, holder); err != nil { // a long wait outlives a short lease
			return held, err
		}
		if c.isPaused() {
			return held, protocol.Errorf(protocol.CodeNothingToClaim, "agent", "%s is paused", c.agent)
		}
		offers, err := c.Pull(ctx, c.agent, 1, max(min(time.Until(until), r.Lease/3), pullMin))
		if err != nil {
			return held, err
		}
		for _, offer := range offers {
			if held, err = c.accept(ctx, offer, holder, key); err == nil || !skips(ctx, offer, holder, err, r.Skipped) {
				return held, err
			}
		}
		if len(offers) == 0 && time.Now().After(until) {
			return held, protocol.Errorf(protocol.CodeNothingToClaim, "", "nothing to claim for %s", c.agent)
		}
	}
}

// pullMin lets an offer that is there arrive, for a claim that does not wait.
const pullMin = 500 * time.Millisecond

// accept accepts an offer and returns what its holder gets.
func (c *Client) accept(ctx context.Context, offer worker.Offer, holder protocol.Holder, key string) (api.Held, error) {
	pkg, err := offer.Package(ctx)
	if err != nil {
		return api.Held{}, err
	}
	accepted, err := offer.Acknowledge(ctx, holder, protocol.Ack{Status: protocol.AckAccepted}, true)
	if err != nil {
		return api.Held{}, err
	}
	claim := accepted.(*claim)
	h := api.Held{Lease: heldLease{ref: claim.ref, key: key, leaseMS: holder.LeaseMS}.String(), Agent: c.agent, State: claim.State(),
		Expires: expiry(holder.LeaseMS), Package: pkg, Answers: offer.Answers(), Trail: offer.Trail()}
	if h.State.Children != nil {
		h.Returns, h.ReturnsErr = claim.Returns(ctx)
		if h.ReturnsErr == nil {
			h.Children, h.ReturnsErr = claim.HandedOff(ctx)
		}
	}
	return h, nil
}

// skips tells whether a claim goes on behind an offer that it could not take. A package that
// is gone or damaged is refused for its agent; anything else is offered again.
func skips(ctx context.Context, offer worker.Offer, holder protocol.Holder, err error, skipped func(ticket string, refused bool, err error)) bool {
	switch {
	case errors.Is(err, broker.ErrOfferGone):
		return true
	case ctx.Err() != nil, errors.Is(err, broker.ErrUnreachable), errors.Is(err, broker.ErrClosed):
		return false
	}
	refused := false
	if (errors.Is(err, broker.ErrNotFound) || errors.Is(err, &protocol.Error{Code: protocol.CodeNotFound})) && holder.Agent != protocol.Human {
		_, refusal := offer.Acknowledge(ctx, holder, lifecycle.UnreadablePackage(err), false)
		refused = refusal == nil
	}
	if skipped != nil {
		skipped(offer.Ticket(), refused, err)
	}
	return true
}

func expiry(leaseMS int64) time.Time {
	return time.Now().Add(time.Duration(leaseMS) * time.Millisecond).UTC().Truncate(time.Second)
}

// leave ends the presence of a holder that holds nothing any more, also after ctx has ended.
func (c *Client) leave(ctx context.Context, key string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, _ = c.call(ctx, "", verbLeave, false, 0, &presenceRequest{Holder: key}, &empty{})
}

// report makes the holder of a lease present, reports, and returns the state after that. It
// has no more than a ticket where the handoff concerns the agent no longer.
func (c *Client) report(ctx context.Context, lease string, report func(*claim) error) (protocol.State, error) {
	its, err := c.parseLease(lease)
	if err != nil {
		return protocol.State{}, err
	}
	if err := c.present(ctx, its.key, polls(c.agent, its.Holder, "", its.leaseMS)); err != nil {
		return protocol.State{}, err
	}
	claim := &claim{c: c, ref: its.ref, state: &protocol.State{Ticket: its.Ticket}}
	err = report(claim)
	state := claim.State()
	if state.Phase == "" { // the answer to a last report has no state
		now, statusErr := c.Status(ctx, its.Ticket)
		switch {
		case statusErr == nil:
			state = now
		case err == nil && !errors.Is(statusErr, &protocol.Error{Code: protocol.CodeNotFound}):
			err = statusErr
		}
	}
	if state.Holder != its.Holder && !errors.Is(err, broker.ErrUnreachable) {
		c.leave(ctx, its.key)
	}
	return state, err
}

// reportHeld is report for what has an effect once. A gateway answers a repeated report like
// the first, whose answer may have got lost: a second one by the same lease is refused here.
func (c *Client) reportHeld(ctx context.Context, lease string, report func(*claim) error) (protocol.State, error) {
	return c.report(ctx, lease, func(claim *claim) error {
		if err := claim.checkHeld(ctx); err != nil {
			return err
		}
		return report(claim)
	})
}

// checkHeld returns broker.ErrLeaseLost where the claim has ended.
func (c *claim) checkHeld(ctx context.Context) error {
	_, err := c.Beat(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state = &protocol.State{Ticket: c.state.Ticket} // what the heartbeat read is over after the report
	return err
}

// Acknowledge implements api.Holder.
func (c *Client) Acknowledge(ctx context.Context, lease string, ack protocol.Ack) (protocol.State, error) {
	if ack.Status == protocol.AckAccepted { // it is: the heartbeat tells whether it still is
		return c.report(ctx, lease, func(claim *claim) error {
			_, err := claim.Beat(ctx)
			return err
		})
	}
	return c.reportHeld(ctx, lease, func(claim *claim) error { return claim.Acknowledge(ctx, ack, true) })
}

// Heartbeat implements api.Holder.
func (c *Client) Heartbeat(ctx context.Context, r api.Heartbeat) (beat api.Beat, err error) {
	beat.State, err = c.report(ctx, r.Lease, func(claim *claim) (err error) {
		if r.Extend != 0 {
			if err := claim.Extend(ctx, r.Extend, r.Reason); err != nil {
				return err
			}
		}
		beat.Signal, err = claim.Beat(ctx)
		return err
	})
	if its, parseErr := c.parseLease(r.Lease); parseErr == nil {
		beat.Expires = expiry(its.leaseMS)
	}
	return beat, err
}

// Progress implements api.Holder.
func (c *Client) Progress(ctx context.Context, lease string, progress protocol.Progress) (protocol.State, error) {
	return c.report(ctx, lease, func(claim *claim) error { return claim.Progress(ctx, progress) })
}

// Complete implements api.Holder. The gateway keeps a late result.
func (c *Client) Complete(ctx context.Context, lease string, result protocol.Result) (protocol.State, error) {
	state, err := c.report(ctx, lease, func(claim *claim) error {
		lost := claim.checkHeld(ctx)
		if lost != nil && !errors.Is(lost, broker.ErrLeaseLost) {
			return lost
		}
		err := claim.Complete(ctx, result)
		switch {
		case lost == nil:
			return err
		case errors.Is(err, broker.ErrUnreachable):
			return &api.LateResultError{Lost: lost, Unkept: err}
		}
		return lost
	})
	if its, parseErr := c.parseLease(lease); parseErr == nil && errors.Is(err, broker.ErrLeaseLost) {
		if slices.Contains(state.LateFences, its.ref.Fence) {
			err = &api.LateResultError{Lost: err}
		}
	}
	return state, err
}

// Decide implements api.Decider.
func (c *Client) Decide(ctx context.Context, lease string, decision protocol.WorkDecision) (protocol.State, error) {
	return c.report(ctx, lease, func(claim *claim) error { return claim.Decide(ctx, decision) })
}

// Spend implements api.Holder.
func (c *Client) Spend(ctx context.Context, lease string, usage protocol.Usage) (protocol.State, error) {
	return c.report(ctx, lease, func(claim *claim) error { return claim.Spend(ctx, usage) })
}

// Fail implements api.Holder.
func (c *Client) Fail(ctx context.Context, lease string, failure broker.Failure) (protocol.State, error) {
	return c.reportHeld(ctx, lease, func(claim *claim) error { return claim.Fail(ctx, failure) })
}

// Release implements api.Holder.
func (c *Client) Release(ctx context.Context, lease, reason string) (protocol.State, error) {
	return c.reportHeld(ctx, lease, func(claim *claim) error { return claim.Release(ctx, reason, nil) })
}

// Escalate implements api.Holder.
func (c *Client) Escalate(ctx context.Context, lease, rationale, assessment string) (protocol.State, error) {
	return c.reportHeld(ctx, lease, func(claim *claim) error { return claim.Escalate(ctx, rationale, assessment) })
}

// RollBackHeld implements api.Holder.
func (c *Client) RollBackHeld(ctx context.Context, lease, reason string, partial *protocol.Result) (protocol.State, error) {
	return c.reportHeld(ctx, lease, func(claim *claim) error { return claim.RollBack(ctx, reason, partial) })
}

// HandOff implements api.Holder.
func (c *Client) HandOff(ctx context.Context, r api.HandOff) (child api.Child, err error) {
	child.Parent, err = c.report(ctx, r.Lease, func(claim *claim) (err error) {
		key, err := protocol.ChildKeyOf(r.Package)
		if err != nil {
			return err
		}
		if _, err := claim.Beat(ctx); err != nil { // which reads the state
			return err
		}
		child.Ticket, err = claim.HandOff(ctx, broker.Child{Nth: lifecycle.NextNth(claim.State(), key), Package: r.Package})
		return err
	})
	return child, err
}

// Await implements api.Holder.
func (c *Client) Await(ctx context.Context, lease string, tickets []string) (protocol.State, error) {
	return c.report(ctx, lease, func(claim *claim) error {
		if _, err := claim.Beat(ctx); err != nil { // which reads the state
			return err
		}
		children, err := api.Awaited(claim.State(), tickets)
		if err != nil {
			return err
		}
		suspended, err := claim.Suspend(ctx, children...)
		if err == nil && !suspended {
			return api.ErrAwaited
		}
		claim.state = &protocol.State{Ticket: claim.state.Ticket} // what the heartbeat read is over
		return err
	})
}
