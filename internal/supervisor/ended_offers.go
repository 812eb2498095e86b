package supervisor

import (
	"context"
	"errors"
	"slices"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// removeOffer takes an offer out of its queue that an append has ended, as its writer says.
// The writer's word is a hint: an offer that the handoff still calls for stays. Where the engine does not
// answer, the announcement is delivered again; a removal that is refused is left to the next
// sweep, and no reason to call the handoff stuck.
func (s *Supervisor) removeOffer(ctx context.Context, r request) {
	ctx, cancel := context.WithTimeout(ctx, reconcileTimeout)
	defer cancel()
	gone, err := s.hasEnded(ctx, *r.endedOffer)
	if err == nil && gone {
		err = s.engine.RemoveOffer(ctx, *r.endedOffer)
	}
	switch {
	case err == nil:
		r.finish()
	case isUnanswered(err), ctx.Err() != nil:
		s.log.Warn("engine does not answer; ended offer stays until the next delivery", "ticket", r.ticket, "agent", r.endedOffer.Agent, "err", err)
	default:
		s.log.Warn("ended offer not removed from the queue", "ticket", r.ticket, "agent", r.endedOffer.Agent, "err", err)
		r.finish()
	}
}

// offersSweptMax is up to how many open offers a regular sweep still lists the queues.
const offersSweptMax = 100_000

// removeEnded takes the offers out of all queues that no handoff has any more: of
// writers that named none, or died before the queue had the offer. called are the
// offers that the sweep found to be called for, end the last sequence that it saw.
// The head of each other offer is read from the leader before it goes.
func (s *Supervisor) removeEnded(ctx context.Context, called []uint64, end uint64) (removed int) {
	slices.Sort(called)
	var ended []broker.OfferKey
	err := s.engine.Offers(ctx, "", func(key broker.OfferKey) error {
		if _, found := slices.BinarySearch(called, key.Sequence); !found && key.Sequence <= end {
			ended = append(ended, key)
		}
		return ctx.Err()
	})
	for _, key := range ended {
		if err != nil {
			break
		}
		var gone bool
		if gone, err = s.hasEnded(ctx, key); err == nil && gone {
			if err = s.engine.RemoveOffer(ctx, key); err == nil {
				removed++
			}
		}
	}
	switch {
	case ctx.Err() != nil:
	case err != nil:
		s.log.Warn("ended offers not removed; the next sweep tries again", "removed", removed, "err", err)
	case removed > 0:
		s.log.Info("removed ended offers from the queues", "offers", removed)
	}
	return removed
}

// hasEnded tells whether the ledger has a handoff that has gone on from an offer. One
// that the ledger does not know, or not so far, keeps its offers: the ledger may have
// lost its end. So does one whose head cannot be read.
func (s *Supervisor) hasEnded(ctx context.Context, key broker.OfferKey) (bool, error) {
	head, err := s.b.Head(ctx, key.Ticket, 0)
	if errors.Is(err, broker.ErrNotFound) || broker.Unreadable(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	state := head.State
	current := lifecycle.OfferStands(state) && state.Offer == key.Sequence && state.Agent == key.Agent
	return !current && head.Seq >= key.Sequence, nil
}
