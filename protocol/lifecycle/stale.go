package lifecycle

import (
	"fmt"
	"slices"

	p "github.com/agenthandoff/handoff/protocol"
)

// checkStale is the fence: an event names the offer, the holder, the fence, the
// attempt, the level or the question that it is about, and is stale when that
// is not the current one, or is over. Of a handoff that was never submitted
// nothing can be stale: whoever reads an old "not found" must not take it for
// an answer.
func checkStale(s *p.State, e p.Event) error {
	if s.Phase == fresh {
		return nil
	}
	if why := staleness(s, e); why != "" {
		return fmt.Errorf("%w: %s: %s", ErrStale, e.EventType(), why)
	}
	return nil
}

// staleness says in words why an event is stale; nothing if it is not.
func staleness(s *p.State, e p.Event) string {
	switch e := e.(type) {
	case *p.Submitted:
		return "the handoff was submitted already"
	case *p.Offered:
		if s.Phase == p.Pending && offerUntouched(s) {
			return "an offer stands that nobody has touched"
		}
		if s.Agent != "" && e.Agent != "" && e.Agent != s.Agent { // what moves it says so first
			return fmt.Sprintf("it is no longer with %s", e.Agent)
		}
	case *p.Claimed:
		return staleOffer(s, e.Offer, "", !s.Held())
	case *p.Accepted:
		// The holder that polls goes on from claimed to accepted.
		return staleOffer(s, e.Offer, e.Holder, !s.Held() || s.Holder == e.Holder && s.Fence == 0)
	case *p.Rejected:
		return staleOffer(s, e.Offer, e.Holder, s.Holder == e.Holder)
	case *p.Conditioned:
		return staleOffer(s, e.Offer, e.Holder, s.Holder == e.Holder)
	case *p.Started:
		fence := e.Fence
		if fence == 0 && s.Fence == p.Self { // in the append that accepts
			fence = p.Self
		}
		if fence == s.Fence && s.Phase == p.Working {
			return "the work was started already"
		}
		return staleFence(s, fence)
	case *p.Progressed:
		return staleFence(s, e.Fence)
	case *p.Completed:
		return staleFence(s, e.Fence)
	case *p.Failed:
		return staleFence(s, e.Fence)
	case *p.HandedOff:
		if s.Children != nil && s.Children.Made.Has(e.N) {
			return fmt.Sprintf("child %d was handed off already", e.N)
		}
		return staleFence(s, e.Fence)
	case *p.Suspended:
		return staleFence(s, e.Fence)
	case *p.RolledBack:
		if !s.Held() && e.Fence == 0 {
			return ""
		}
		return staleFence(s, e.Fence)
	case *p.Taken:
		if s.Held() && s.Holder == e.Holder {
			return "its holder has it already"
		}
	case *p.Reminded:
		if !s.RemindedAt.IsZero() {
			return "the holder was reminded already"
		}
		return staleFence(s, e.Fence)
	case *p.Extended:
		if s.Fence == e.Fence && !s.ExtendedUntil.IsZero() {
			return "this attempt was extended already"
		}
		return staleFence(s, e.Fence)
	case *p.LeaseLost:
		return staleHolder(s, e.Holder, e.Fence)
	case *p.Released:
		return staleHolder(s, e.Holder, e.Fence)
	}
	return staleDecision(s, e)
}

// staleDecision is the staleness of what no holder says: answers, decisions,
// requests.
func staleDecision(s *p.State, e p.Event) string {
	switch e := e.(type) {
	case *p.Answered:
		if s.Conditions == nil && !escalated(*s) {
			return "nothing is asked"
		}
		if e.Offer == 0 || e.Offer != s.Offer {
			return fmt.Sprintf("it answers what was asked of offer %d, the current one is %d", e.Offer, s.Offer)
		}
	case *p.RetryScheduled:
		if e.Attempt == 0 || e.Attempt != s.Attempt || s.Phase != p.PhaseFailed && s.Phase != p.PhaseTimeout {
			return fmt.Sprintf("attempt %d has not just ended", e.Attempt)
		}
	case *p.Rerouted:
		if e.From != s.Agent {
			return fmt.Sprintf("it is no longer with %s", e.From)
		}
	case *p.Escalated:
		if e.Level <= s.EscalationLevel {
			return fmt.Sprintf("level %d was reached already", e.Level)
		}
		if e.Fence != 0 || s.Held() {
			return staleFence(s, e.Fence)
		}
	case *p.TimedOut:
		if !ranOut(s, e) {
			return fmt.Sprintf("the %s clock it means does not run, or has not run out", e.Clock)
		}
	case *p.CancelRequested:
		if s.CancelRequested && s.CancelReturn == (s.CancelReturn || e.Return) && s.CancelChildren == (s.CancelChildren || e.Children) {
			return "that was asked already"
		}
	case *p.Stuck:
		if s.StuckReason != "" && s.StuckReason == cut(e.Reason) {
			return "that is known already"
		}
	}
	return staleAfter(s, e)
}

// staleAfter is the staleness of what is said of children, of late results and
// of the end.
func staleAfter(s *p.State, e p.Event) string {
	switch e := e.(type) {
	case *p.ChildrenClosed:
		if !marksChildren(*s) {
			return "nobody waits for children"
		}
		if slices.ContainsFunc(e.Children, func(c p.ChildClosed) bool { return s.Children.Made.Has(c.N) && !s.Children.Closed.Has(c.N) }) {
			return ""
		}
		return "that is known already"
	case *p.Assigned:
		if s.Children != nil && slices.Contains(s.Children.Assigned, p.Assignment{N: e.N, Agent: e.Agent}) {
			return "that is known already"
		}
	case *p.LateResultUsed:
		if e.Seq != s.LateSeq {
			return fmt.Sprintf("late result %d, the last one is %d", e.Seq, s.LateSeq)
		}
	case *p.ResultParked:
		if slices.Contains(s.LateFences, e.Fence) || len(s.LateFences) >= p.LateResultsMax {
			return "that result was parked already, or as many as are kept"
		}
	case *p.SourceCompleted:
		if s.Phase != p.AwaitingSource {
			return "it has begun already"
		}
	case *p.ReturnSent:
		if s.ReturnTicket != "" {
			return "the return was sent already"
		}
	case *p.Returned:
		if !s.ReturnedAt.IsZero() {
			return "the return is settled already"
		}
	case *p.Redriven:
		if s.RedrivenAs != "" {
			return "it was redriven already"
		}
	case *p.Dismissed:
		if s.Closed && s.Inbox == "" {
			return "no inbox lists it"
		}
	}
	return ""
}

// staleOffer judges an event about an offer. mine says that the event comes
// from whoever may speak for the offer now.
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

// offerUntouched tells whether the current offer stands as it was made: nobody
// has had it, so there is no reason for another.
func offerUntouched(s *p.State) bool {
	return s.Offer != 0 && !s.Held() && s.ClaimedAt.IsZero() && s.AcceptedAt.IsZero()
}

// ranOut tells whether the clock that an event says ran out is one that runs, and
// had run out by then: the time-out of an earlier offer or attempt may look the
// same in all else.
func ranOut(s *p.State, e *p.TimedOut) bool {
	if s.Phase == p.AwaitingSource { // what has not begun closes at its deadline
		return false
	}
	waits := s.Phase == p.Pending && !s.Held() && s.Aggregate == nil && e.Agent == s.Agent
	switch e.Clock {
	case p.ClockAcknowledge:
		return waits && !e.At.Before(s.OfferedAt.Add(AckTimeout(*s)))
	case p.ClockQueue:
		return e.Agent == s.Agent && due(e.At, queueDue(*s))
	case p.ClockWork:
		return s.Fence != 0 && e.Agent == s.Agent && e.Attempt == s.Attempt && due(e.At, workDue(*s))
	case p.ClockProgress:
		ms := s.Policy.ProgressTimeoutMS
		return s.Fence != 0 && ms > 0 && e.Agent == s.Agent && e.Attempt == s.Attempt && !e.At.Before(progressSince(*s).Add(millis(ms)))
	case p.ClockReturn:
		return returnClock(*s) && !e.At.Before(returnDue(*s))
	case p.ClockCondition:
		asks := s.Conditions != nil && !e.At.Before(s.ConditionedAt.Add(millis(s.Policy.ConditionTimeoutMS)))
		return s.Phase == p.Conditional && e.Agent == s.Agent && !awaits(*s) && (asks || s.ConditionRounds > s.Policy.MaxConditions)
	case p.ClockDeadline:
		return s.TimedOut != p.ClockDeadline && !e.At.Before(Deadline(*s))
	}
	return true
}
