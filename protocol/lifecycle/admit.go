package lifecycle

import (
	"fmt"
	"slices"

	p "github.com/agenthandoff/handoff/protocol"
)

// Every handoff is made by two steps that are here and nowhere else: its summary says what it
// takes over from the handoff that it follows from, and Admit says whether it may begin, and with
// which agent. What is submitted follows from none: its summary is its package's own.

// Admit returns the agent that a handoff is offered to. None gets a group, whose members are
// admitted one by one. A *protocol.Error says why the handoff is refused: its source may not hand
// it off, or not to that agent, its target is unknown, takes no handoffs, or no agent has the
// capability.
func Admit(s p.Summary, d *Directory) (p.Routing, error) {
	if err := checkEdges(s, d); err != nil {
		return p.Routing{}, err
	}
	if err := admitLineage(s, d); err != nil {
		return p.Routing{}, err
	}
	if err := admitLimits(s, d); err != nil {
		return p.Routing{}, err
	}
	if s.Aggregate != nil {
		return p.Routing{}, nil
	}
	return routeTarget(s, d)
}

// ChildOf is the summary of the handoff that the event e records. parent is the handoff that
// recorded it, as the append with e has left it. A parent that goes on may wait for the child later,
// and gets its end; one that closed with that append never does.
func ChildOf(parent p.State, e *p.HandedOff, pkg p.Package) p.Summary {
	s := pkg.Summarize(e.Digest)
	s.Parent, s.N = parent.Ticket, e.N+1
	switch {
	case e.Waits && s.Wait != p.WaitBlock:
		s.Wait = p.WaitSlot
	case !parent.Closed && !e.After && s.Wait == "":
		s.Wait = p.WaitContinue
	}
	s.AwaitsSource, s.Excluded, s.Trace = e.After, e.Excluded, e.Trace
	s.Lineage, s.Limits, s.Class = LineageOf(parent.Lineage, e.Type, parent.Agent, e.Target, e.Hash), e.Grant, ""
	if s.Trace == nil {
		s.Trace = traceAt(parent, p.SpanWork, e.Fence)
	}
	if e.Goto {
		continueChain(&s, parent)
	}
	shareWorkspace(&s, parent)
	return s
}

// MemberOf is the summary of a member of a group. excluded are the agents that it is not offered to.
func MemberOf(group p.State, m p.MemberHandoff, digest string, excluded []string) p.Summary {
	s := m.Summarize(digest)
	s.Trace, s.Excluded = traceAt(group, p.SpanHandoff, 0), excluded
	s.Lineage, s.Limits, s.Class = group.Lineage, memberLimits(group), ""
	shareWorkspace(&s, group)
	return s
}

// ReturnOf is the summary of the handoff that delivers the return of a closed one. It is in the
// lineage and the workflow of that one, and on its account. parentOpen reports whether the handoff
// that handed that one off is open.
func ReturnOf(of p.State, parentOpen bool, pkg p.Package, digest string) p.Summary {
	s := pkg.Summarize(digest)
	s.Trace = traceAt(of, p.SpanReturn, 0)
	s.Lineage, s.Limits = of.Lineage, restOf(of, parentOpen)
	shareWorkspace(&s, of)
	return s
}

// RedriveOf is the summary of the handoff that redrives another one. The agents that refused that
// one are excluded, but for the one that it is sent to, unless again is set.
func RedriveOf(origin p.State, pkg p.Package, digest, to string, again bool) p.Summary {
	s := pkg.Summarize(digest)
	s.Again = again && s.Aggregate != nil
	if !again && s.Aggregate == nil {
		s.Excluded = slices.DeleteFunc(Refusers(origin), func(agent string) bool { return agent == to })
	}
	s.Trace = traceAt(origin, p.SpanHandoff, 0)
	s.Limits, s.Class = origin.Limits, ""
	shareWorkspace(&s, origin)
	return s
}

func traceAt(s p.State, kind p.Span, n uint64) *p.TraceContext {
	t := s.TraceAt(kind, n)
	return &t
}

// routeTarget finds the agent that a package is for.
func routeTarget(s p.Summary, d *Directory) (p.Routing, error) {
	if s.Type == p.Escalation && s.Target.Agent == "" && s.Target.Capability == "" { // up from its source
		s.Target.Agent = authorityAt(p.State{Summary: s, Agent: s.Source, Policy: ResolvePolicy(s, p.Profile{}, d)}, d, 1)
	}
	switch {
	case s.Target.Capability != "":
		routing, ok := Route(s, d, s.Excluded)
		if !ok && s.Group != "" { // there are fewer agents than members
			routing, ok = Route(s, d.shared(), s.Excluded)
			routing.Warnings = append(slices.Clone(routing.Warnings), fmt.Sprintf("%s has another member of the group", routing.Choice))
		}
		if err := barredRoute(s, d); !ok && err != nil {
			return routing, err
		}
		if err := brokenByAll(s, d); !ok && err != nil {
			return routing, err
		}
		if !ok {
			problem := "no agent has the capability %s"
			if d.has(s.Target.Capability) {
				problem = "no agent with the capability %s may take this (it is the source, refused it before, or its proficiency, max_risk, accepts_handoffs or the edges forbid it)"
			}
			return routing, p.Errorf(p.CodeNoAgent, "target.capability", problem+"; start a worker that has it", s.Target.Capability)
		}
		return routing, nil
	}
	name := s.Target.Agent
	if contains(s.Excluded, name) {
		return substituteFor(name, s, d)
	}
	profile, known := d.Agent(name)
	if !known {
		return p.Routing{}, p.Errorf(p.CodeUnknownAgent, "target.agent", "no agent is called %s; start a worker for it", name)
	}
	m, err := d.fitNamed(&profile, &s)
	if err != nil {
		return p.Routing{}, err
	}
	routing := p.Routing{Choice: name, Warnings: m.warnings}
	if len(s.Requires) > 0 && name != p.Human && d != nil {
		routing.Revision = d.Revision
	}
	if _, until, ok := d.lets(name, ""); !ok {
		return routing, d.breakerOpen("target.agent", name, until)
	}
	return routing, nil
}

// barredRoute says that only breakers keep a package from the agents that have its capability; nil
// where there are none. The first to let one through is named.
func barredRoute(s p.Summary, d *Directory) error {
	if d == nil || d.breakers == nil { // as a rule
		return nil
	}
	first := firstBarred(s, d)
	if first == "" {
		return nil
	}
	return d.breakerOpen("target.capability", first, d.breakers[first].until)
}

// firstBarred is the agent whose breaker may be the first to let a package through; empty where no
// agent is fit.
func firstBarred(s p.Summary, d *Directory) string {
	routing, ok := Route(s, d.withoutBreakers(), s.Excluded)
	if !ok {
		return ""
	}
	first := routing.Choice
	for _, c := range routing.Candidates {
		if view, barred := d.breakers[c.Agent]; barred && view.until.Before(d.breakers[first].until) {
			first = c.Agent
		}
	}
	return first
}
