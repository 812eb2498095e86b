package lifecycle

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	p "github.com/agenthandoff/handoff/protocol"
)

// Bounds of the parts of a State: it must stay under protocol.StateBytesMax.

// messageBytesMax is how much text of an error or a refusal the State keeps, counted in JSON. The
// event keeps all of it.
const messageBytesMax = 2 << 10

// listMax bounds the lists of agents in a State; beyond it the oldest are dropped.
const listMax = 48

// conditionsKept is how many needs of either kind the State keeps, each cut to 128 bytes; the event
// keeps all of them.
const conditionsKept = 16

// appendAgent appends to a list without changing the array of an older State.
func appendAgent(list []string, agent string) []string {
	if agent == "" || slices.Contains(list, agent) {
		return list
	}
	return appendLast(list, agent, listMax)
}

// appendLast appends to a list in a new array, and drops the oldest beyond most.
func appendLast[T any](list []T, last T, most int) []T {
	next := append(slices.Clone(list), last)
	return next[max(0, len(next)-most):]
}

// withoutAgent returns the list without an agent, in a new array.
func withoutAgent(list []string, agent string) []string {
	if !slices.Contains(list, agent) {
		return list
	}
	return slices.DeleteFunc(slices.Clone(list), func(a string) bool { return a == agent })
}

func cutAll(list []string) []string {
	if len(list) == 0 {
		return nil
	}
	if len(list) > conditionsKept {
		list = list[:conditionsKept]
	}
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = cutTo(s, 128)
	}
	return out
}

func cut(s string) string { return cutTo(s, messageBytesMax) }

// cutCode bounds a short machine-readable word.
func cutCode(s string) string { return cutTo(s, 128) }

// cutTo returns the beginning of a text that takes at most so many bytes in JSON. StateBytesMax is
// counted in JSON, where a control character takes six bytes.
func cutTo(s string, most int) string {
	const escaped = len(`\u0000`)
	if len(s) <= most/escaped {
		return s
	}
	if len(s) > most+utf8.UTFMax {
		s = s[:most+utf8.UTFMax]
	}
	s = strings.ToValidUTF8(s, "\uFFFD")
	size := 0
	for i, r := range s {
		switch {
		case strings.ContainsRune("\"\\\b\f\n\r\t", r):
			size += 2
		case r < ' ' || r == '\u2028' || r == '\u2029':
			size += escaped
		default:
			size += utf8.RuneLen(r)
		}
		if size > most {
			return strings.TrimSpace(s[:i]) + "…"
		}
	}
	return s
}

// A refusal outlives the refused handoff: its children and its redrives are not offered to the
// agents that refused it, unless they ask for other work.

// Inherit returns the agents that a child is not offered to: those that refused its parent or an
// ancestor of it. No agent is excluded from another task, or from one that needs other capabilities
// than the parent. A person may always be asked. An escalation skips all agents that have passed it
// up: its path visits no agent twice.
func Inherit(parent p.State, child p.Summary, sameTask bool) []string {
	if passesUp(parent, child) {
		path := Refusers(parent)
		for _, agent := range append([]string{parent.Source}, parent.Chain...) {
			if agent != p.Human {
				path = appendAgent(path, agent)
			}
		}
		return path
	}
	of, wanted := requiredOf(parent.Summary), requiredOf(child)
	shares := slices.ContainsFunc(wanted, func(r p.RequiredCapability) bool {
		return slices.ContainsFunc(of, func(other p.RequiredCapability) bool { return other.ID == r.ID })
	})
	if !sameTask || len(of) > 0 && len(wanted) > 0 && !shares {
		return nil
	}
	return Refusers(parent)
}

// passesUp reports whether both parent and child are escalations.
func passesUp(parent p.State, child p.Summary) bool {
	return parent.Type == p.Escalation && child.Type == p.Escalation
}

// Inherits reports whether agents may be excluded from a child.
func Inherits(parent p.State, child p.Summary) bool {
	return len(Refusers(parent)) > 0 || passesUp(parent, child)
}

// Refusers returns the agents that refused a handoff or an ancestor of it, except a person.
func Refusers(s p.State) []string {
	if len(s.Refused) == 0 {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(s.Refused), func(agent string) bool { return agent == p.Human })
}

// substituteFor finds another agent for a handoff whose target refused it before: an equivalent
// one, else the authority above it. For a redrive the person chooses instead, and a member of a
// group counts as not succeeded.
func substituteFor(name string, s p.Summary, q Query) (p.Routing, error) {
	if routing, ok := ranked(s, "", q, s.Excluded); ok {
		return routing, nil
	}
	if routing, ok := route(s, q, s.Excluded); ok {
		return routing, nil
	}
	routing := p.Routing{Excluded: s.Excluded, Revision: q.revision()}
	switch {
	case s.Origin != "":
		return routing, p.Errorf(p.CodeNoAgent, "target.agent", "%s refused it, and no other agent is fit; offer it there once more, or name another agent", name)
	case s.Group != "":
		return routing, p.Errorf(p.CodeNoAgent, "target.agent", "%s refused the handoff that this one follows from, and no other agent is fit", name)
	}
	routing.Choice = authorityAt(p.State{Summary: s, Agent: name, Refused: s.Excluded, Policy: resolvePolicy(s, &p.Profile{}, q.Directory)}, q, 1)
	routing.Warnings = []string{fmt.Sprintf("%s refused the handoff that this one follows from, and no other agent is fit", name)}
	return routing, nil
}

// LineageOf returns the lineage of a handoff before its admission. It adds the step from source to
// target with a hash of the context. An escalation adds no step.
func LineageOf(from *p.Lineage, kind p.Type, source, target, hash string) *p.Lineage {
	if kind == p.Escalation {
		return from
	}
	return from.Then(p.NewHop(source, target, hash))
}

// admitLineage refuses a hand-off that is too deep, repeats an earlier one with the same context,
// or repeats an edge too often with other reasons. Escalations are exempt.
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

// edgeRepeats returns how often an agent may hand off the same work to the same agent; 0 is
// unlimited.
func edgeRepeats(d *Directory) int64 {
	if loops := d.fleet().Loops; loops != nil && loops.EdgeRepeats != nil {
		return *loops.EdgeRepeats
	}
	return p.EdgeRepeatsDefault
}

// admitLimits refuses a submission whose limits leave a budget of 0 to it or to one of its members.
func admitLimits(s p.Summary, d *Directory) error {
	if !isSubmitted(&s) {
		return nil
	}
	limits, size := resolveLimits(s, d), int64(1)
	if s.Aggregate != nil {
		size = int64(s.Aggregate.Size)
	}
	for _, budget := range budgets {
		if most, bounded := limits.Of(budget); bounded && most < size {
			if size > 1 {
				return p.Errorf(p.CodeBudget, "limits."+budget, "is %d, and the group has %d members, which cannot begin without 1 each; give more, or leave it out", most, size)
			}
			return p.Errorf(p.CodeBudget, "limits."+budget, "is %d, and no work can begin with a budget of 0; give more, or leave it out", most)
		}
	}
	if most, bounded := limits.Of("max_agents"); bounded && size > most {
		return p.Errorf(p.CodeLimitExceeded, "limits.max_agents", "at most %s, and the group has %d members", counted(most, "agents"), size)
	}
	return nil
}

// Deep reports whether the depth of a handoff in its lineage indicates a loop.
func Deep(s p.Summary) bool { return s.Lineage.DepthOf() >= p.LineageDepthWarning }

// Repeated returns those of the agents that occur in a lineage more than twice.
func Repeated(s p.Summary, agents ...string) (all []string) {
	for _, agent := range agents {
		times := 0
		for _, hop := range s.Lineage.All() {
			if hop.Names(agent) {
				times += int(hop.Times)
			}
		}
		if times > 2 && agent != "" && !slices.Contains(all, agent) { // receiving and handing off are two
			all = append(all, agent)
		}
	}
	return all
}
