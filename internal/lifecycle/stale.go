package lifecycle

import (
	"fmt"
	"slices"

	p "github.com/agenthandoff/handoff/protocol"
)

// Staleness is the fence: an event names the offer, holder, fence, attempt, level or question that
// it is about, and is stale when that is over or not the current one. Each function returns the
// cause in words; empty is not stale. The rows of the table name these functions.

// fenced returns the staleness of a holder's event that names only its fence.
func fenced[E p.Event](fence func(E) uint64) func(*p.State, E) string {
	return func(s *p.State, e E) string { return staleFence(s, fence(e)) }
}

// when returns the staleness of an event that has one cause.
func when[E p.Event](why string, stale func(*p.State, E) bool) func(*p.State, E) string {
	return func(s *p.State, e E) string {
		if stale(s, e) {
			return why
		}
		return ""
	}
}

var (
	staleTaken           = when("its holder has it already", func(s *p.State, e *p.Taken) bool { return s.Held() && s.Holder == e.Holder })
	staleCancelRequested = when("that was asked already", func(s *p.State, e *p.CancelRequested) bool {
		return s.CancelRequested && s.CancelReturn == (s.CancelReturn || e.Return) && s.CancelChildren == (s.CancelChildren || e.Children)
	})
	staleStuck    = when("that is known already", func(s *p.State, e *p.Stuck) bool { return s.StuckReason != "" && s.StuckReason == cut(e.Reason) })
	staleAssigned = when("that is known already", func(s *p.State, e *p.Assigned) bool {
		return s.Children != nil && slices.Contains(s.Children.Assigned, p.Assignment{N: e.N, Agent: e.Agent})
	})
	staleResultParked = when("that result was parked already, or as many as are kept", func(s *p.State, e *p.ResultParked) bool {
		return slices.Contains(s.LateFences, e.Fence) || len(s.LateFences) >= p.LateResultsMax
	})
	staleSourceCompleted = when("it has begun already", func(s *p.State, _ *p.SourceCompleted) bool { return s.Phase != p.AwaitingSource })
	staleChainEnded      = when("its chain is known to have ended", func(s *p.State, _ *p.ChainEnded) bool { return s.ChainEnd != nil })
	staleReturnSent      = when("the return was sent already", func(s *p.State, _ *p.ReturnSent) bool { return s.ReturnTicket != "" })
	staleReturned        = when("the return is settled already", func(s *p.State, _ *p.Returned) bool { return !s.ReturnedAt.IsZero() })
	staleRedriven        = when("it was redriven already", func(s *p.State, _ *p.Redriven) bool { return s.RedrivenAs != "" })
	staleRaised          = when("it has no limits", func(s *p.State, _ *p.Raised) bool { return s.Account == nil })
	staleDismissed       = when("no inbox lists it", func(s *p.State, _ *p.Dismissed) bool { return s.Closed && s.Inbox == "" })
)

func staleSubmitted(s *p.State, _ *p.Submitted) string {
	return "the handoff was submitted already"
}

func staleOffered(s *p.State, e *p.Offered) string {
	if s.Phase == p.Pending && offerUntouched(s) {
		return "the current offer is open, and no worker has touched it"
	}
	if s.Agent != "" && e.Agent != "" && e.Agent != s.Agent { // a move names its agent first
		return fmt.Sprintf("it is no longer with %s", e.Agent)
	}
	return ""
}

func staleClaimed(s *p.State, e *p.Claimed) string {
	return staleOffer(s, e.Offer, "", !s.Held())
}

func staleAccepted(s *p.State, e *p.Accepted) string {
	// A holder that polls goes from claimed to accepted.
	return staleOffer(s, e.Offer, e.Holder, !s.Held() || s.Holder == e.Holder && s.Fence == 0)
}

func staleRejected(s *p.State, e *p.Rejected) string {
	return staleOffer(s, e.Offer, e.Holder, s.Holder == e.Holder)
}

func staleConditioned(s *p.State, e *p.Conditioned) string {
	return staleOffer(s, e.Offer, e.Holder, s.Holder == e.Holder)
}

func staleStarted(s *p.State, e *p.Started) string {
	fence := e.Fence
	if fence == 0 && s.Fence == p.Self { // in the append that accepts
		fence = p.Self
	}
	if fence == s.Fence && s.Phase == p.Working {
		return "the work was started already"
	}
	return staleFence(s, fence)
}

func staleHandedOff(s *p.State, e *p.HandedOff) string {
	if s.Children != nil && s.Children.Made.Has(e.N) {
		return fmt.Sprintf("child %d was handed off already", e.N)
	}
	return staleFence(s, e.Fence)
}

func staleAdopted(s *p.State, e *p.Adopted) string {
	if s.Children != nil && p.Bits("").With(e.Children...).Without(s.Children.Asked) == "" {
		return "the attempt has asked for them already"
	}
	return staleFence(s, e.Fence)
}

func staleRolledBack(s *p.State, e *p.RolledBack) string {
	if !s.Held() && e.Fence == 0 {
		return ""
	}
	return staleFence(s, e.Fence)
}

func staleReminded(s *p.State, e *p.Reminded) string {
	if !s.RemindedAt.IsZero() {
		return "the holder was reminded already"
	}
	return staleFence(s, e.Fence)
}

func staleExtended(s *p.State, e *p.Extended) string {
	if s.Fence == e.Fence && !s.ExtendedUntil.IsZero() {
		return "this attempt was extended already"
	}
	return staleFence(s, e.Fence)
}

func staleLeaseLost(s *p.State, e *p.LeaseLost) string {
	return staleHolder(s, e.Holder, e.Fence)
}

func staleReleased(s *p.State, e *p.Released) string {
	return staleHolder(s, e.Holder, e.Fence)
}

func staleRetryScheduled(s *p.State, e *p.RetryScheduled) string {
	lost := s.Phase == p.Pending && e.Attempt > 0 && !s.Held() && !offerUntouched(s) // and its agent's breaker is open
	if s.Agent == "" || e.Attempt != s.Attempt || s.Phase != p.PhaseFailed && s.Phase != p.PhaseTimeout && !lost {
		return fmt.Sprintf("attempt %d has not just ended", e.Attempt)
	}
	return ""
}

func staleRerouted(s *p.State, e *p.Rerouted) string {
	if e.From != s.Agent {
		return fmt.Sprintf("it is no longer with %s", e.From)
	}
	return ""
}

func staleEscalated(s *p.State, e *p.Escalated) string {
	if e.Level <= s.EscalationLevel {
		return fmt.Sprintf("level %d was reached already", e.Level)
	}
	if e.Fence != 0 || s.Held() {
		return staleFence(s, e.Fence)
	}
	return ""
}

func staleTimedOut(s *p.State, e *p.TimedOut) string {
	if !hasRunOut(s, e) {
		return fmt.Sprintf("the %s clock it means does not run, or has not run out", e.Clock)
	}
	return ""
}

func staleChildrenClosed(s *p.State, e *p.ChildrenClosed) string {
	if !marksChildren(*s) {
		return "no children are awaited"
	}
	if slices.ContainsFunc(e.Children, func(c p.ChildClosed) bool { return s.Children.Made.Has(c.N) && !s.Children.Closed.Has(c.N) }) {
		return ""
	}
	return "that is known already"
}

func staleLateResultUsed(s *p.State, e *p.LateResultUsed) string {
	if e.Seq != s.LateSeq {
		return fmt.Sprintf("late result %d, the last one is %d", e.Seq, s.LateSeq)
	}
	return ""
}

// staleOffer judges an event about an offer. mine means that the event comes from the holder that
// has the offer now.
func staleOffer(s *p.State, offer uint64, holder string, mine bool) string {
	switch {
	case offer == 0 || offer != s.Offer:
		return fmt.Sprintf("offer %d, the current one is %d", offer, s.Offer)
	case s.Phase != p.Pending && !s.Held():
		return fmt.Sprintf("offer %d is over", offer)
	case !mine:
		return fmt.Sprintf("holder %q, the current one is %q", holder, s.Holder)
	}
	return ""
}

func staleFence(s *p.State, fence uint64) string {
	if fence == s.Fence && fence != 0 {
		return ""
	}
	return fmt.Sprintf("fence %d, the current one is %d", fence, s.Fence)
}

func staleHolder(s *p.State, holder string, fence uint64) string {
	if holder == s.Holder && fence == s.Fence {
		return ""
	}
	return fmt.Sprintf("holder %q with fence %d, the current one is %q with %d", holder, fence, s.Holder, s.Fence)
}

// offerUntouched reports whether no holder has had the current offer, so that there is no reason
// for another one.
func offerUntouched(s *p.State) bool {
	return s.Offer != 0 && !s.Held() && s.ClaimedAt.IsZero() && s.AcceptedAt.IsZero()
}

// hasRunOut reports whether the clock of the event is running, and had run out by then. The
// time-out of an earlier offer or attempt may be equal in all other fields.
func hasRunOut(s *p.State, e *p.TimedOut) bool {
	if s.Phase == p.AwaitingSource || asksAtGate(s.Gate) && (e.Clock != p.ClockReturn || !waitsOn(s)) { // a handoff that may not begin closes at its deadline
		return false
	}
	waits := s.Phase == p.Pending && !s.Held() && s.Aggregate == nil && e.Agent == s.Agent
	switch e.Clock {
	case p.ClockAcknowledge:
		return waits && (s.LapsedClaims >= LapsedClaimsMax || !e.At.Before(s.OfferedAt.Add(AckTimeout(*s))))
	case p.ClockQueue:
		return e.Agent == s.Agent && hasPassed(e.At, queueDue(*s))
	case p.ClockWork:
		return s.Fence != 0 && e.Agent == s.Agent && e.Attempt == s.Attempt && hasPassed(e.At, workDue(*s))
	case p.ClockProgress:
		ms := s.Policy.ProgressTimeoutMS
		return s.Fence != 0 && ms > 0 && e.Agent == s.Agent && e.Attempt == s.Attempt && !e.At.Before(progressSince(*s).Add(millis(ms)))
	case p.ClockReturn:
		return hasPassed(e.At, returnDue(*s))
	case p.ClockCondition:
		return s.Conditions != nil && e.Agent == s.Agent && !e.At.Before(s.ConditionedAt.Add(millis(s.Policy.ConditionTimeoutMS)))
	case p.ClockDeadline:
		return s.TimedOut != p.ClockDeadline && !e.At.Before(Deadline(*s))
	}
	return true
}
