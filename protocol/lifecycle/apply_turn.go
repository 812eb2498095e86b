package lifecycle

import (
	"fmt"
	"slices"

	p "github.com/agenthandoff/handoff/protocol"
)

// Turns: an answer, the next attempt, another agent, an authority, a holder that is gone.

func applyAnswered(s *p.State, e *p.Answered) error {
	asked := s.Phase == p.Conditional
	s.Conditions = nil // a second answer finds nothing asked
	endQueueClock(s)
	if s.Held() {
		uncharge(s)
		endAttempt(s)
	}
	switch {
	case e.Answer.Deny:
		deny(s, e.Answer)
		return nil
	case asked:
		s.RetryAt = e.At // should no Offered follow in the append, Decide makes it
	default: // an authority has resolved an escalation: it goes on where it was
		last := len(s.Chain) - 1
		for last > 0 && (s.Chain[last] == s.Chain[last-1] || slices.Contains(s.Refused, s.Chain[last])) { // who did not want it need not carry it down
			last--
		}
		back := s.Chain[last]
		takeAuthorityTime(s, e.At)
		s.Chain = slices.Clone(s.Chain[:last])
		s.EscalationLevel = authorityLevel(s)
		askAuthority(s)
		s.Refused = withoutAgent(s.Refused, back)
		moveTo(s, back)
		s.Phase, s.Offer = p.Pending, 0
		if back == "" { // no agent had been found when it went up: it has no offer yet
			s.OfferedAt = p.Time{}
		}
	}
	s.Supplements++
	s.Reason, s.Denied, s.Absent = "answer", "", nil
	return nil
}

func applyRetryScheduled(s *p.State, e *p.RetryScheduled) error {
	if s.TimedOut == p.ClockReturn { // the retry has as long again
		s.ReturnSince = e.Due
	}
	s.RetryAt, s.TimedOut = e.Due, "" // what follows the time-out is decided
	s.Retries++
	return nil
}

func applyRerouted(s *p.State, e *p.Rerouted) error {
	undecided := s.Phase == p.PhaseRejected || s.Phase == p.PhaseTimeout || s.Phase == p.AwaitingApproval ||
		e.ReasonCode == ReasonBreakerOpen && !s.Held()
	if err := checkBehindGate(s, e.To); err != nil {
		return err
	}
	switch {
	case e.ReasonCode == ReasonAgentBack && !e.Manual && !s.Held() && s.Phase == p.Pending:
		return applyGoneBack(s, e)
	case s.Aggregate != nil || e.To == "":
		return fmt.Errorf("%w: rerouted to %q", ErrIllegal, e.To)
	case !e.Manual && !undecided:
		return fmt.Errorf("%w: rerouted in phase %q without being asked to", ErrIllegal, s.Phase)
	case !e.Manual:
		recordAbsence(s, e.At)
		s.Reroutes++
		moveTo(s, e.To)
		return nil
	}
	if s.Fence != 0 {
		s.Phase = p.Pending
	}
	uncharge(s)
	endQueueClock(s)
	takeAuthorityTime(s, e.At)
	endAttempt(s)
	s.Refused, s.Denied = withoutAgent(s.Refused, e.To), ""
	s.Absent, s.Override = nil, nil
	if len(e.Override) > 0 {
		s.Override = &p.Override{Agent: e.To, By: e.By, Rules: e.Override}
	}
	if s.Reason == ReasonUndelivered {
		s.Reason, s.Message = "", ""
	}
	moveTo(s, e.To)
	s.Offer = 0
	if !e.Deadline.IsZero() {
		s.Deadline, s.OverdueSince = e.Deadline, p.Time{}
		if !s.ReturnSince.IsZero() { // its clock stood still
			s.ReturnSince = e.At
		}
	}
	return nil
}

func applyEscalated(s *p.State, e *p.Escalated) error {
	if e.Level != s.EscalationLevel+1 || e.To == "" || s.Aggregate != nil {
		return fmt.Errorf("%w: escalated to %q at level %d from level %d", ErrIllegal, e.To, e.Level, s.EscalationLevel)
	}
	recordAbsence(s, e.At)
	if s.Fence != 0 { // its holder passes it up
		s.Phase, s.Reason, s.Message = p.Pending, "escalated", cut(e.Reason)
	} else if e.ReasonCode != "" && (e.Facts == nil || len(e.Facts.Causes) == 0) { // else the cause stays
		s.Reason = cutCode(e.ReasonCode)
	}
	if e.ReasonCode == ReasonUndelivered { // nothing before it says why
		s.Message, s.Absent = cut(e.Reason), []p.Absence{{}}
	}
	endAttempt(s)
	giveAuthorityTime(s, e)
	s.Escalations++
	s.EscalationLevel = e.Level
	from := e.From
	if last := len(s.Chain) - 1; last >= 0 && s.Phase == p.PhaseTimeout && (s.TimedOut == p.ClockAcknowledge || s.TimedOut == p.ClockQueue) {
		from = s.Chain[last] // an authority that never took it has nothing to pass down: an answer goes past it
	}
	s.Chain = append(slices.Clone(s.Chain), from)
	askAuthority(s)
	if s.Denied != "" { // a decider has its turn once
		s.Refused = appendAgent(s.Refused, e.From)
	}
	moveTo(s, e.To)
	s.Offer, s.TimedOut = 0, "" // what followed the clock is decided
	return nil
}

func applyLeaseLost(s *p.State, e *p.LeaseLost) error {
	if !s.Held() {
		return fmt.Errorf("%w: lease lost without a holder", ErrIllegal)
	}
	if s.Fence != 0 {
		s.LeasesLost++
		s.Retries++
		s.Reason, s.Message = "lease_lost", "the worker that had it is gone"
	} else {
		s.LapsedClaims++
	}
	endClaim(s)
	endAttempt(s)
	return nil
}

func applyReleased(s *p.State, e *p.Released) error {
	if !s.Held() {
		return fmt.Errorf("%w: released without a holder", ErrIllegal)
	}
	uncharge(s)
	endClaim(s)
	endAttempt(s)
	s.LapsedClaims = 0
	return nil
}

func applyTimedOut(s *p.State, e *p.TimedOut) error {
	if e.Clock == p.ClockReturn { // what follows has as long again
		waits := waitsOn(s)
		s.ReturnTimeouts++
		s.ReturnSince, s.ReturnMS = e.At, 0
		if waits {
			return nil
		}
	}
	s.Phase, s.TimedOut, s.Reason = p.PhaseTimeout, e.Clock, string(e.Clock)+"_timeout"
	if e.Clock == p.ClockAcknowledge && s.LapsedClaims >= LapsedClaimsMax {
		s.Reason = ReasonClaimsLapsed
	}
	s.Conditions, s.Gate = nil, nil
	endProbe(s)
	if e.Clock == p.ClockDeadline && s.Aggregate == nil && s.OverdueSince.IsZero() {
		s.OverdueSince = e.At
	}
	endAwait(s)
	dropPending(s)
	endQueueClock(s)
	endAttempt(s)
	return nil
}
