package lifecycle

import (
	"fmt"
	"slices"

	p "github.com/agenthandoff/handoff/protocol"
)

// A refusal outlives the handoff that was refused: what follows from it, or is
// submitted again for it, is not offered to the agents that said no, until it asks
// for something else.

// Inherit returns the agents that a child is not offered to. They refused its parent, or
// what that follows from. None is excluded from another task, nor from one that is for
// other capabilities than those that the parent was for. A person may always be asked.
func Inherit(parent p.State, child p.Summary, sameTask bool) []string {
	of, wanted := requiredOf(parent.Summary), requiredOf(child)
	shares := slices.ContainsFunc(wanted, func(r p.RequiredCapability) bool {
		return slices.ContainsFunc(of, func(other p.RequiredCapability) bool { return other.ID == r.ID })
	})
	if !sameTask || len(of) > 0 && len(wanted) > 0 && !shares {
		return nil
	}
	return Refusers(parent)
}

// Refusers returns the agents that refused a handoff, or what it follows from,
// without a person.
func Refusers(s p.State) []string {
	if len(s.Refused) == 0 {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(s.Refused), func(agent string) bool { return agent == p.Human })
}

// substituteFor finds the agent for a handoff that is addressed to one which refused it
// before: an equivalent one, else the authority above it. A redrive has the person
// who asks for it choose instead, and a member of a group counts as not succeeded.
func substituteFor(name string, s p.Summary, d *Directory) (p.Routing, error) {
	if routing, ok := ranked(s, "", d, s.Excluded); ok {
		return routing, nil
	}
	if routing, ok := Route(s, d, s.Excluded); ok {
		return routing, nil
	}
	routing := p.Routing{Excluded: s.Excluded}
	switch {
	case s.Origin != "":
		return routing, p.Errorf(p.CodeNoAgent, "target.agent", "%s refused it, and no other agent is fit; offer it there once more, or name another agent", name)
	case s.Group != "":
		return routing, p.Errorf(p.CodeNoAgent, "target.agent", "%s refused what this follows from, and no other agent is fit", name)
	}
	if d != nil {
		routing.Revision = d.Revision
	}
	routing.Choice = authorityAt(p.State{Summary: s, Agent: name, Refused: s.Excluded, Policy: ResolvePolicy(s, p.Profile{}, d)}, d, 1)
	routing.Warnings = []string{fmt.Sprintf("%s refused what this follows from, and no other agent is fit", name)}
	return routing, nil
}
