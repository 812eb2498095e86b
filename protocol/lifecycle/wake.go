package lifecycle

import (
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// Wake is the earliest instant at which Decide may say something new with
// nothing else happening. It may have passed: then what the handoff waits for
// cannot be told from its state (an agent that is absent, a lease). Zero means
// never, which is true of closed handoffs alone.
func Wake(s p.State) time.Time { return wakeAfter(s, time.Time{}) }

// wakeAfter is the earliest instant later than after at which one of the
// handoff's clocks runs out. A clock that has run out and changed nothing must
// not hide those that still run.
func wakeAfter(s p.State, after time.Time) time.Time {
	if s.Closed || s.Phase == fresh {
		return time.Time{}
	}
	var wake time.Time
	consider := func(at time.Time) {
		if at.After(after) && (wake.IsZero() || at.Before(wake)) {
			wake = at
		}
	}
	consider(Deadline(s))
	if s.CancelRequested {
		if !s.Held() {
			consider(s.UpdatedAt)
		}
		consider(s.CancelRequestedAt.Add(millis(s.Policy.CancelGraceMS)))
		return wake
	}
	if returnClock(s) {
		consider(returnDue(s))
	}
	switch {
	case s.Phase == p.AwaitingApproval:
		consider(gateWake(&s))
		return wake
	case s.Aggregate != nil:
		if outcome, _ := groupOutcome(s); outcome != "" || s.Phase == p.PhaseTimeout {
			consider(s.UpdatedAt)
		}
		return wake
	case s.Offer == 0: // it is missing
		consider(s.UpdatedAt)
	}
	considerPhase(&s, consider)
	return wake
}

// considerPhase considers the clocks of the phase that an open handoff is in.
func considerPhase(s *p.State, consider func(time.Time)) {
	switch s.Phase {
	case p.Pending:
		if s.Offer == 0 {
			consider(routableSince(*s).Add(millis(s.Policy.AckTimeoutMS)))
			break
		}
		consider(queueDue(*s)) // the zero instant is after none
		switch {
		case s.Held():
			consider(ClaimDue(*s))
		case s.Agent != p.Human:
			consider(s.OfferedAt.Add(AckTimeout(*s)))
			fallthrough
		default:
			for _, absence := range s.Absent {
				consider(absence.Until)
			}
		}
	case p.PhaseAccepted, p.Working:
		if s.Policy.ProgressTimeoutMS > 0 {
			consider(progressSince(*s).Add(millis(s.Policy.ProgressTimeoutMS)))
		}
		consider(workDue(*s))
		consider(ReminderAt(*s))
		if stopAtBudget(s, s.UpdatedAt) != nil {
			consider(s.UpdatedAt)
		}
	case p.Conditional:
		switch {
		case isSuspended(*s):
			if s.Children.Awaited.Without(s.Children.Closed) == "" {
				consider(s.UpdatedAt)
			}
		case s.Conditions == nil:
			consider(s.RetryAt)
		default:
			consider(s.ConditionedAt.Add(millis(s.Policy.ConditionTimeoutMS)))
		}
	case p.Retrying:
		consider(s.RetryAt)
	case p.PhaseFailed, p.PhaseRejected, p.PhaseTimeout:
		consider(s.UpdatedAt)
	}
}

// stepMin is the shortest time between two reconciles that nothing but time causes.
const stepMin = time.Minute

// NextReconcile is when a handoff is reconciled again after a reconcile that decided
// nothing: at its Wake, but no later than in a minute or in its own age, whichever is
// longer, and for a held one in two leases. This makes up for a lost wake-up, and a long
// handoff wakes a logarithmic number of times.
func NextReconcile(s p.State, now time.Time) time.Time {
	if s.Closed {
		return time.Time{}
	}
	at := now.Add(max(stepMin, now.Sub(s.SubmittedAt)))
	if s.Held() {
		if lease := now.Add(2 * millis(s.LeaseMS)); lease.Before(at) {
			at = lease
		}
	}
	if wake := wakeAfter(s, now); !wake.IsZero() && wake.Before(at) {
		at = wake
	}
	return at
}

// AbsenceKnownAt is when the observer of d can say that the holder or the agent is gone. The
// agent is that of a standing offer; the observer has to be connected for long enough
// before. Zero is that they are not missing. A reconcile before that decides nothing, whatever
// their clocks say.
func AbsenceKnownAt(s p.State, d *Directory) time.Time {
	switch {
	case s.Closed || d == nil || d.ConnectedSince.IsZero():
	case s.Held():
		if !d.Present(s.Holder) {
			return d.ConnectedSince.Add(millis(s.LeaseMS))
		}
	case s.Phase == p.Pending && s.Agent != p.Human && s.Aggregate == nil:
		if !d.Attended(s.Agent) {
			return d.ConnectedSince.Add(absenceGrace(s))
		}
	}
	return time.Time{}
}

// Duties is what must stand outside for a state. Seeing to it twice is harmless.
type Duties struct {
	// Offer says that the current offer stands in the queue of s.Agent.
	Offer bool
	// Look says that a wake-up stands, at NextReconcile.
	WakeUp bool
	// Children says that what was handed off has been submitted.
	Children bool
	// Mark says that children which have closed are recorded (ChildrenClosed).
	Mark bool
	// Return says that the return is delivered: the handoff s.ReturnTicket
	// exists, and its end is recorded (Returned). The end of a child without one
	// goes where SettleChild decides.
	Return bool
	// CancelChildren says that children which are open are cancelled.
	CancelChildren bool
	// Chain says that the end of the chain which it began is recorded (ChainEnded), once that
	// has ended.
	Chain bool
	// Bids says that agents are asked for bids, and the bids compared in time (Award).
	Bids bool
	// BidAnswer says that its agent is told what has become of its bid, once that is known.
	BidAnswer bool
	// Source says that it begins, or is dropped, as its parent went (FollowSource).
	Source bool
}

// DutiesOf returns what must stand outside for s.
func DutiesOf(s p.State) Duties {
	return Duties{
		Offer:          !s.Closed && s.Phase == p.Pending && !s.Held() && s.Offer != 0,
		WakeUp:         !s.Closed && s.Phase != fresh,
		Children:       s.Children != nil && s.Children.Made != "",
		Mark:           marksChildren(s),
		Return:         hasReturnDue(s) && (s.ReturnTicket != "" || isChild(s)),
		CancelChildren: cancelsChildren(s),
		Chain:          AwaitsChain(s),
		Bids:           AwaitsBids(s),
		BidAnswer:      AwaitsBidAnswer(s),
		Source:         !s.Closed && s.Phase == p.AwaitingSource,
	}
}

// HasPendingDuties tells whether a closed handoff still has duties other than the
// submission of its children: its return, the end of its chain or of its children, the answer to a bid. A
// person serves no queue, and reads a return by its ticket.
func HasPendingDuties(s p.State) bool { return AwaitsChain(s) || AwaitsBidAnswer(s) || hasDutiesNow(s) }

// hasDutiesNow tells whether a closed handoff has duties that wait for no other handoff.
func hasDutiesNow(s p.State) bool {
	reads := s.Source == p.Human && s.ReturnTicket == "" && !isChild(s)
	return s.Closed && (hasReturnDue(s) && !reads || cancelsChildren(s))
}

// NotifiesParent tells whether the parent may need to know that a handoff closed:
// of a member of a group, of a child that the parent may wait for (also one that
// expects no return), and of one that is being cancelled.
func NotifiesParent(s p.State) bool {
	return HasEnded(s) && s.Parent != "" && s.N > 0 &&
		(s.Group != "" || s.Aggregate != nil || s.ReturnExpected || s.Wait != "" || s.Outcome == p.OutcomeCancelled)
}

// NotifiesOrigin tells whether a handoff is a return that has been acknowledged, or
// never will be: the handoff that it returns settles its own return then.
func NotifiesOrigin(s p.State) bool {
	return s.ReturnOf != "" && (s.Closed || s.Fence != 0)
}
