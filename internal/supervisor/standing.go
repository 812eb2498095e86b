package supervisor

import (
	"context"
	"errors"
	"time"

	"github.com/agenthandoff/handoff/broker"
)

// An offer that stands in its queue for more than standingHold is a reason to reconcile its handoff:
// most are taken, and their handoffs closed, before. Each supervisor reads those offers by
// itself, every standingInterval: what two of them do is done twice, which is harmless. Offers
// that were put before a supervisor began are seen to by its first sweep.
const (
	standingHold     = broker.AnnounceHold
	standingInterval = time.Second
	// standingMax is how many offers are read before their handoffs are reconciled.
	standingMax = 500
	// standingTimeout bounds the reading.
	standingTimeout = 30 * time.Second
)

// standingLoop reconciles the handoffs whose offers stand for long, until ctx ends.
func (s *Supervisor) standingLoop(ctx context.Context) error {
	from := s.b.Now().Add(-standingHold)
	tick := time.NewTicker(standingInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		for until := s.b.Now().Add(-standingHold); from.Before(until) && ctx.Err() == nil; {
			next, err := s.reconcileStanding(ctx, from, until)
			if from = next; err != nil {
				s.log.Debug("standing offers not read; trying again", "err", err)
				break
			}
		}
	}
}

// errStandingMax ends the reading of offers.
var errStandingMax = errors.New("enough offers")

// reconcileStanding reconciles the handoffs of offers that were put at from or later and before until, or
// of the first of them, and returns when the rest was put. With an error that is from.
func (s *Supervisor) reconcileStanding(ctx context.Context, from, until time.Time) (rest time.Time, err error) {
	reading, cancel := context.WithTimeout(ctx, standingTimeout)
	defer cancel()
	var offers []broker.OfferKey
	var last time.Time
	rest = until
	err = s.engine.OffersBetween(reading, from, until, func(key broker.OfferKey, at time.Time) error {
		if len(offers) >= standingMax && at.After(last) { // those of one instant stay together
			rest = at
			return errStandingMax
		}
		offers, last = append(offers, key), at
		return nil
	})
	if err != nil && !errors.Is(err, errStandingMax) {
		return from, err
	}
	for _, key := range offers {
		s.enqueue(ctx, request{ticket: key.Ticket, standing: key.Sequence})
	}
	return rest, nil
}
