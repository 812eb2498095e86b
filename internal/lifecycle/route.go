package lifecycle

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// candidatesKept is how many candidates a routing decision names.
const candidatesKept = 16

// requiredOf returns the capabilities that a target must have.
func requiredOf(s p.Summary) []p.RequiredCapability {
	list := slices.Clone(s.Requires)
	if s.Target.Capability != "" && !slices.ContainsFunc(list, func(r p.RequiredCapability) bool { return r.ID == s.Target.Capability }) {
		list = append(list, p.RequiredCapability{ID: s.Target.Capability})
	}
	return list
}

// demand is the set of capabilities by which an agent is chosen.
type demand struct {
	wanted []p.RequiredCapability
	all    bool // a partial match does not count, whatever the policies
}

// demandOf returns the demand of a package. If the package requires nothing, the named agent's
// specialization counts, or all of its capabilities if it has none. An agent that declares neither
// has no equivalent.
func demandOf(s p.Summary, d *Directory) demand {
	if list := requiredOf(s); len(list) > 0 {
		return demand{wanted: list}
	}
	if s.Target.Agent == "" || s.Target.Agent == p.Human {
		return demand{}
	}
	named, _ := d.Agent(s.Target.Agent)
	if named.Specialization != "" {
		return demand{[]p.RequiredCapability{{ID: named.Specialization}}, true}
	}
	var list []p.RequiredCapability
	for _, c := range named.Capabilities {
		list = append(list, p.RequiredCapability{ID: c.ID})
	}
	return demand{list, true}
}

// route chooses the best agent for the demand of a package, without the excluded agents. The second
// result is false if there is none.
func route(s p.Summary, q Query, excluded []string) (p.Routing, bool) {
	routing := p.Routing{Excluded: excluded, Revision: q.revision()}
	fit := fitting(s, q, excluded)
	if len(fit) == 0 {
		return routing, false
	}
	routing.Choice, routing.Warnings = fit[0].Agent, fit[0].warnings
	for _, c := range fit[:min(len(fit), candidatesKept)] {
		routing.Candidates = append(routing.Candidates, c.Candidate)
	}
	return routing, true
}

// fitting returns the agents that may have a package, best first.
func fitting(s p.Summary, q Query, excluded []string) (fit []rankedCandidate) {
	wanted := demandOf(s, q.Directory)
	if q.Directory == nil || len(wanted.wanted) == 0 {
		return nil
	}
	loads, from, by := q.loads(), edgesOf(s, q.Directory), routeBy(s, q.Directory)
	for _, profile := range q.Agents {
		if slices.Contains(excluded, profile.ID) || profile.ID == s.Source || profile.ID == p.Human || q.Reserved.has(profile.ID) {
			continue
		}
		m, why := q.fit(profile, &s, wanted)
		if why != "" || m.score == 0 || !from.lead(profile) {
			continue
		}
		load := loads[profile.ID]
		standing := availabilityRank(profile, load)
		if q.breakers != nil {
			mark, _, lets := q.lets(profile.ID, "")
			if !lets {
				continue
			}
			if mark == p.BreakerProbe { // behind all others
				standing = -1
			}
		}
		c := rankedCandidate{
			Candidate: p.Candidate{Agent: profile.ID, Score: m.score, Live: load.live, Busy: load.busy},
			standing:  standing,
			load:      load.share(),
			warnings:  m.warnings,
		}
		q.balance(&c, by)
		fit = append(fit, c)
	}
	slices.SortFunc(fit, compareCandidates)
	return fit
}

// rankedCandidate is a candidate with the values by which it is compared.
type rankedCandidate struct {
	p.Candidate
	standing int     // availabilityRank; -1 for a half-open breaker
	worth    float64 // its score, possibly weighted by its success
	load     float64
	turn     uint64
	warnings []string
}

// availabilityRank ranks agents by how soon they are likely to take an offer: 2 is served by a
// worker, 1 polls, 0 is absent or paused.
func availabilityRank(profile *p.Profile, l load) int {
	switch {
	case profile.Paused:
		return 0
	case l.live > 0:
		return 2
	case l.polling:
		return 1
	}
	return 0
}

// nextAgent chooses the agent that gets a handoff next: the alternative that the last refusal
// suggested, if fit; else one that the package ranks; else the best other agent. Absent agents that
// had it are not asked again. An escalated handoff does not go back down by itself: an authority
// may suggest an agent, else it goes further up.
func nextAgent(s p.State, q Query) (p.Routing, bool) {
	excluded := appendAgent(s.Refused, s.Agent)
	if routing, ok := suggested(s, q, excluded); ok {
		return routing, true
	}
	if s.EscalationLevel > 0 {
		return p.Routing{Excluded: excluded}, false
	}
	for _, agent := range s.Tried {
		if !q.Attended(agent) {
			excluded = appendAgent(excluded, agent)
		}
	}
	if routing, ok, settled := byBids(s, q, excluded); settled {
		return routing, ok
	}
	if routing, ok := ranked(s.Summary, s.Ticket, q, excluded); ok {
		return routing, true
	}
	return route(s.Summary, q.forTicket(s.Ticket), excluded)
}

// suggested returns the alternative that the last refusal named, if it is fit. A person always is.
func suggested(s p.State, q Query, excluded []string) (p.Routing, bool) {
	alternative := s.Alternative
	if alternative == "" || slices.Contains(excluded, alternative) || q.Directory == nil || q.Reserved.has(alternative) {
		return p.Routing{}, false
	}
	routing := p.Routing{Revision: q.Revision, Excluded: excluded, Choice: alternative}
	if alternative == p.Human { // also if a person is the source, as in an escalation
		return routing, true
	}
	var from edges // an authority may choose freely
	if s.EscalationLevel == 0 {
		from = edgesOf(s.Summary, q.Directory)
	}
	c, ok := q.candidate(alternative, s.Ticket, &s.Summary, demand{wanted: requiredOf(s.Summary)}, from, excluded)
	if !ok {
		return p.Routing{}, false
	}
	routing.Warnings, routing.Candidates = c.warnings, []p.Candidate{c.Candidate}
	return routing, true
}

// Every handoff is created in two steps, both in this file: its summary inherits from the handoff
// that it follows from, and Admit decides whether it may begin, and with which agent. A submission
// follows from no handoff: its summary is its package's own.

// Admit returns the agent that a handoff is offered to. A group gets no agent; its members are
// admitted one by one. A *protocol.Error names the reason for a refusal: its source may not hand it
// off, or not to that agent; its target is unknown or accepts no handoffs; or no agent has the
// capability.
func Admit(s p.Summary, q Query) (p.Routing, error) {
	err := cmp.Or(checkEdges(s, q.Directory), admitLineage(s, q.Directory), admitLimits(s, q.Directory))
	if err != nil || s.Aggregate != nil {
		return p.Routing{}, err
	}
	return routeTarget(s, q)
}

// ChildOf returns the summary of the handoff that the event e records. parent is the state after
// the append with e. A parent that continues may wait for the child later, and receives its end. A
// parent that closed with that append receives nothing.
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

// MemberOf returns the summary of a member of a group. excluded lists the agents that it is not
// offered to.
func MemberOf(group p.State, m p.MemberHandoff, digest string, excluded []string) p.Summary {
	s := m.Summarize(digest)
	s.Trace, s.Excluded = traceAt(group, p.SpanHandoff, 0), excluded
	s.Lineage, s.Limits, s.Class = group.Lineage, memberLimits(group), ""
	shareWorkspace(&s, group)
	return s
}

// ReturnOf returns the summary of the handoff that delivers the return of a closed one. It shares
// the lineage, the workflow and the account of the closed one. parentOpen reports whether the
// parent of the closed one is open.
func ReturnOf(of p.State, parentOpen bool, pkg p.Package, digest string) p.Summary {
	s := pkg.Summarize(digest)
	s.Trace = traceAt(of, p.SpanReturn, 0)
	s.Lineage, s.Limits = of.Lineage, restOf(of, parentOpen)
	shareWorkspace(&s, of)
	return s
}

// RedriveOf returns the summary of the handoff that redrives another one. The agents that refused
// that one are excluded, except the target, unless again is set.
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

// routeTarget chooses the agent for a package.
func routeTarget(s p.Summary, q Query) (p.Routing, error) {
	if s.Type == p.Escalation && s.Target.Agent == "" && s.Target.Capability == "" { // up from its source
		s.Target.Agent = authorityAt(p.State{Summary: s, Agent: s.Source, Refused: s.Excluded, Policy: resolvePolicy(s, &p.Profile{}, q.Directory)}, q, 1)
	}
	switch {
	case s.Target.Capability != "":
		routing, ok := route(s, q, s.Excluded)
		if !ok && s.Group != "" { // there are fewer agents than members
			shared := q
			shared.Reserved = Reserved{}
			routing, ok = route(s, shared, s.Excluded)
			routing.Warnings = append(slices.Clone(routing.Warnings), fmt.Sprintf("%s has another member of the group", routing.Choice))
		}
		if err := barredRoute(s, q); !ok && err != nil {
			return routing, err
		}
		if err := brokenByAll(s, q); !ok && err != nil {
			return routing, err
		}
		if !ok {
			problem := "no agent has the capability %s"
			if q.has(s.Target.Capability) {
				problem = "no agent with the capability %s may take this (it is the source, refused it before, or its proficiency, max_risk, accepts_handoffs or the edges forbid it)"
			}
			return routing, p.Errorf(p.CodeNoAgent, "target.capability", problem+"; start a worker that has it", s.Target.Capability)
		}
		return routing, nil
	}
	name := s.Target.Agent
	if slices.Contains(s.Excluded, name) {
		return substituteFor(name, s, q)
	}
	profile, known := q.Agent(name)
	if !known {
		return p.Routing{}, unknownTarget(s, name, q.Directory)
	}
	m, err := q.fitNamed(profile, &s)
	if err != nil {
		return p.Routing{}, err
	}
	routing := p.Routing{Choice: name, Warnings: m.warnings}
	if len(s.Requires) > 0 && name != p.Human {
		routing.Revision = q.revision()
	}
	if _, until, ok := q.lets(name, ""); !ok {
		return routing, q.breakerOpen("target.agent", name, until)
	}
	return routing, nil
}

// unknownTarget refuses an agent name that is not registered. If its source may not submit to that
// name, the refusal gives that reason.
func unknownTarget(s p.Summary, name string, d *Directory) error {
	way := "start a worker for it"
	if err := edgesOf(s, d).refuses(&p.Profile{ID: name}); err != nil {
		if isSubmitted(&s) {
			return err
		}
		way = fmt.Sprintf("%s hands off only to %s (hands_to), so a person must route it", s.Source, strings.Join(edgesOf(s, d).from.HandsTo, ", "))
	}
	return p.Errorf(p.CodeUnknownAgent, "target.agent", "no agent is called %s; %s", name, way)
}

// barredRoute returns an error if only breakers keep a package from the agents with its capability;
// otherwise nil. The error names the first breaker that may let the package through.
func barredRoute(s p.Summary, q Query) error {
	if q.breakers == nil { // usual case
		return nil
	}
	first := firstBarred(s, q)
	if first == "" {
		return nil
	}
	return q.breakerOpen("target.capability", first, q.breakers[first].until)
}

// firstBarred returns the agent whose breaker may be the first to let a package through; empty if
// no agent is fit.
func firstBarred(s p.Summary, q Query) string {
	closed := q
	closed.breakers = nil
	routing, ok := route(s, closed, s.Excluded)
	if !ok {
		return ""
	}
	first := routing.Choice
	for _, c := range routing.Candidates {
		if view, barred := q.breakers[c.Agent]; barred && view.until.Before(q.breakers[first].until) {
			first = c.Agent
		}
	}
	return first
}

// No agent gets two members of a group, unless the group names it for both. Before a member goes to
// an agent that the group does not name for it, the group's state assigns that agent to it. A group
// has one head, so only one of two concurrent members gets the agent.

// NewMembers returns the agents to which events give a member of a group for the first time.
func NewMembers(s p.State, events []p.Event) []string {
	if s.Group == "" {
		return nil
	}
	var gains []string
	for _, e := range events {
		if to := p.OutlineOf(e).To; to != s.Target.Agent && !slices.Contains(s.Tried, to) {
			gains = appendAgent(gains, to)
		}
	}
	return gains
}

// Assign records at a group the agents that member n goes to. The step is empty if they are already
// recorded, or the list is full.
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
	c := own(&s.Children)
	c.Assigned = append(slices.Clone(c.Assigned), p.Assignment{N: e.N, Agent: e.Agent})
	return nil
}

// memberConflict returns the refusal of an agent that has another member of the group.
func memberConflict(s p.State, field, agent string) error {
	return p.Errorf(p.CodeConflict, field, "%s has, or had, another member of the group %s", agent, s.Group)
}

// Ends counts the ends of the handoffs to an agent.
type Ends struct {
	Succeeded int64 `json:"succeeded"` // with success or partial
	Failed    int64 `json:"failed"`    // with another outcome
}

// rate returns the success rate of handoffs, from 0 to 1 in steps of 0.05. Without handoffs it is
// one half, and a single one does not make it certain.
func (e Ends) rate() float64 {
	return math.Round(20*float64(e.Succeeded+2)/float64(e.Succeeded+e.Failed+4)) / 20
}

// Recommended is an agent that another one may hand off to.
type Recommended struct {
	Found
	// Worth is the rank: its share of the best match, times its rate.
	Worth float64 `json:"worth"`
	Rate  float64 `json:"rate"`
	Ends  Ends    `json:"ends"`
}

// Recommend ranks the agents that an agent may hand off to, for a task: by their match (Match)
// times the success rate of the handoffs between the two so far. Without a task all of them are
// ranked by success alone. The result is advice: it routes no handoff.
func Recommend(d *Directory, from, task string, ends map[string]Ends, most int) []Recommended {
	source, _ := d.Agent(from)
	found := Match(d, task, math.MaxInt).Found
	if task == "" {
		found = allFit(d)
	}
	all := []Recommended{}
	for _, f := range found {
		to, _ := d.Agent(f.Agent)
		if f.Agent == from || from != p.Human && !(source.HandsOffTo(f.Agent) && to.AcceptsHandoffsFrom(from)) {
			continue
		}
		rate := ends[f.Agent].rate()
		all = append(all, Recommended{Found: f, Worth: rate * f.Score, Rate: rate, Ends: ends[f.Agent]})
	}
	best := 0.0
	for _, r := range all {
		best = max(best, r.Score)
	}
	for i := range all {
		all[i].Worth /= max(best, math.SmallestNonzeroFloat64)
	}
	slices.SortFunc(all, func(a, b Recommended) int {
		return cmp.Or(cmp.Compare(b.Worth, a.Worth), cmp.Compare(a.Agent, b.Agent))
	})
	return all[:min(len(all), max(most, 0))]
}

// allFit returns all agents that take handoffs, each with an equal match.
func allFit(d *Directory) (all []Found) {
	agents, _ := profileWords(d)
	for _, agent := range agents {
		all = append(all, Found{Agent: agent, Score: 1, Words: []string{}})
	}
	return all
}
