package broker

import (
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// The minimum retention of the handoff protocol specification. The ledger keeps every append for
// LedgerAge, and a handoff is closed ninety days after its submission at the latest
// (lifecycle.Deadline). The first append of a handoff that closed then must still be kept for
// 90 days. That, rather than the escalations, determines LedgerAge, plus ten days in which no
// supervisor may run.
const (
	// LedgerAge is how long the ledger keeps an append.
	LedgerAge = 190 * 24 * time.Hour
	// openAge is the longest time that a handoff may be open: the longest deadline.
	openAge = time.Duration(protocol.DeadlineMaxMS) * time.Millisecond
)

// MayHaveDropped reports whether the ledger is old enough, at an instant, to have dropped entries
// because of their age. If it is not, and starts late, it has lost entries.
func (l LedgerInfo) MayHaveDropped(now time.Time) bool { return now.Sub(l.Began) >= LedgerAge }

// droppedAt returns when the ledger starts to drop a handoff: its first append, and with it the
// package, then reaches the ledger's age limit.
func (h Head) droppedAt() time.Time {
	began := h.State.SubmittedAt
	if !h.At.IsZero() && h.At.Before(began) { // the submitter's clock was ahead; the engine's counts
		began = h.At
	}
	return began.Add(LedgerAge)
}

// OpenTooLong reports whether a handoff is still open an hour after a supervisor would have closed
// it. left is the time until the ledger starts to drop it. It is a sign that no supervisor runs, or
// that a clock is wrong, and the only way in which an open handoff can be lost because of its age.
func (h Head) OpenTooLong(now time.Time) (left time.Duration, tooLong bool) {
	dropped := h.droppedAt()
	return dropped.Sub(now), !h.State.Closed && now.After(dropped.Add(openAge-LedgerAge+time.Hour))
}
