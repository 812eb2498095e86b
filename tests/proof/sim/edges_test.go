//go:build proof

package sim

import (
	"maps"
	"slices"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// Planted bugs of edges.
const (
	handsToUnread  bug = "hands_to not asked for"
	acceptsUnread  bug = "accepts_from not asked for"
	handoffsUnread bug = "the mode of an agent's handoffs not asked for"
)

// edgeSet is what the profiles of agents say of handoffs.
type edgeSet map[string]protocol.Profile

// The edges of every fifth simulation, and those that follow halfway, which allow more.
var (
	narrowEdges = edgeSet{
		"a": {HandsTo: []string{"b*"}},
		"b": {Handoffs: protocol.HandoffsSimple},
		"c": {AcceptsFrom: []string{"lead", "outs*"}, Handoffs: protocol.HandoffsOff},
	}
	widerEdges = edgeSet{
		"a": {HandsTo: []string{"b*", "c", "lead"}},
		"b": {Handoffs: protocol.HandoffsSimple},
		"c": {AcceptsFrom: []string{"lead", "outs*", "a"}, Handoffs: protocol.HandoffsOff},
	}
)

func (l *simulation) hasEdges() bool { return l.seed%5 == 3 && l.bug != overrideLost }

// giveEdges gives an agent the edges of a set.
func (s edgeSet) giveEdges(p *protocol.Profile) {
	own := s[p.ID]
	p.HandsTo, p.AcceptsFrom, p.Handoffs = own.HandsTo, own.AcceptsFrom, own.Handoffs
}

// setEdges gives agents their edges, and the wider ones halfway.
func (l *simulation) setEdges() {
	if !l.hasEdges() {
		return
	}
	l.putEdges(narrowEdges)
	l.all.Go(func() {
		if l.sleep(faultsFor / 2); l.ctx.Err() == nil {
			l.putEdges(widerEdges)
		}
	})
}

func (l *simulation) putEdges(set edgeSet) {
	l.judge.mu.Lock()
	l.judge.edges = append(l.judge.edges, set)
	l.judge.mu.Unlock()
	for _, agent := range slices.Sorted(maps.Keys(set)) {
		profile, err := l.m.Profile(l.ctx, agent)
		if set.giveEdges(&profile); err == nil {
			err = l.m.PutProfile(l.ctx, profile)
		}
		if err != nil && l.ctx.Err() == nil {
			l.judge.fault("put the edges of %s: %v", agent, err)
		}
	}
}

// allows is the judge's own reading of a set.
func (s edgeSet) allows(from, to string) bool {
	in := func(list []string, id string) bool {
		return len(list) == 0 || slices.ContainsFunc(list, func(one string) bool {
			n := len(one) - 1
			return one == id || one[n] == '*' && len(id) >= n && id[:n] == one[:n]
		})
	}
	return in(s[from].HandsTo, to) && in(s[to].AcceptsFrom, from)
}

// bound reports whether an agent hands off of its own accord: people, and the way up, are free.
func bound(s protocol.Summary) bool {
	return s.Source != protocol.Human && s.Type != protocol.Escalation && s.ReturnOf == "" && s.CallOf == "" && s.Origin == ""
}

// checkEdges: no agent hands off what its profile never allowed so far, and nothing is offered along
// an edge that profiles never allowed. People, and the way up, are free.
func (j *judge) checkEdges(before, after protocol.State, events []protocol.Event) {
	s := after.Summary
	if len(j.edges) == 0 || !bound(s) {
		return
	}
	allowed := func(by func(edgeSet) bool) bool { return slices.ContainsFunc(j.edges, by) }
	for _, e := range events {
		switch e := e.(type) {
		case *protocol.Submitted:
			if !allowed(func(set edgeSet) bool { return set[s.Source].Handoffs != protocol.HandoffsOff }) {
				j.faultLocked("%s hands off %s, and its handoffs are off", s.Source, after.Ticket)
			}
			if after.Aggregate != nil && !allowed(func(set edgeSet) bool { return set[s.Source].Handoffs != protocol.HandoffsSimple }) {
				j.faultLocked("%s hands off %s to several, and its handoffs are simple", s.Source, after.Ticket)
			}
		case *protocol.Offered:
			up := e.Agent == protocol.Human || before.EscalationLevel > 0 || after.EscalationLevel > 0
			if !up && !allowed(func(set edgeSet) bool { return set.allows(s.Source, e.Agent) }) {
				j.faultLocked("%s is offered to %s, and no edge leads there from %s", after.Ticket, e.Agent, s.Source)
			}
		}
	}
}

// seenProfile is a profile as processes read it: without what a planted bug does not ask for.
func (l *simulation) seenProfile(p protocol.Profile) protocol.Profile {
	switch l.bug {
	case autonomyUnread:
		p.AutonomyBudget = nil
	case handsToUnread:
		p.HandsTo = nil
	case acceptsUnread:
		p.AcceptsFrom = nil
	case handoffsUnread:
		p.Handoffs = ""
	}
	return p
}

// seenDirectory is the directory as processes read it.
func (l *simulation) seenDirectory(d *lifecycle.Directory) *lifecycle.Directory {
	switch l.bug {
	case handsToUnread, acceptsUnread, handoffsUnread, fleetModeUnread, autonomyUnread, classIgnored:
	default:
		return d
	}
	seen := *d
	if d.Fleet != nil {
		fleet := l.seenFleet(*d.Fleet)
		seen.Fleet = &fleet
	}
	seen.Agents = make(map[string]*protocol.Profile, len(d.Agents))
	for id, profile := range d.Agents {
		as := l.seenProfile(*profile)
		seen.Agents[id] = &as
	}
	return &seen
}
