package lifecycle

import (
	"strings"

	p "github.com/agenthandoff/handoff/protocol"
)

// The edges of the fleet say which agent hands off to which, and whether one hands off at all. The
// orchestrator alone decides routing: what a profile says binds agents, and never a person. The way
// up is free as well: escalations, what goes to a person, returns, redrives and answers.

// ReadsSource tells whether the profile of its source says whether a handoff may begin. A child
// that its parent has recorded was admitted with that record.
func ReadsSource(s p.Summary) bool {
	return hasEdges(s) && (s.N == 0 || s.Group != "") && s.Target.Agent != p.Human
}

// hasEdges tells whether it is handed off by an agent, and of its own accord.
func hasEdges(s p.Summary) bool {
	return s.Source != p.Human && s.Type != p.Escalation && s.ReturnOf == "" && s.CallOf == "" && s.Origin == ""
}

// checkEdges says whether the source of a handoff may hand it off, to the agent that it names.
func checkEdges(s p.Summary, d *Directory) error {
	if !ReadsSource(s) {
		return nil
	}
	from := edgesOf(s, d)
	if name := s.Target.Agent; name != "" {
		if to, known := d.Agent(name); known {
			if err := from.refuses(to); err != nil {
				return err
			}
		}
	}
	if s.Group != "" { // the group itself is asked
		return nil
	}
	switch from.handoffs {
	case p.HandoffsOff:
		return p.Errorf(p.CodeHandoffsOff, "source", "%s hands off nothing (handoffs is off); it does the work itself, or escalates it", s.Source)
	case p.HandoffsSimple:
		if s.Aggregate != nil || s.Type != p.Sequential && s.Type != p.Delegation {
			return p.Errorf(p.CodeHandoffsOff, "type", "%s hands off to one agent at a time (handoffs is simple): sequential handoffs and delegations", s.Source)
		}
	}
	return nil
}

// CheckParent refuses a submission that names a parent which is open and has limits: it would be on
// no account. Under the lease of the parent it is handed off, and counts.
func CheckParent(parent p.State) error {
	if parent.Closed || parent.Account == nil {
		return nil
	}
	return p.Errorf(p.CodeForbidden, "parent", "%s is open and has limits; hand it off under the lease of that, or name no parent", parent.Ticket)
}

// edges is what an agent may hand off. The zero value is everything.
type edges struct {
	source   string // empty: nothing bars what it hands off
	handsTo  []string
	handoffs p.HandoffMode
}

// edgesOf are the edges that hold for a handoff.
func edgesOf(s p.Summary, d *Directory) edges {
	if !hasEdges(s) {
		return edges{}
	}
	profile, _ := d.Agent(s.Source)
	if profile.Handoffs == "" && d != nil && d.Fleet != nil {
		profile.Handoffs = d.Fleet.Handoffs
	}
	return edges{s.Source, profile.HandsTo, profile.Handoffs}
}

// lead tells whether the source may hand off to an agent.
func (e edges) lead(to *p.Profile) bool {
	from := p.Profile{HandsTo: e.handsTo}
	return e.source == "" || to.ID == p.Human || from.HandsOffTo(to.ID) && to.AcceptsHandoffsFrom(e.source)
}

// refuses is the error where the source may not hand off to an agent.
func (e edges) refuses(to p.Profile) error {
	if e.lead(&to) {
		return nil
	}
	if from := (p.Profile{HandsTo: e.handsTo}); !from.HandsOffTo(to.ID) {
		return p.Errorf(p.CodeForbidden, "target.agent", "%s hands off to %s (hands_to), not to %s; the orchestrator alone decides routing",
			e.source, strings.Join(e.handsTo, ", "), to.ID)
	}
	return p.Errorf(p.CodeForbidden, "target.agent", "%s takes handoffs from %s (accepts_from), not from %s; the orchestrator alone decides routing",
		to.ID, strings.Join(to.AcceptsFrom, ", "), e.source)
}
