package lifecycle

import (
	"slices"

	p "github.com/agenthandoff/handoff/protocol"
)

// LineageOf is the lineage of what follows from a handoff, before its admission: source hands it off
// to a target, in words, with a hash of its context. The way up is no step of it.
func LineageOf(from *p.Lineage, kind p.Type, source, target, hash string) *p.Lineage {
	if kind == p.Escalation {
		return from
	}
	return from.Then(p.NewHop(source, target, hash))
}

// admitLineage refuses a hand-off that is too deep, one that was made before with the same context, and
// one that comes back too often with another reason. The way up is free.
func admitLineage(s p.Summary, d *Directory) error {
	if s.Lineage == nil || s.Type == p.Escalation || s.ReturnOf != "" {
		return nil
	}
	if s.Lineage.Depth > p.LineageDepthMax {
		return p.Errorf(p.CodeLimitExceeded, "lineage.depth", "%s -> %s would be hand-off %d of its lineage, and %d follow from one another at most: agents hand off in a loop; answer, escalate or begin anew", s.Source, s.Target, s.Lineage.Depth, p.LineageDepthMax)
	}
	if ago := s.Lineage.Again; ago > 0 {
		return p.Errorf(p.CodeCircular, "task", "%s -> %s with an unchanged context, %d hops ago; change the task or the context, answer, or escalate", s.Source, s.Target, ago)
	}
	hops, most := s.Lineage.All(), edgeRepeats(d)
	if len(hops) == 0 || most == 0 {
		return nil
	}
	if times := int64(hops[len(hops)-1].Times); times > most {
		return p.Errorf(p.CodeCircular, "target", "%s -> %s for the %d. time with the same work, and at most %d are allowed (loops.edge_repeats); change the task or the context, answer, or escalate", s.Source, s.Target, times, most)
	}
	return nil
}

// edgeRepeats is how often an agent may hand off the same work to the same other one; 0 is no bound.
func edgeRepeats(d *Directory) int64 {
	if d == nil || d.Fleet == nil || d.Fleet.Loops == nil || d.Fleet.Loops.EdgeRepeats == nil {
		return p.EdgeRepeatsDefault
	}
	return *d.Fleet.Loops.EdgeRepeats
}

// admitLimits refuses a submission whose limits leave it, or a member of it, nothing to begin with.
func admitLimits(s p.Summary, d *Directory) error {
	if !isSubmitted(&s) || s.Limits == nil && s.Class == "" && (d == nil || d.Fleet == nil) {
		return nil
	}
	limits, size := resolveLimits(s, d), int64(1)
	if s.Aggregate != nil {
		size = int64(s.Aggregate.Size)
	}
	for _, budget := range budgets {
		if most, bounded := limits.Of(budget); bounded && most < size {
			return p.Errorf(p.CodeBudget, "limits."+budget, "is %d, and the work of %d has nothing to begin with; give more, or leave it out", most, size)
		}
	}
	if most, bounded := limits.Of("max_agents"); bounded && size > most {
		return p.Errorf(p.CodeLimitExceeded, "limits.max_agents", "at most %s, and the group has %d members", counted(most, "agents"), size)
	}
	return nil
}

// Deep reports whether a handoff is so deep in its lineage that its fleet may go in a loop.
func Deep(s p.Summary) bool { return s.Lineage.DepthOf() >= p.LineageDepthWarning }

// Repeated are those of the agents that hand off, or get, one handoff after the other of a lineage.
func Repeated(s p.Summary, agents ...string) (all []string) {
	for _, agent := range agents {
		times := 0
		for _, hop := range s.Lineage.All() {
			if hop.Names(agent) {
				times += int(hop.Times)
			}
		}
		if times > 2 && agent != "" && !slices.Contains(all, agent) { // once it gets it, and once it hands it off
			all = append(all, agent)
		}
	}
	return all
}
