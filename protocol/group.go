package protocol

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"

	"github.com/agenthandoff/handoff/protocol/internal/wirejson"
)

// A group is one handoff to several recipients: a package of type broadcast that
// names several agents, or that has members. It has a ticket, and so has each of
// its members.

// GroupSize is how many members the group has that this package was submitted
// for; 0 where it is for none. The package of a member may be its group's own
// (see MemberHandoff), so of a handoff that exists Summary.Aggregate is the one
// to ask.
func (p Package) GroupSize() int {
	if len(p.Members) > 0 {
		return len(p.Members)
	}
	return len(p.Target.Agents)
}

// MemberHandoff is one member of a group, as it is to be submitted.
type MemberHandoff struct {
	Ticket string // ChildTicketN of the group and N
	N      int    // its ordinal, from 0, in the order of the recipients
	Target Target // one agent, or one capability

	// Package is what the member hands off. Where the group is one package to
	// several agents (target.agents) it is Shared: the group's package as it is,
	// byte for byte, so that a large one is stored once, under one digest, however
	// many recipients it has. Only the Summary says then whose it is. Where the
	// group has members of different packages it is the group's with the member's
	// own laid over it, and has to be stored for itself.
	Package Package
	Shared  bool

	group string
	endOf ReturnScope
}

// MemberAt is the member of a group with this ordinal, from 0. group is the
// group's ticket, p the package that the group was submitted with, normalized
// and validated. Nothing is checked again. The error is a *Error with
// CodeInvalid for an ordinal that no member has.
//
// The package of a member that is not shared has the member's target, reason,
// priority and task where it gives them, else the group's; the group's variables
// with the member's laid over them; the group's artifacts and the member's
// (merged as Artifacts.With does). Its parent is the group. It has neither the
// group's key nor its return protocol: a member's end goes to its group.
func (p Package) MemberAt(group string, n int) (MemberHandoff, error) {
	if n < 0 || n >= p.GroupSize() {
		return MemberHandoff{}, Errorf(CodeInvalid, "members", "there is no member %d; the group %s has %d", n, wirejson.Clip(group), p.GroupSize())
	}
	m := MemberHandoff{Ticket: ChildTicketN(group, n), N: n, group: group}
	if p.Return != nil && p.Return.Of == ReturnOfHandoff {
		m.endOf = p.Return.Of
	}
	if len(p.Members) == 0 {
		m.Target, m.Package, m.Shared = Target{Agent: p.Target.Agents[n]}, p, true
		return m, nil
	}
	of := p.Members[n]
	m.Target, m.Package = of.Target, p
	own := &m.Package
	own.Type, own.Target, own.Parent = Broadcast, of.Target, group
	own.Key, own.Members, own.Return, own.Returned, own.Origin = "", nil, nil, nil, ""
	own.Reason, own.Priority = cmp.Or(of.Reason, p.Reason), cmp.Or(of.Priority, p.Priority)
	if of.Task != nil {
		own.Task = *of.Task
	}
	own.Context.Variables = overlay(p.Context.Variables, of.Variables)
	own.Context.Artifacts = p.Context.Artifacts.With(of.Artifacts)
	return m, nil
}

// Summarize is the summary of a member: type broadcast, its own target, the
// group as its parent and group, its place among the members from 1. It expects
// no return. digest is that of its package as stored: the group's if it is Shared.
func (m MemberHandoff) Summarize(digest string) Summary {
	s := m.Package.Summarize(digest)
	s.Type, s.Target, s.Parent, s.Group, s.N = Broadcast, m.Target, m.group, m.group, m.N+1
	s.Aggregate, s.ReturnExpected, s.Wait, s.ReturnOf, s.Origin, s.EndOf = nil, false, "", "", "", m.endOf
	s.Overrides.ReturnTimeoutMS, s.Overrides.OnReturnTimeout = nil, nil
	return s
}

// TargetWords names in a few words who shall do the work: "group of 5" for a
// group, whose recipients the summary does not list.
func (s Summary) TargetWords() string {
	if s.Aggregate != nil {
		return groupWords(s.Aggregate.Size)
	}
	return targetWords(s.Type, s.Target, s.Source)
}

// TargetWords names in a few words who shall do the work. Unlike the summary's
// it names the first of several agents.
func (p Package) TargetWords() string {
	if len(p.Members) > 0 {
		return groupWords(len(p.Members))
	}
	return targetWords(p.Type, p.Target, p.Source)
}

func groupWords(size int) string { return fmt.Sprintf("group of %d", size) }

func targetWords(kind Type, target Target, source string) string {
	if kind == Escalation && target.given() == 0 {
		return "authority above " + source
	}
	return target.String()
}

// aggregate is what makes a package's handoff a group; nil if it makes none.
func (p *Package) aggregate() *Aggregate {
	size := p.GroupSize()
	if size == 0 {
		return nil
	}
	a := &Aggregate{Size: size, Mode: AggregateAll}
	if p.Return == nil {
		return a
	}
	a.Mode, a.CancelRest = cmp.Or(p.Return.Aggregation, AggregateAll), p.Return.CancelRest
	if len(p.Return.From) == 0 {
		return a
	}
	counts := make(map[string]bool, len(p.Return.From))
	for _, agent := range p.Return.From {
		counts[agent] = true
	}
	var counted []int
	for n, agent := range p.Recipients() {
		if counts[agent] {
			counted = append(counted, n)
		}
	}
	if len(counted) < size { // else it is all of them, which goes without saying
		a.Counted = Bits("").With(counted...)
	}
	return a
}

// Recipients returns the agents that a group goes to, in its order; empty for a
// member that names a capability.
func (p *Package) Recipients() []string {
	if len(p.Members) == 0 {
		return p.Target.Agents
	}
	agents := make([]string, len(p.Members))
	for i, m := range p.Members {
		agents[i] = m.Target.Agent
	}
	return agents
}

// overlay is the first map with the second laid over it. Neither is changed.
func overlay(under, over map[string]json.RawMessage) map[string]json.RawMessage {
	switch {
	case len(over) == 0:
		return under
	case len(under) == 0:
		return over
	}
	both := maps.Clone(under)
	maps.Copy(both, over)
	return both
}
