package lifecycle

import (
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// Attention is what an append asks of the supervisors. The writer knows the state after
// its append, and puts the attention beside the record. A supervisor then need not read
// the records that call for nothing, which are nearly all.
//
// It is a hint. A wrong one costs time, until the next reconcile of the handoff or the
// next sweep, and never a handoff.
type Attention string

// What an append may call for.
const (
	// AttentionUnsaid: the writer did not say. The state tells.
	AttentionUnsaid Attention = ""
	// AttentionNone: it is closed, and has no pending duties.
	AttentionNone Attention = "none"
	// AttentionLater: nothing becomes due within AttentionSpan, whatever the
	// directory says, unless the holder vanishes. If this append is still the head
	// a while later, a supervisor publishes its outbox entries.
	AttentionLater Attention = "later"
	// AttentionNow: reconcile it at once.
	AttentionNow Attention = "now"
)

// AttentionSpan is for how long after an append AttentionLater is true of it: the
// hold of a supervisor, and as long again for the way.
const AttentionSpan = 2 * time.Second

// AttentionOf returns the attention for the append that made s. In case of doubt that is
// AttentionNow: frequent cases are told apart, rare ones are reconciled.
func AttentionOf(s p.State) Attention {
	switch {
	case s.Phase == fresh, s.N > 0, NotifiesOrigin(s): // others are told of it
		return AttentionNow
	case s.Closed:
		if HasPendingDuties(s) || s.Children != nil && s.Children.Made.Without(s.Children.Closed) != "" {
			return AttentionNow
		}
		return AttentionNone
	case s.CancelRequested, s.Aggregate != nil, s.Offer == 0, s.StuckReason != "":
		return AttentionNow
	}
	switch s.Phase {
	case p.Pending:
		if !s.Held() && s.Attempt >= s.Policy.MaxAttempts {
			return AttentionNow
		}
	case p.PhaseAccepted, p.Working, p.Retrying:
	default:
		return AttentionNow
	}
	// All clocks, also those that have run out and changed nothing: with another
	// directory they might.
	until := s.UpdatedAt.Add(AttentionSpan)
	if s.Held() && millis(s.LeaseMS) < AttentionSpan || Wake(s).Before(until) {
		return AttentionNow
	}
	return AttentionLater
}
