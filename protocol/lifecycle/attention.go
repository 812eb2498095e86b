package lifecycle

import (
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// Attention is what an append asks of the supervisors. The writer knows the state after
// its append, and announces the append where a supervisor has something to do. A supervisor
// then need not read the appends that call for nothing, which are nearly all.
//
// It is a hint. A wrong one costs time, until the next reconcile of the handoff or the
// next sweep, and never a handoff.
type Attention string

// What an append may call for.
const (
	// AttentionNone: it is closed, and has no pending duties. It is not announced.
	AttentionNone Attention = "none"
	// AttentionLater: nothing becomes due within AttentionSpan, whatever the
	// directory says, unless the holder vanishes. If this append is still the head
	// a while later, its writer announces it, and a supervisor publishes its outbox entries.
	AttentionLater Attention = "later"
	// AttentionNow: reconcile it at once.
	AttentionNow Attention = "now"
)

// AttentionSpan is for how long after an append AttentionLater is true of it: the
// hold of its writer, and as long again for the way.
const AttentionSpan = 2 * time.Second

// AttentionOf returns the attention for the append that made s. In case of doubt that is
// AttentionNow: frequent cases are told apart, rare ones are reconciled.
func AttentionOf(s p.State) Attention {
	switch {
	case s.Phase == fresh, NotifiesParent(s), NotifiesOrigin(s), NotifiesChain(s), NotifiesCaller(s), hasDutiesNow(s), LeavesWorkspace(s), LeavesCalls(s):
		return AttentionNow
	case s.Closed && s.Children != nil && s.Children.Returning != "": // their ends go elsewhere now, or were received
		return AttentionNow
	case AwaitsChain(s), s.Closed && s.Children != nil && s.Children.Made.Without(s.Children.Closed) != "":
		return AttentionLater // as a rule its writer submits the children at once
	case s.Closed:
		return AttentionNone
	case s.CancelRequested, s.Aggregate != nil && s.Children == nil: // the state of a forged offer
		return AttentionNow
	case s.Aggregate != nil: // its members bring it on
	case s.Offer == 0:
		return AttentionNow
	case s.Phase == p.Pending:
		if !s.Held() && (s.Attempt >= s.Policy.MaxAttempts || len(s.Absent) > 0) { // the agent may be back
			return AttentionNow
		}
	case s.Phase != p.PhaseAccepted && s.Phase != p.Working && s.Phase != p.Retrying:
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
