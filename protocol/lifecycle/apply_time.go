package lifecycle

import (
	"fmt"

	p "github.com/agenthandoff/handoff/protocol"
)

// Clocks of a holder: what it is told of its time, and what becomes of the queue's.

func applyReminded(s *p.State, e *p.Reminded) error {
	s.RemindedAt = e.When()
	return nil
}

// applyExtended sets the work's clock, once in an attempt and never past the clocks
// of those who wait. The holder is reminded of its new limit, too.
func applyExtended(s *p.State, e *p.Extended) error {
	due := workDue(*s)
	if last, _ := waiterLimit(*s); due.IsZero() || !e.Until.After(due) || e.Until.After(last) {
		return fmt.Errorf("%w: extended until %s", ErrIllegal, e.Until)
	}
	s.ExtendedAt, s.ExtendedUntil, s.RemindedAt = e.At, e.Until, p.Time{}
	return nil
}

// clearReminder forgets what the holder of an earlier attempt was told of its time.
func clearReminder(s *p.State) {
	s.RemindedAt, s.ExtendedAt, s.ExtendedUntil = p.Time{}, p.Time{}, p.Time{}
}

// endClaim keeps the queue's clock going over a claim that ends without an
// acknowledgement: the offer that follows is not the first.
func endClaim(s *p.State) {
	if s.Fence == 0 && s.QueuedSince.IsZero() {
		s.QueuedSince = s.OfferedAt
	}
}

// endQueueClock ends the queue's clock. The next offer begins another.
func endQueueClock(s *p.State) { s.QueuedSince, s.AckWithinMS = p.Time{}, 0 }
