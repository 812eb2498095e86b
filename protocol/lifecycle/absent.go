package lifecycle

import (
	"fmt"
	"slices"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// What the absence of agents has moved goes back when one of them is there again, its addressee
// first, as long as no other agent has taken it. Each way back follows a reroute or an escalation,
// which are both bounded, so that no agent that comes and goes keeps a handoff moving.

// LapsedClaimsMax is how many claims in a row may lapse unacknowledged before an agent counts as
// absent.
const LapsedClaimsMax = 3

// lapsesOut reports whether a claim is the last that an agent may let lapse. A person may let lapse
// any number, and so may an agent whose package waits for no other.
func lapsesOut(s p.State) bool {
	return isClaimed(s) && s.LapsedClaims+1 >= LapsedClaimsMax && s.Agent != p.Human && s.Policy.OnNoTaker != p.NoTakerQueue
}

// recordAbsence records the agent that a handoff leaves for nothing but its absence.
func recordAbsence(s *p.State, now p.Time) {
	if s.Phase != p.PhaseTimeout || s.TimedOut != p.ClockAcknowledge || s.Agent == p.Human || s.Denied != "" || !s.OverdueSince.IsZero() || len(s.Absent) >= listMax {
		return
	}
	if s.Agent == "" && s.Target.Agent == "" && s.Target.Capability == "" {
		return
	}
	absence := p.Absence{Agent: s.Agent, Depth: len(s.Chain)}
	if s.LapsedClaims >= LapsedClaimsMax {
		absence.Until = now.Add(AckTimeout(*s))
	}
	s.Absent = append(slices.Clone(s.Absent), absence)
}

// goBack offers a handoff to an agent whose absence has moved it, when that is there again; nil
// else. The bound of all escalations bounds this, too: after the last one it stays.
func goBack(s p.State, d *Directory, meta p.Meta) []p.Event {
	if len(s.Absent) == 0 || s.Held() || !s.OverdueSince.IsZero() || s.Escalations >= p.EscalationsTotalMax {
		return nil
	}
	for _, absence := range s.Absent {
		routing, ok := backAt(s, absence, d, meta.At)
		if !ok {
			continue
		}
		why := reason{ReasonAgentBack, p.Facts{Agent: routing.Choice}}
		back := &p.Rerouted{Meta: meta, From: s.Agent, To: routing.Choice, ReasonCode: why.code, Facts: why.factsOrNil(), Reason: why.words()}
		if applyAll(&s, []p.Event{back}) != nil {
			return []p.Event{back} // which is a bug, and is found as one
		}
		if s.EscalationLevel > 0 {
			return []p.Event{back, offer(s, d, meta, s.Agent, OfferReroute, nil)}
		}
		return append([]p.Event{back}, offerOrGate(&s, d, meta, offerTo{agent: s.Agent, reason: OfferReroute})...)
	}
	return nil
}

// backAt returns the agent of an absence, if it is there again and may have the handoff.
func backAt(s p.State, absence p.Absence, d *Directory, now time.Time) (p.Routing, bool) {
	if now.Before(absence.Until) {
		return p.Routing{}, false
	}
	routing := p.Routing{Choice: absence.Agent}
	if absence.Agent == "" {
		to := s.Summary
		to.Excluded = slices.Concat(to.Excluded, s.Refused)
		var err error
		if routing, err = routeTarget(to, d); err != nil {
			return routing, false
		}
	}
	profile, known := d.Agent(routing.Choice)
	if !known || profile.Paused || routing.Choice == s.Agent || d.Reserved(profile.ID) || contains(s.Refused, profile.ID) || !d.fitAbove(&profile, &s.Summary) && !s.Overridden(profile.ID) {
		return routing, false
	}
	if from := edgesOf(s.Summary, d); absence.Agent == "" && !from.lead(&profile) { // it was not there to be asked for
		return routing, false
	}
	if _, _, lets := d.lets(profile.ID, s.Ticket); !lets {
		return routing, false
	}
	live, _, _ := d.Load(profile.ID)
	polled, polls := d.Polled(profile.ID)
	return routing, live > 0 || polls && !polled.Before(absence.Until)
}

// applyGoneBack takes a handoff back to where it was before an absence moved it.
func applyGoneBack(s *p.State, e *p.Rerouted) error {
	at := slices.IndexFunc(s.Absent, func(a p.Absence) bool { return a.Agent == e.To || a.Agent == "" })
	if at < 0 || s.Absent[at].Depth > len(s.Chain) {
		return fmt.Errorf("%w: back to %q, whose absence has not moved it", ErrIllegal, e.To)
	}
	absence := s.Absent[at]
	s.Absent = slices.Clip(s.Absent[:at])
	if len(s.Absent) == 0 {
		s.Absent = nil
	}
	if absence.Depth < len(s.Chain) {
		s.Chain = slices.Clip(s.Chain[:absence.Depth])
		askAuthority(s)
		takeAuthorityTime(s, e.At)
	}
	if len(s.Chain) == 0 {
		s.Chain = nil
	}
	s.EscalationLevel = authorityLevel(s)
	if s.Reason == ReasonUndelivered {
		s.Reason, s.Message = "", ""
	}
	moveTo(s, e.To)
	return nil
}

// Awaited is an agent, or a capability, whose arrival may concern a handoff.
type Awaited struct{ Agent, Capability string }

// Offers returns what the arrival of an agent offers: itself, and what it can do; nothing while it
// is paused or takes no handoffs.
func (d *Directory) Offers(agent string) (all []Awaited) {
	profile, known := d.Agent(agent)
	if !known || profile.Paused || !profile.Accepts() {
		return nil
	}
	all = append(all, Awaited{Agent: agent})
	if profile.Specialization != "" {
		all = append(all, Awaited{Capability: profile.Specialization})
	}
	for _, c := range profile.Capabilities {
		all = append(all, Awaited{Capability: c.ID})
	}
	return all
}

// AwaitedBy returns the agents whose arrival may move a handoff that no worker has.
func AwaitedBy(s p.State) (all []Awaited) {
	if s.Closed || s.Held() || s.Phase != p.Pending || s.Aggregate != nil {
		return nil
	}
	for _, absence := range s.Absent {
		if absence.Agent != "" {
			all = append(all, Awaited{Agent: absence.Agent})
			continue
		}
		all = append(all, Awaited{s.Target.Agent, s.Target.Capability})
	}
	if s.Agent == "" {
		all = append(all, Awaited{s.Target.Agent, s.Target.Capability})
	}
	return all
}
