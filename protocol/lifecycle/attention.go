package lifecycle

import (
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// Attention is what an append calls for from those who look after handoffs. Who
// appends knows the state that comes of it, and says so beside the record: then
// no supervisor need read the record to find that there is nothing to do, which is true
// of nearly all.
//
// It is a hint: what it says wrongly costs time, until the next look at the head
// or the next pass over all of them, and never a handoff.
type Attention string

// What an append may call for.
const (
	// AttentionUnsaid: the writer did not say. The state tells.
	AttentionUnsaid Attention = ""
	// AttentionNone: it is closed, and has no pending duties.
	AttentionNone Attention = "none"
	// AttentionLater: nothing becomes due within AttentionSpan, whatever the
	// directory says, unless its holder vanishes. If it still is the head a while
	// later, what it calls for must be made to stand outside.
	AttentionLater Attention = "later"
	// AttentionNow: look at it.
	AttentionNow Attention = "now"
)

// AttentionSpan is for how long after an append AttentionLater is true of it: the
// hold of a supervisor, and as long again for the way.
const AttentionSpan = 2 * time.Second

// AttentionOf is what the append calls for that made s. In case of doubt that is
// a look: what is frequent is told apart, what is rare is not.
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
