package broker

import (
	"context"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// Signal is what a beat tells a holder.
type Signal struct {
	CancelRequested bool `json:"cancel_requested"`
	Return          bool `json:"return,omitempty"` // it shall go back to its source instead
	Reminded        bool `json:"reminded"`         // most of the time to the limit is used up
	// Limit is when the first clock runs out that takes the handoff from its holder,
	// and LimitClock which one it is: work, return, deadline; until it is accepted
	// also acknowledge or queue.
	Limit      time.Time      `json:"limit,omitzero"`
	LimitClock protocol.Clock `json:"limit_clock,omitempty"`
	Deadline   time.Time      `json:"deadline,omitzero"`
	// Budget is what is left of its budgets, once most of one is used up (80 %).
	Budget *protocol.BudgetLeft `json:"budget,omitempty"`
}

// Beat keeps the offer from others and reads the head from the leader. It
// returns ErrLeaseLost when the handoff is another's by now. The holder's
// presence is a beat of its own (Engine.Beat), one for all its claims.
func (c *Claim) Beat(ctx context.Context) (Signal, error) {
	if err := c.lock(ctx); err != nil {
		return Signal{}, err
	}
	defer c.unlock()
	c.mu.Lock()
	delivery := c.delivery
	c.mu.Unlock()
	if delivery != nil {
		if err := delivery.Extend(); err != nil {
			return Signal{}, err
		}
	}
	head, err := c.b.Head(ctx, c.Ticket, c.lastHead().Seq)
	if err != nil {
		return Signal{}, err
	}
	if err := c.checkFence(&head.State); err != nil {
		c.releaseSlot(ctx)
		return Signal{}, err
	}
	c.setHead(&head)
	if c.limited { // it may have been thought gone meanwhile, or the entry be lost
		if err := c.ensureSlot(ctx); err != nil {
			return Signal{}, err
		}
	}
	s := &head.State
	signal := Signal{CancelRequested: s.CancelRequested, Return: s.CancelReturn, Reminded: !s.RemindedAt.IsZero(), Deadline: s.Deadline}
	signal.Limit, signal.LimitClock = lifecycle.Limit(*s)
	signal.Budget = lifecycle.BudgetLeft(*s)
	return signal, nil
}
