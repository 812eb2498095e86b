package lifecycle

import (
	"cmp"
	"fmt"
	"slices"

	p "github.com/agenthandoff/handoff/protocol"
)

// candidatesKept is how many candidates a routing decision names.
const candidatesKept = 16

// needs are the capabilities that a target must have.
func needs(s p.Summary) []p.RequiredCapability {
	list := slices.Clone(s.Requires)
	if s.Target.Capability != "" && !slices.ContainsFunc(list, func(r p.RequiredCapability) bool { return r.ID == s.Target.Capability }) {
		list = append(list, p.RequiredCapability{ID: s.Target.Capability})
	}
	return list
}

// Route chooses the best agent for what a package needs, leaving out the
// excluded. The second result is false when there is none.
func Route(s p.Summary, d *Directory, excluded []string) (p.Routing, bool) {
	routing := p.Routing{Excluded: excluded}
	if d == nil {
		return routing, false
	}
	routing.Revision = d.Revision
	wanted := needs(s)
	if len(wanted) == 0 {
		return routing, false
	}
	loads := d.loads()
	var fit []contender
	for _, profile := range d.Agents {
		if contains(excluded, profile.ID) || profile.ID == s.Source || profile.ID == p.Human {
			continue
		}
		score, warnings, ok := fitness(profile, s, wanted)
		if !ok || score == 0 {
			continue
		}
		load := loads[profile.ID]
		fit = append(fit, contender{
			Candidate: p.Candidate{Agent: profile.ID, Score: score, Live: load.live, Busy: load.busy},
			serves:    load.live > 0 && !profile.Paused,
			load:      load.share(),
			warnings:  warnings,
		})
	}
	if len(fit) == 0 {
		return routing, false
	}
	slices.SortFunc(fit, compareContenders)
	routing.Choice, routing.Warnings = fit[0].Agent, fit[0].warnings
	for _, c := range fit[:min(len(fit), candidatesKept)] {
		routing.Candidates = append(routing.Candidates, c.Candidate)
	}
	return routing, true
}

// contender is a candidate and what it is compared by.
type contender struct {
	p.Candidate
	serves   bool
	load     float64
	warnings []string
}

// compareContenders puts first who is there and not paused, then who fits best,
// then who has the most room, then by name: the same directory gives the same
// choice.
func compareContenders(a, b contender) int {
	switch {
	case a.serves && !b.serves:
		return -1
	case b.serves && !a.serves:
		return 1
	}
	return cmp.Or(cmp.Compare(b.Score, a.Score), cmp.Compare(a.load, b.load), cmp.Compare(a.Agent, b.Agent))
}

// Reroute chooses who gets a handoff next: the alternative that the last
// refusal suggested if it is fit, else the best other agent. Agents that had
// it and are not there are not asked again. What was escalated does not go back
// down by itself: an authority may suggest somebody, else it goes further up.
func Reroute(s p.State, d *Directory) (p.Routing, bool) {
	excluded := appendAgent(s.Refused, s.Agent)
	if alt := s.Alternative; alt != "" && alt != s.Source && !contains(excluded, alt) && d != nil {
		if profile, known := d.Agent(alt); known {
			if score, warnings, ok := fitness(profile, s.Summary, needs(s.Summary)); ok {
				live, _, busy := d.Load(alt)
				return p.Routing{Revision: d.Revision, Excluded: excluded, Choice: alt, Warnings: warnings,
					Candidates: []p.Candidate{{Agent: alt, Score: score, Live: live, Busy: busy}}}, true
			}
		}
	}
	if s.EscalationLevel > 0 {
		return p.Routing{Excluded: excluded}, false
	}
	for _, agent := range s.Tried {
		if live, _, _ := d.Load(agent); live == 0 {
			excluded = appendAgent(excluded, agent)
		}
	}
	return Route(s.Summary, d, excluded)
}

// fitness scores a profile against what is wanted, 0 to 1 (document 1 §5.1). A
// partial match is fit, with a warning; a proficiency under the minimum is no
// match, nor is an agent that takes no handoffs or may not take the risk.
func fitness(profile p.Profile, s p.Summary, wanted []p.RequiredCapability) (score float64, warnings []string, ok bool) {
	if !profile.Accepts() || riskLevel(s.Risk) > riskLevel(cmp.Or(profile.MaxRisk, p.RiskHigh)) {
		return 0, nil, false
	}
	if len(wanted) == 0 {
		return 1, nil, true
	}
	total := 0.0
	for _, need := range wanted {
		proficiency, has := proficiencyOf(profile, need.ID)
		switch {
		case has && proficiency < need.MinProficiency:
			return 0, nil, false
		case has:
			total += proficiency
		default:
			if need.ID == s.Target.Capability { // the one asked for by name is not optional
				return 0, nil, false
			}
			warnings = append(warnings, fmt.Sprintf("%s lacks %s", profile.ID, need.ID))
		}
	}
	if len(warnings) == len(wanted) {
		return 0, warnings, false
	}
	return total / float64(len(wanted)), warnings, true
}

func proficiencyOf(profile p.Profile, capability string) (float64, bool) {
	for _, c := range profile.Capabilities {
		if c.ID == capability {
			return c.Proficiency, true
		}
	}
	return 1, profile.Specialization == capability
}

func riskLevel(r p.Risk) int {
	switch r {
	case p.RiskHigh:
		return 3
	case p.RiskMedium:
		return 2
	case p.RiskLow:
		return 1
	}
	return 0
}
