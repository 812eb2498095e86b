package lifecycle

import (
	"cmp"
	"hash/fnv"
	"math"

	p "github.com/agenthandoff/handoff/protocol"
)

// How an agent is chosen among those that are fit. Whatever a rule compares is in the directory and
// in the ticket: the same of both gives the same choice.

// successSteps is how many steps of success are told apart: small differences are chance.
const successSteps = 20

// forTicket is the snapshot for the choice of one ticket's agent. It is d itself where the choice
// does not depend on that, as a rule.
func (d *Directory) forTicket(ticket string, s p.Summary) *Directory {
	if by := routeBy(s, d); by == "" || by == p.RouteByFit || d == nil || d.ticket == ticket {
		return d
	}
	next := *d
	next.ticket = ticket
	return &next
}

// routeBy is how the agent of a package is chosen; empty is p.RouteByFit.
func routeBy(s p.Summary, d *Directory) p.RouteBy {
	if s.RouteBy == "" && d != nil && d.Fleet != nil && d.Fleet.Routing != nil {
		return d.Fleet.Routing.By
	}
	return s.RouteBy
}

// balance gives a candidate what its rule compares.
func (d *Directory) balance(c *rankedCandidate, by p.RouteBy) {
	switch by {
	case p.RouteBySuccess:
		c.worth = math.Round(c.Score*successOf(d.Health[c.Agent].Health)*successSteps) / successSteps
		c.turn = turnOf(d.ticket, c.Agent)
	case p.RouteByLoad:
		c.worth, c.turn = c.Score, turnOf(d.ticket, c.Agent)
	default:
		c.worth = c.Score
	}
}

// successOf is the success of an agent, of all that ended of late. Two successes and two failures
// stand for what is not known. An agent that has not failed of late has 1: its successes are not
// counted.
func successOf(h p.Health) float64 {
	if h.Failed <= 0 {
		return 1
	}
	return (h.OK + 2) / (h.OK + h.Failed + 4)
}

// turnOf spreads tickets over equal agents, so that submitters that read the same directory do not
// all choose one.
func turnOf(ticket, agent string) uint64 {
	hash := fnv.New64a()
	hash.Write([]byte(ticket + "/" + agent))
	return mix(hash.Sum64())
}

// mix spreads the last bytes of a hash over all bits.
func mix(n uint64) uint64 {
	n ^= n >> 33
	n *= 0xff51afd7ed558ccd
	n ^= n >> 33
	n *= 0xc4ceb9fe1a85ec53
	return n ^ n>>33
}

// ranked is the first of the agents that a package names besides its target which is fit, one that
// is there before others. A capability is routed anew instead.
func ranked(s p.Summary, ticket string, d *Directory, excluded []string) (p.Routing, bool) {
	if len(s.Ranked) == 0 || s.Target.Capability != "" || d == nil { // as a rule
		return p.Routing{}, false
	}
	from := edgesOf(s, d)
	best := p.Routing{Revision: d.Revision, Excluded: excluded}
	standing := -1
	for _, agent := range s.Ranked {
		profile, known := d.Agent(agent)
		if !known || agent == s.Source || contains(excluded, agent) || d.Reserved(agent) || !from.lead(&profile) {
			continue
		}
		m, why := d.fit(&profile, &s, demand{wanted: requiredOf(s)})
		if _, _, lets := d.lets(agent, ticket); why != "" || !lets {
			continue
		}
		l := d.load(agent)
		best.Candidates = append(best.Candidates, p.Candidate{Agent: agent, Score: m.score, Live: l.live, Busy: l.busy})
		if own := min(availabilityRank(profile, l), 1); own > standing {
			best.Choice, best.Warnings, standing = agent, m.warnings, own
		}
	}
	return best, best.Choice != ""
}

// compareCandidates puts first the agents that workers serve, then those that poll; among them one
// that lacks the least, then the one that is worth the most, then the one with the most room, then
// whose turn it is, then by name.
func compareCandidates(a, b rankedCandidate) int {
	return cmp.Or(cmp.Compare(b.standing, a.standing), cmp.Compare(len(a.warnings), len(b.warnings)), cmp.Compare(b.worth, a.worth),
		cmp.Compare(a.load, b.load), cmp.Compare(a.turn, b.turn), cmp.Compare(a.Agent, b.Agent))
}
