package lifecycle

import (
	"slices"

	p "github.com/agenthandoff/handoff/protocol"
)

// lineageOf is the lineage of a child that a handoff hands off to target, in words.
func lineageOf(parent p.State, target, hash string) *p.Lineage {
	return parent.Lineage.Then(p.NewHop(parent.Agent, target, hash))
}

// admitLineage refuses what is too deep, and a hand-off that was made a moment ago with the same
// context: nothing new comes of it. The way up is free.
func admitLineage(s p.Summary, d *Directory) error {
	if s.Lineage == nil || s.Type == p.Escalation || s.ReturnOf != "" {
		return nil
	}
	if s.Lineage.Depth > p.LineageDepthMax {
		return p.Errorf(p.CodeLimitExceeded, "limits.max_depth", "a lineage is at most %d hand-offs deep; answer, escalate or begin anew", p.LineageDepthMax)
	}
	window, repeats := loopRules(d)
	hops := s.Lineage.All()
	if len(hops) == 0 {
		return nil
	}
	last, edges := hops[len(hops)-1], 0
	for ago := 0; ago < len(hops); ago++ {
		hop := hops[len(hops)-1-ago]
		if ago > 0 && ago <= window && hop == last {
			return p.Errorf(p.CodeCircular, "task", "%s -> %s with an unchanged context, %d hops ago; change the task or the context, answer, or escalate", s.Source, s.Target, ago)
		}
		if hop.From == last.From && hop.To == last.To {
			edges++
		}
	}
	if repeats > 0 && edges > repeats {
		return p.Errorf(p.CodeCircular, "target", "%s -> %s for the %d. time in %d hand-offs, and at most %d are allowed; answer, or escalate", s.Source, s.Target, edges, len(hops), repeats)
	}
	return nil
}

// loopRules are the settings of the fleet for circles.
func loopRules(d *Directory) (window, repeats int) {
	window = p.LoopWindowDefault
	if d == nil || d.Fleet == nil || d.Fleet.Loops == nil {
		return window, 0
	}
	if w := d.Fleet.Loops.Window; w != nil {
		window = int(*w)
	}
	return window, int(d.Fleet.Loops.EdgeRepeats)
}

// admitMembers refuses a group with more members than its limits allow agents.
func admitMembers(s p.Summary, d *Directory) error {
	if s.Aggregate == nil || s.N > 0 {
		return nil
	}
	if limits := resolveLimits(s, d); limits != nil && limits.MaxAgents != nil && int64(s.Aggregate.Size) > *limits.MaxAgents {
		return p.Errorf(p.CodeLimitExceeded, "limits.max_agents", "at most %s, and the group has %d members", counted(*limits.MaxAgents, "agents"), s.Aggregate.Size)
	}
	return nil
}

// Deep tells whether a handoff is so deep in its lineage that its fleet may go in a loop.
func Deep(s p.Summary) bool { return s.Lineage.DepthOf() >= p.LineageDepthWarning }

// Repeated are those of the agents that hand off, or get, one handoff after the other of a lineage.
func Repeated(s p.Summary, agents ...string) (all []string) {
	for _, agent := range agents {
		times := 0
		for _, hop := range s.Lineage.All() {
			if hop.Names(agent) {
				times++
			}
		}
		if times > 2 && agent != "" && !slices.Contains(all, agent) { // once it gets it, and once it hands it off
			all = append(all, agent)
		}
	}
	return all
}
