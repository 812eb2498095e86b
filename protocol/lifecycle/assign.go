package lifecycle

import (
	"fmt"
	"slices"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// No agent gets two members of a group, unless the group names it for both. A
// member that goes to an agent which the group does not name for it is assigned to
// that agent at the group first: the group's head is one, so that of two members
// one gets it.

// NewMembers returns the agents that events give a member of a group to, and that it has
// not been with.
func NewMembers(s p.State, events []p.Event) []string {
	if s.Group == "" {
		return nil
	}
	var gains []string
	for _, e := range events {
		to := ""
		switch e := e.(type) {
		case *p.Offered:
			to = e.Agent
		case *p.Gated:
			to = e.Agent
		case *p.Rerouted:
			to = e.To
		case *p.Escalated:
			to = e.To
		case *p.Taken:
			to = e.Agent
		}
		if to != s.Target.Agent && !contains(s.Tried, to) {
			gains = appendAgent(gains, to)
		}
	}
	return gains
}

// Reserve returns the directory as member n of a group may use it: without the
// agents that the group names for other members, or has assigned to them. named are
// the agents that the group names, by member.
func Reserve(d *Directory, group p.State, named []string, n int) *Directory {
	next := Directory{}
	if d != nil {
		next = *d
	}
	next.reserved = map[string]bool{}
	for i, agent := range named {
		if i != n && agent != "" {
			next.reserved[agent] = true
		}
	}
	if c := group.Children; c != nil {
		next.allReserved = len(c.Assigned) >= p.AssignmentsMax
		for _, a := range c.Assigned {
			if a.N != n {
				next.reserved[a.Agent] = true
			}
		}
		for _, a := range c.Assigned {
			if a.N == n {
				delete(next.reserved, a.Agent)
			}
		}
	}
	if n >= 0 && n < len(named) {
		delete(next.reserved, named[n])
	}
	return &next
}

// shared is the directory without what Reserve has left out.
func (d *Directory) shared() *Directory {
	if d == nil {
		return nil
	}
	next := *d
	next.reserved, next.allReserved = nil, false
	return &next
}

// reserving returns a snapshot in which no handoff goes to these agents.
func (d *Directory) reserving(agents []string) *Directory {
	if d == nil {
		return nil
	}
	next := *d
	next.reserved = make(map[string]bool, len(d.reserved)+len(agents))
	for agent := range d.reserved {
		next.reserved[agent] = true
	}
	for _, agent := range agents {
		next.reserved[agent] = true
	}
	return &next
}

// Reserved tells whether another member of the group has an agent.
func (d *Directory) Reserved(agent string) bool {
	return d != nil && (d.allReserved || d.reserved[agent])
}

// Assign records at a group the agents that member n goes to. The step is empty where it
// has done so, or can keep no more.
func Assign(group p.State, n int, agents []string, now time.Time) (Step, error) {
	var events []p.Event
	for _, agent := range agents {
		kept := group.Children.Assigned
		if len(kept)+len(events) < p.AssignmentsMax && !slices.Contains(kept, p.Assignment{N: n, Agent: agent}) {
			events = append(events, &p.Assigned{Meta: p.Meta{At: now, By: By}, N: n, Agent: agent})
		}
	}
	return StepOf(group, events...)
}

func applyAssigned(s *p.State, e *p.Assigned) error {
	if s.Aggregate == nil || s.Children == nil || !s.Children.Made.Has(e.N) || e.Agent == "" || len(s.Children.Assigned) >= p.AssignmentsMax {
		return fmt.Errorf("%w: member %d assigned to %q", ErrIllegal, e.N, e.Agent)
	}
	children := *s.Children
	children.Assigned = append(slices.Clone(children.Assigned), p.Assignment{N: e.N, Agent: e.Agent})
	s.Children = &children
	return nil
}

// memberConflict is the refusal of an agent that has another member of the group.
func memberConflict(s p.State, field, agent string) error {
	return p.Errorf(p.CodeConflict, field, "%s has, or had, another member of the group %s", agent, s.Group)
}
