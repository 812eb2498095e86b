package broker

import (
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// What the handoff protocol specification asks for at least. The ledger keeps every append for
// LedgerAge, and a handoff is closed ninety days after its submission at the
// latest (lifecycle.Deadline). So the first append of a handoff that closed
// then has still to be kept for completedAge: that, and not the escalations, is
// what decides, with a rest of ten days in which no supervisor may run.
const (
	// LedgerAge is how long the ledger keeps an append.
	LedgerAge = 190 * 24 * time.Hour

	activeAge     = 30 * 24 * time.Hour  // after its end
	completedAge  = 90 * 24 * time.Hour  // after its end
	escalationAge = 180 * 24 * time.Hour // after the escalation
	// openAge is how long a handoff may be open: the longest deadline.
	openAge = time.Duration(protocol.DeadlineMaxMS) * time.Millisecond
)

// MayHaveDropped tells whether the ledger is old enough, at an instant, to have
// dropped anything for its age. One that is not and begins late has lost something.
func (l LedgerInfo) MayHaveDropped(now time.Time) bool { return now.Sub(l.Began) >= LedgerAge }

// DroppedAt is when the ledger begins to drop a handoff: its first append, and
// with it the package, is then as old as the ledger keeps anything.
func (h Head) DroppedAt() time.Time {
	began := h.State.SubmittedAt
	if !h.At.IsZero() && h.At.Before(began) { // the submitter's clock was ahead; the engine's is what counts
		began = h.At
	}
	return began.Add(LedgerAge)
}

// OpenTooLong tells whether a handoff is still open an hour after a supervisor would have
// closed it. left is the time until the ledger begins to drop it. It is a sign that no
// supervisor runs, or that a clock is wrong. It is also the one way in which an open handoff
// can be lost for its age.
func (h Head) OpenTooLong(now time.Time) (left time.Duration, tooLong bool) {
	dropped := h.DroppedAt()
	return dropped.Sub(now), !h.State.Closed && now.After(dropped.Add(openAge-LedgerAge+time.Hour))
}
