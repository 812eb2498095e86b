package api

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// mayWork refuses a caller that may not hold handoffs of an agent.
func (c *Session) mayWork(operation, agent string) error {
	if err := c.may(operation); err != nil {
		return err
	}
	if !c.caller.worksAs(agent) {
		return forbidden("agent", "is %s, and %s works", protocol.CutText(agent, 64), c.caller.Name)
	}
	return nil
}

// polling returns the holder of one claim. Its id is the secret of the lease.
func polling(agent, host string, lease time.Duration) protocol.Holder {
	return protocol.Holder{ID: uuid.NewString(), Agent: agent, LeaseMS: lease.Milliseconds(), Slots: 1, Busy: 1, Polling: true,
		Host: host, StartedAt: time.Now().UTC()}
}

// Claim implements Holder.
func (c *Session) Claim(ctx context.Context, request Claim) (Held, error) {
	if err := request.Validate(); err != nil {
		return Held{}, err
	}
	if err := c.mayWork("Claim", request.Agent); err != nil {
		return Held{}, err
	}
	if err := c.claimable(ctx, request.Agent); err != nil {
		return Held{}, err
	}
	claim, err := c.claimNext(ctx, request, polling(request.Agent, request.Host, request.Lease))
	if err != nil {
		return Held{}, err
	}
	return c.held(ctx, claim), nil
}

// claimable refuses an agent that is not registered or is paused. Either way an agent that
// is registered has polled.
func (c *Session) claimable(ctx context.Context, agent string) error {
	if agent == protocol.Human {
		return nil
	}
	profile, err := c.s.b.Profile(ctx, agent)
	switch {
	case errors.Is(err, broker.ErrNotFound):
		return protocol.Errorf(protocol.CodeUnknownAgent, "agent", "no agent is called %s; register it", agent)
	case err != nil:
		return err
	}
	if err := c.s.b.RecordPoll(ctx, profile); err != nil {
		return err
	}
	if profile.Paused {
		return protocol.Errorf(protocol.CodeNothingToClaim, "agent", "%s is paused, and its offers wait until it is resumed", agent)
	}
	return nil
}

// claimNext claims one offer for a holder. Presence comes first, so that no supervisor
// judges the holder gone before it began, and ends when nothing was claimed.
func (c *Session) claimNext(ctx context.Context, request Claim, holder protocol.Holder) (claim *broker.Claim, err error) {
	if err := c.s.b.Beat(ctx, holder); err != nil {
		return nil, err
	}
	defer func() {
		if claim == nil {
			c.leave(ctx, holder)
		}
	}()
	if err := c.s.b.EnsureQueue(ctx, holder.Agent); err != nil {
		return nil, err
	}
	_ = c.s.cfg.CountOn(ctx, holder.Agent) // without it the most urgent offer is claimed
	for until := time.Now().Add(request.Wait); ; {
		offers, err := c.s.b.Pull(ctx, holder.Agent, 1, pullWait(holder, time.Until(until)))
		if err != nil {
			return nil, err
		}
		for _, offer := range offers {
			claim, err := claimOffer(ctx, offer, holder, request)
			if err == nil || !skip(ctx, offer, holder, err, request.Skipped) {
				return claim, err
			}
		}
		if len(offers) == 0 && time.Now().After(until) {
			return nil, c.nothingFor(ctx, holder.Agent)
		}
		if err := c.s.b.Beat(ctx, holder); err != nil { // a long wait outlives a short lease
			return nil, err
		}
	}
}

func claimOffer(ctx context.Context, offer *broker.Offer, holder protocol.Holder, request Claim) (*broker.Claim, error) {
	if request.Accept {
		return offer.Acknowledge(ctx, holder, protocol.Ack{Status: protocol.AckAccepted}, true)
	}
	return offer.Claim(ctx, holder, request.AckWithin)
}

// skip tells whether a claim goes on behind an offer that it could not take. A package that
// is gone or damaged is refused for its agent. A person has no agent behind, and is
// offered it again after the ack wait, as is everything else that is skipped.
func skip(ctx context.Context, offer *broker.Offer, holder protocol.Holder, err error, skipped func(ticket string, refused bool, err error)) bool {
	switch {
	case errors.Is(err, broker.ErrOfferGone):
		return true
	case ctx.Err() != nil, errors.Is(err, broker.ErrUnreachable), errors.Is(err, context.DeadlineExceeded), errors.Is(err, broker.ErrNotAllowed):
		return false
	}
	refused := false
	if errors.Is(err, broker.ErrNotFound) && holder.Agent != protocol.Human {
		_, refusal := offer.Acknowledge(ctx, holder, lifecycle.UnreadablePackage(err), false)
		refused = refusal == nil
	}
	if skipped != nil {
		skipped(offer.Ticket, refused, err)
	}
	return true
}

// nothingFor says why there is nothing to claim: the queue is empty, or the agent is at
// capacity.
func (c *Session) nothingFor(ctx context.Context, agent string) error {
	inHand, limit, err := c.s.b.Capacity(ctx, agent)
	if err == nil && limit > 0 && inHand >= limit {
		return protocol.Errorf(protocol.CodeNothingToClaim, "max_concurrency", "%s: %s has %s in hand, and takes no more at a time", protocol.ReasonAtCapacity, agent, explain.Count(inHand, "handoff"))
	}
	return protocol.Errorf(protocol.CodeNothingToClaim, "", "nothing to claim for %s", agent)
}

const (
	// pullMin lets an offer that is there arrive, for a claim that does not wait.
	pullMin = 500 * time.Millisecond
	// pullMax is often enough to see that an offer was not to be had.
	pullMax = 5 * time.Second
)

// pullWait is how long to wait for an offer before the next beat is due.
func pullWait(holder protocol.Holder, left time.Duration) time.Duration {
	beat := time.Duration(holder.LeaseMS) * time.Millisecond / 3
	return max(min(left, beat, pullMax), pullMin)
}

// held is what the holder of a new claim gets.
func (c *Session) held(ctx context.Context, claim *broker.Claim) Held {
	h := Held{Lease: claim.Lease(), Agent: claim.Agent, State: claim.State(), Expires: expiry(claim.Holder),
		Package: claim.Package, Answers: claim.Answers, Trail: claim.Trail}
	h.Returns, h.ReturnsErr = c.s.b.ChildReturns(ctx, h.State)
	if h.ReturnsErr == nil {
		h.Children, h.ReturnsErr = c.s.b.Children(ctx, h.State)
	}
	return h
}

// Take implements Operator. The caller works as the agent, too.
func (c *Session) Take(ctx context.Context, request Take) (Held, error) {
	ticket, err := protocol.ParseTicket(request.Ticket)
	if err == nil {
		err = CheckLease(request.Lease)
	}
	if err == nil {
		err = c.mayWork("Take", request.Agent)
	}
	if err != nil {
		return Held{}, err
	}
	holder := polling(request.Agent, request.Host, request.Lease)
	if err := c.s.b.Beat(ctx, holder); err != nil { // presence first: no supervisor may judge it gone
		return Held{}, err
	}
	claim, err := c.s.b.Take(ctx, ticket, holder, request.Reason)
	if err != nil {
		c.leave(ctx, holder)
		return Held{}, err
	}
	return c.held(ctx, claim), nil
}
