package lifecycle

import (
	"slices"

	p "github.com/agenthandoff/handoff/protocol"
)

// candidatesKept is how many candidates a routing decision names.
const candidatesKept = 16

// requiredOf are the capabilities that a target must have.
func requiredOf(s p.Summary) []p.RequiredCapability {
	list := slices.Clone(s.Requires)
	if s.Target.Capability != "" && !slices.ContainsFunc(list, func(r p.RequiredCapability) bool { return r.ID == s.Target.Capability }) {
		list = append(list, p.RequiredCapability{ID: s.Target.Capability})
	}
	return list
}

// demand is what an agent is chosen by.
type demand struct {
	wanted []p.RequiredCapability
	all    bool // a partial match is none, whatever the policies say
}

// demandOf is what a package requires. Where it requires nothing, what the agent
// that it names offers stands for that: its specialization, or all of its
// capabilities where it has none. An agent that declares neither has no equivalent.
func demandOf(s p.Summary, d *Directory) demand {
	if list := requiredOf(s); len(list) > 0 {
		return demand{wanted: list}
	}
	if s.Target.Agent == "" || s.Target.Agent == p.Human {
		return demand{}
	}
	named, _ := d.Agent(s.Target.Agent)
	if named.Specialization != "" {
		return demand{[]p.RequiredCapability{{ID: named.Specialization}}, true}
	}
	var list []p.RequiredCapability
	for _, c := range named.Capabilities {
		list = append(list, p.RequiredCapability{ID: c.ID})
	}
	return demand{list, true}
}

// Route chooses the best agent for what a package needs, leaving out the
// excluded. The second result is false when there is none.
func Route(s p.Summary, d *Directory, excluded []string) (p.Routing, bool) {
	routing := p.Routing{Excluded: excluded}
	if d == nil {
		return routing, false
	}
	routing.Revision = d.Revision
	fit := fitting(s, d, excluded)
	if len(fit) == 0 {
		return routing, false
	}
	routing.Choice, routing.Warnings = fit[0].Agent, fit[0].warnings
	for _, c := range fit[:min(len(fit), candidatesKept)] {
		routing.Candidates = append(routing.Candidates, c.Candidate)
	}
	return routing, true
}

// fitting are the agents that may have what a package needs, the best first.
func fitting(s p.Summary, d *Directory, excluded []string) (fit []rankedCandidate) {
	wanted := demandOf(s, d)
	if d == nil || len(wanted.wanted) == 0 {
		return nil
	}
	loads, from, by := d.loads(), edgesOf(s, d), routeBy(s, d)
	for _, profile := range d.Agents {
		if contains(excluded, profile.ID) || profile.ID == s.Source || profile.ID == p.Human || d.Reserved(profile.ID) {
			continue
		}
		m, why := d.fit(&profile, &s, wanted)
		if why != "" || m.score == 0 || !from.lead(&profile) {
			continue
		}
		load := loads[profile.ID]
		standing := availabilityRank(profile, load)
		if d.breakers != nil {
			mark, _, lets := d.lets(profile.ID, "")
			if !lets {
				continue
			}
			if mark == p.BreakerProbe { // behind all others
				standing = -1
			}
		}
		c := rankedCandidate{
			Candidate: p.Candidate{Agent: profile.ID, Score: m.score, Live: load.live, Busy: load.busy},
			standing:  standing,
			load:      load.share(),
			warnings:  m.warnings,
		}
		d.balance(&c, by)
		fit = append(fit, c)
	}
	slices.SortFunc(fit, compareCandidates)
	return fit
}

// rankedCandidate is a candidate and what it is compared by.
type rankedCandidate struct {
	p.Candidate
	standing int     // availabilityRank; of a half-open breaker -1
	worth    float64 // what it is chosen for: its score, or that by its success
	load     float64
	turn     uint64
	warnings []string
}

// availabilityRank ranks agents by how soon they are likely to take an offer: 2 is served
// by a worker, 1 polls, 0 is absent or paused.
func availabilityRank(profile p.Profile, l load) int {
	switch {
	case profile.Paused:
		return 0
	case l.live > 0:
		return 2
	case l.polling:
		return 1
	}
	return 0
}

// Reroute chooses the agent that gets a handoff next: the alternative that the
// last refusal suggested if it is fit, else one that the package ranks, else the best other agent. Agents that had
// it and are not there are not asked again. What was escalated does not go back
// down by itself: an authority may suggest an agent, else it goes further up.
func Reroute(s p.State, d *Directory) (p.Routing, bool) {
	excluded := appendAgent(s.Refused, s.Agent)
	if routing, ok := suggested(s, d, excluded); ok {
		return routing, true
	}
	if s.EscalationLevel > 0 {
		return p.Routing{Excluded: excluded}, false
	}
	for _, agent := range s.Tried {
		if !d.Attended(agent) {
			excluded = appendAgent(excluded, agent)
		}
	}
	if routing, ok, settled := byBids(s, d, excluded); settled {
		return routing, ok
	}
	if routing, ok := ranked(s.Summary, s.Ticket, d, excluded); ok {
		return routing, true
	}
	return Route(s.Summary, d.forTicket(s.Ticket, s.Summary), excluded)
}

// suggested is the alternative that the last refusal named, if it is fit. A
// person is, whatever the package requires.
func suggested(s p.State, d *Directory, excluded []string) (p.Routing, bool) {
	alternative := s.Alternative
	if alternative == "" || contains(excluded, alternative) || d == nil || d.Reserved(alternative) {
		return p.Routing{}, false
	}
	routing := p.Routing{Revision: d.Revision, Excluded: excluded, Choice: alternative}
	switch alternative {
	case p.Human: // also where a person is the source, as in an escalation
		return routing, true
	case s.Source:
		return p.Routing{}, false
	}
	profile, known := d.Agent(alternative)
	if !known {
		return p.Routing{}, false
	}
	m, why := d.fit(&profile, &s.Summary, demand{wanted: requiredOf(s.Summary)})
	ok := why == ""
	if from := edgesOf(s.Summary, d); s.EscalationLevel == 0 && !from.lead(&profile) { // an authority sends it where it likes
		ok = false
	}
	if _, _, lets := d.lets(alternative, s.Ticket); !ok || !lets {
		return p.Routing{}, false
	}
	live, _, busy := d.Load(alternative)
	routing.Warnings = m.warnings
	routing.Candidates = []p.Candidate{{Agent: alternative, Score: m.score, Live: live, Busy: busy}}
	return routing, true
}
