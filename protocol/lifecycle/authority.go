package lifecycle

import (
	p "github.com/agenthandoff/handoff/protocol"
)

// giveAuthorityTime sets the return's clock anew for an authority that gets a handoff
// because a clock over the work ran out, its agent asked too often, or its source escalates
// at the return's end: to the time to intervene, and no less than the return's own.
func giveAuthorityTime(s *p.State, e *p.Escalated) {
	ranOut := s.TimedOut == p.ClockWork || s.TimedOut == p.ClockProgress || s.TimedOut == p.ClockReturn || s.TimedOut == p.ClockCondition ||
		e.ReasonCode == ReasonConditionsExhausted
	if s.ReturnSince.IsZero() || s.Policy.ReturnTimeoutMS <= 0 || !ranOut && s.Policy.OnReturnTimeout != p.OnTimeoutEscalate {
		return
	}
	s.ReturnSince, s.ReturnMS = e.At, max(s.Policy.ReturnTimeoutMS, s.Policy.InterventionTimeoutMS)
}

// takeAuthorityTime sets the return's clock anew, to its own time, for a handoff that
// leaves an authority.
func takeAuthorityTime(s *p.State, at p.Time) {
	if s.ReturnMS != 0 {
		s.ReturnSince, s.ReturnMS = at, 0
	}
}
