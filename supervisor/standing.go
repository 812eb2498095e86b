package supervisor

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/agenthandoff/handoff/broker"
)

// An offer that stands in its queue for more than standingHold is a reason to reconcile its handoff:
// most are taken, and their handoffs closed, before. One supervisor after another reads those
// offers, every standingInterval: whichever gets the wake-up of broker.StandingTicket arms the next one.
const (
	standingHold     = broker.AnnounceHold
	standingInterval = time.Second
	// standingMax is how many offers one supervisor reconciles before another takes over.
	standingMax = 500
	// standingTimeout bounds the reading.
	standingTimeout = 30 * time.Second
)

// standingFrom is when the first offer was put that a wake-up for at is for, and standingAt the
// converse: the offers until standingFrom(at) have been seen to.
func standingFrom(at time.Time) time.Time  { return at.Add(-standingHold - standingInterval) }
func standingAt(until time.Time) time.Time { return until.Add(standingHold + standingInterval) }

// armStanding has the next offers that stand read in an interval, and lets go of those until now:
// the caller sweeps.
func (s *Supervisor) armStanding(ctx context.Context) {
	if err := s.engine.Arm(ctx, broker.StandingTicket, 0, s.b.Now().Add(standingInterval)); err != nil && ctx.Err() == nil {
		s.log.Warn("wake-up for standing offers not armed; the next sweep tries again", "err", err)
	}
}

// enqueueStanding hands a wake-up for standing offers to the loop. It drops one that no supervisor armed:
// that has no time, or one before there were any.
func (s *Supervisor) enqueueStanding(w broker.WakeUp, done func()) {
	if w.Attention != "" || w.At.Before(time.Unix(0, 0)) {
		done()
		return
	}
	select {
	case s.standing <- standingRequest{w.At, done}:
	default: // the one in hand takes long: this one comes again, and holds up no other wake-up
	}
}

// standingLoop reconciles the handoffs whose offers stand for long, until ctx ends.
func (s *Supervisor) standingLoop(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case r := <-s.standing:
			if err := s.reconcileStanding(ctx, r); err != nil && ctx.Err() == nil {
				s.log.Warn("standing offers not read; the wake-up comes again", "err", err)
			}
		}
	}
}

// errStandingMax ends the reading of offers.
var errStandingMax = errors.New("enough offers")

// reconcileStanding reconciles the handoffs of the offers that a wake-up is for. The wake-up is done when
// all of them are.
func (s *Supervisor) reconcileStanding(ctx context.Context, r standingRequest) error {
	reading, cancel := context.WithTimeout(ctx, standingTimeout)
	defer cancel()
	now := s.b.Now()
	until := now.Add(-standingHold)
	if r.at.After(now) { // by another clock: the wake-up that this one's successor replaces may be for earlier offers
		r.at = now
	}
	var offers []broker.OfferKey
	var last time.Time
	err := s.engine.OffersBetween(reading, standingFrom(r.at), until, func(key broker.OfferKey, at time.Time) error {
		if len(offers) >= standingMax && at.After(last) { // those of one instant stay together
			until = at
			return errStandingMax
		}
		offers, last = append(offers, key), at
		return nil
	})
	if err != nil && !errors.Is(err, errStandingMax) {
		return err
	}
	if err := s.engine.Arm(reading, broker.StandingTicket, 0, standingAt(until)); err != nil {
		return err
	}
	var left atomic.Int64
	left.Store(int64(len(offers)) + 1)
	done := func() {
		if left.Add(-1) == 0 {
			r.done()
		}
	}
	for _, key := range offers {
		s.enqueue(ctx, request{ticket: key.Ticket, standing: key.Sequence, tellRelatives: true, done: done})
	}
	done()
	return nil
}

// standingRequest is a wake-up for offers that stand.
type standingRequest struct {
	at   time.Time
	done func()
}
