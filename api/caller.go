package api

import (
	"slices"
	"strings"

	"github.com/agenthandoff/handoff/protocol"
)

// Roles is a set of roles.
type Roles uint8

const (
	// RoleReader sees handoffs: those that concern the caller's agents, or all of them if
	// the caller has neither agents nor sources. It sees every agent.
	RoleReader Roles = 1 << iota
	// RoleSubmitter submits as each of the caller's sources, sees what concerns these, and
	// cancels and answers what they submitted.
	RoleSubmitter
	// RoleOperator sees every handoff and intervenes in it.
	RoleOperator
	// RoleAdmin is an operator who submits as any source and works as any agent, and changes agents.
	RoleAdmin
	// RoleWorker claims and reports as each of the caller's agents.
	RoleWorker
)

var roleNames = []string{"reader", "submitter", "operator", "admin", "worker"}

// String names the roles of the set.
func (r Roles) String() string {
	var names []string
	for i, name := range roleNames {
		if r&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, " or ")
}

// implied adds what a role includes.
func (r Roles) implied() Roles {
	if r&RoleAdmin != 0 {
		r |= RoleOperator | RoleSubmitter | RoleWorker
	}
	if r&(RoleOperator|RoleSubmitter) != 0 {
		r |= RoleReader
	}
	return r
}

// Caller is on whose behalf operations run, as a gateway has authenticated it.
type Caller struct {
	// Name is recorded with what the caller does, and is the source of packages that
	// name none.
	Name  string
	Roles Roles
	// Sources are the names that a submitter submits as.
	Sources []string
	// Agents are the agents that a reader reads for and a worker works as.
	Agents []string
}

// Local returns the caller of a program inside of the engine's account, which may do
// everything.
func Local(name string) Caller { return Caller{Name: name, Roles: RoleAdmin} }

// Agent returns the caller of a program that speaks for one agent: it submits and works as
// the agent, and sees what concerns it.
func Agent(name string) Caller {
	return Caller{Name: name, Roles: RoleReader | RoleSubmitter | RoleWorker, Sources: []string{name}, Agents: []string{name}}
}

func (c *Caller) has(any Roles) bool { return c.Roles.implied()&any != 0 }

// speaksFor tells whether a package, or an act on a handoff, may have this source.
func (c *Caller) speaksFor(source string) bool {
	return c.has(RoleAdmin) || c.has(RoleSubmitter) && slices.Contains(c.Sources, source)
}

// worksAs tells whether the caller may hold handoffs of an agent.
func (c *Caller) worksAs(agent string) bool {
	return c.has(RoleAdmin) || c.has(RoleWorker) && slices.Contains(c.Agents, agent)
}

// seesAll tells whether no handoff is hidden from the caller.
func (c *Caller) seesAll() bool {
	return c.has(RoleOperator) || c.has(RoleReader) && len(c.Sources) == 0 && len(c.Agents) == 0
}

// isNamed tells whether a name is one of the caller's.
func (c *Caller) isNamed(name string) bool {
	return slices.Contains(c.Sources, name) || slices.Contains(c.Agents, name)
}

// concerns tells whether a handoff concerns the caller: one of its names is the source,
// the target, the agent that has or had it last, or the one that is asked for an approval.
func (c *Caller) concerns(s protocol.State) bool {
	return c.isNamed(s.Source) || c.isNamed(s.Agent) || c.isNamed(s.Target.Agent) || s.Gate != nil && s.Gate.Approver != "" && c.isNamed(s.Gate.Approver)
}
