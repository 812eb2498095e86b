package lifecycle

import (
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// A denial is the word of the source, a person or an authority. It ends the handoff, unless the
// package names deciders: they are asked in their order, until one permits it, does the work
// itself, or none is left. A denial that lets others is a refusal, and nothing of this applies.

// deny records a denial. The agent that asked, or the authority that said no, has refused.
func deny(s *p.State, answer p.Answer) {
	s.Phase = p.PhaseRejected
	endProbe(s)
	s.Refused = appendAgent(s.Refused, s.Agent)
	s.Reason, s.Message = reasonDenied, cut(answer.DenyReason)
	s.Denied = ""
	if answer.LetOthers {
		return
	}
	s.Denied = cutCode(answer.By)
	if s.Denied == "" {
		s.Denied = s.Source
	}
	if contains(s.Deciders, s.Denied) { // and is not asked again
		s.Refused = appendAgent(s.Refused, s.Denied)
	}
}

// nextDecider is the first decider that has not been asked, or none. The source, which answers
// before them, is none.
func nextDecider(s p.State, d *Directory) string {
	if s.Escalations >= p.EscalationsTotalMax+p.DecidersMax { // permitted and asked again, without end
		return ""
	}
	for _, name := range s.Deciders {
		profile, known := d.Agent(name)
		if known && d.fitAbove(&profile, &s.Summary) && name != s.Agent && name != s.Source && !contains(s.Refused, name) && !d.Reserved(name) {
			return name
		}
	}
	return ""
}

// deniedEnds reports whether a denial is the end: no decider is left to be asked, or a clock has run
// out by now at which the policy closes the handoff before one is.
func deniedEnds(s p.State, d *Directory, now time.Time) bool {
	if nextDecider(s, d) == "" {
		return true
	}
	if hasPassed(now, Deadline(s)) {
		return s.Policy.OnDeadline == p.DeadlineClose || !s.OverdueSince.IsZero()
	}
	on := s.Policy.OnReturnTimeout
	return returnClock(s) && hasPassed(now, returnDue(s)) && on != p.OnTimeoutEscalate && on != p.OnTimeoutRetry
}

// closeDenied ends a handoff that was denied. No inbox lists it, for that would ask again;
// but for a return, which is no dead letter either.
func closeDenied(s p.State, meta p.Meta) p.Event {
	inbox := ""
	if s.ReturnOf != "" {
		inbox = p.Human
	}
	end := closed(meta, p.OutcomeRejected, reason{ReasonDenied, p.Facts{Agent: s.Denied}}, inbox)
	if s.Reason == reasonDenied && s.Message != "" {
		end.Message += ": " + s.Message
	}
	return end
}
