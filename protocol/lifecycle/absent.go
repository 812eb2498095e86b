package lifecycle

import (
	p "github.com/agenthandoff/handoff/protocol"
)

// What only the absence of its agent has brought to a person goes back when the agent is there
// again: once more than a person can see to, it would stay there for good.

// escalatedForAbsence tells whether an escalation follows from nothing but the absence of the agent.
func escalatedForAbsence(s *p.State, e *p.Escalated) bool {
	return e.To == p.Human && e.From != "" && e.From != p.Human && e.From == s.Agent && s.Denied == "" && s.OverdueSince.IsZero() &&
		s.Phase == p.PhaseTimeout && s.TimedOut == p.ClockAcknowledge
}

// goBack offers a handoff to the agent whose absence brought it to a person, when that is there
// again; nil else. The bound of all escalations bounds this, too: after the last one it stays.
func goBack(s p.State, d *Directory, meta p.Meta) []p.Event {
	if s.Absent == "" || s.Agent != p.Human || s.Held() || !s.OverdueSince.IsZero() || s.Escalations >= p.EscalationsTotalMax {
		return nil
	}
	profile, known := d.Agent(s.Absent)
	if !known || profile.Paused || !d.fitAbove(&profile, &s.Summary) && !s.Overridden(s.Absent) || !d.Attended(s.Absent) || d.Reserved(s.Absent) || contains(s.Refused, s.Absent) {
		return nil
	}
	why := reason{ReasonAgentBack, p.Facts{Agent: s.Absent}}
	return []p.Event{
		&p.Rerouted{Meta: meta, From: s.Agent, To: s.Absent, ReasonCode: why.code, Facts: why.factsOrNil(), Reason: why.words()},
		offer(s, d, meta, s.Absent, OfferReroute, nil),
	}
}

// applyGoneBack takes a handoff one level down, as if it had not gone up.
func applyGoneBack(s *p.State, e *p.Rerouted) {
	s.Chain = s.Chain[: len(s.Chain)-1 : len(s.Chain)-1]
	if len(s.Chain) == 0 {
		s.Chain = nil
	}
	s.EscalationLevel = authorityLevel(s)
	askAuthority(s)
	takeAuthorityTime(s, e.At)
	moveTo(s, e.To)
}
