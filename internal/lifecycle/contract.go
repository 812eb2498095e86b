package lifecycle

import (
	"cmp"
	"slices"
	"strings"

	p "github.com/agenthandoff/handoff/protocol"
)

// HasContracts reports whether any agent has a contract.
func (d *Directory) HasContracts() bool {
	switch {
	case d == nil:
		return false
	case d.counted != nil:
		return d.contracts
	}
	return d.findContract()
}

func (d *Directory) findContract() bool {
	return d.anyAgent(func(profile *p.Profile) bool { return profile.Contract != nil })
}

// anyAgent reports whether an agent meets a condition.
func (d *Directory) anyAgent(meets func(*p.Profile) bool) bool {
	for _, profile := range d.Agents {
		if meets(profile) {
			return true
		}
	}
	return false
}

// breaks returns the violation of an agent's contract by a package. An escalation, a return or a
// call for a bid is passed on as it is and violates no contract.
func (q Query) breaks(agent *p.Profile, s *p.Summary) *p.Error {
	if q.Directory == nil || q.Contract == nil || agent.Contract == nil || s.Type == p.Escalation || s.ReturnOf != "" || s.CallOf != "" {
		return nil
	}
	return q.Contract(agent)
}

// brokenByAll returns the violation for the best agent with a capability, if only contracts keep
// the package from all of them; otherwise nil.
func brokenByAll(s p.Summary, q Query) error {
	if q.Directory == nil || q.Contract == nil {
		return nil
	}
	any := q
	any.Contract = nil
	routing, ok := route(s, any, s.Excluded)
	if !ok {
		return nil
	}
	best, _ := q.Agent(routing.Choice)
	if err := q.breaks(best, &s); err != nil {
		return err
	}
	return nil
}

// The edges of the fleet define which agent may hand off to which, and whether an agent may hand
// off at all. They bind agents, and never a person. They do not apply to escalations, handoffs to a
// person, returns, redrives and answers.

// ReadsSource reports whether admission depends on the profile of the source. A child that its
// parent has recorded was admitted with that record.
func ReadsSource(s p.Summary) bool {
	return hasEdges(s) && (s.N == 0 || s.Group != "") && s.Target.Agent != p.Human
}

// hasEdges reports whether an agent hands it off of its own accord.
func hasEdges(s p.Summary) bool {
	return s.Source != p.Human && s.Type != p.Escalation && s.ReturnOf == "" && s.CallOf == "" && s.Origin == ""
}

// checkEdges returns an error if the source may not hand off to the agent that the handoff names.
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

// CheckParent refuses a submission whose parent is open and has limits: no account would cover it.
// Under the lease of the parent it is handed off, and counts.
func CheckParent(parent p.State) error {
	if parent.Closed || parent.Account == nil {
		return nil
	}
	return p.Errorf(p.CodeForbidden, "parent", "%s is open and has limits; hand it off under its lease, or name no parent", parent.Ticket)
}

// edges holds the hand-offs that an agent may make. The zero value allows all.
type edges struct {
	from     *p.Profile // the source; nil: unrestricted
	handoffs p.HandoffMode
}

// edgesOf returns the edges that apply to a handoff.
func edgesOf(s p.Summary, d *Directory) edges {
	if !hasEdges(s) {
		return edges{}
	}
	profile, _ := d.Agent(s.Source)
	return edges{profile, cmp.Or(profile.Handoffs, d.fleet().Handoffs)}
}

// lead reports whether the source may hand off to an agent.
func (e edges) lead(to *p.Profile) bool {
	return e.from == nil || to.ID == p.Human || e.from.HandsOffTo(to.ID) && to.AcceptsHandoffsFrom(e.from.ID)
}

// refuses returns an error if the source may not hand off to an agent.
func (e edges) refuses(to *p.Profile) error {
	if e.lead(to) {
		return nil
	}
	if !e.from.HandsOffTo(to.ID) {
		return p.Errorf(p.CodeForbidden, "target.agent", "%s hands off to %s (hands_to), not to %s; only the orchestrator decides routing",
			e.from.ID, strings.Join(e.from.HandsTo, ", "), to.ID)
	}
	return p.Errorf(p.CodeForbidden, "target.agent", "%s takes handoffs from %s (accepts_from), not from %s; only the orchestrator decides routing",
		to.ID, strings.Join(to.AcceptsFrom, ", "), e.from.ID)
}

// FellBack is a suffix of the variant's name in the state of a handoff. The agent that its
// experiment chose could not have it.
const FellBack = "/fallback"

// MovesTarget returns the target with which an experiment replaces that of a submission's package.
func MovesTarget(ticket string, s p.Summary, f *p.Fleet) (to p.Target, moves bool) {
	if f == nil || len(f.Experiments) == 0 { // usual case
		return s.Target, false
	}
	varied := inVariant(ticket, classify(s, f), f)
	return varied.Target, movesTarget(&varied, &s)
}

func movesTarget(varied, own *p.Summary) bool {
	return varied.Target.Agent != own.Target.Agent || varied.Target.Capability != own.Target.Capability
}

// inVariant applies to a submission the variant of the first fitting experiment of the fleet.
// All submissions of a unit get the same variant. Without an experiment it returns s. A handoff
// that follows from another one, goes to several agents, or goes up is in no experiment.
func inVariant(ticket string, s p.Summary, f *p.Fleet) p.Summary {
	if f == nil || len(f.Experiments) == 0 { // usual case
		return s
	}
	if s.Parent != "" || s.Group != "" || s.Aggregate != nil || s.ReturnOf != "" || s.CallOf != "" || s.Origin != "" || s.Type == p.Escalation {
		return s
	}
	for i := range f.Experiments {
		e := &f.Experiments[i]
		if unit := unitOf(e, ticket, &s); unit != "" && inExperiment(e, &s) {
			return vary(s, e, variantOf(e, unit))
		}
	}
	return s
}

// inExperiment reports whether an experiment covers a submission. Its source is never its target.
func inExperiment(e *p.Experiment, s *p.Summary) bool {
	return fitsRule(e.When, s, s.Target.Agent) &&
		!slices.ContainsFunc(e.Variants, func(v p.Variant) bool { return v.Target.Agent == s.Source })
}

// unitOf returns the unit that gets one variant as a whole; empty if the submission has none.
func unitOf(e *p.Experiment, ticket string, s *p.Summary) string {
	switch e.Unit {
	case p.UnitConversation:
		return s.ConversationID
	case p.UnitWorkflow:
		return s.WorkflowID
	}
	return ticket
}

// variantOf returns the variant of a unit, by its hash over the weights.
func variantOf(e *p.Experiment, unit string) *p.Variant {
	total := uint64(0)
	for _, v := range e.Variants {
		total += uint64(v.Weight)
	}
	at := turnOf(e.Name, unit) % max(total, 1)
	for i, v := range e.Variants {
		if at < uint64(v.Weight) {
			return &e.Variants[i]
		}
		at -= uint64(v.Weight)
	}
	return &e.Variants[0]
}

// vary applies a variant. The package's own policies and its own routing take precedence.
func vary(s p.Summary, e *p.Experiment, v *p.Variant) p.Summary {
	s.Variant = e.Name + "/" + v.Name
	s.Overrides = s.Overrides.Over(v.Policy)
	if v.Routing != nil && s.RouteBy == "" {
		s.RouteBy = v.Routing.By
	}
	if v.Target.Agent != "" || v.Target.Capability != "" {
		if own := s.Target.Agent; own != "" && own != v.Target.Agent { // it gets the handoff if the variant's agent refuses
			s.Ranked = append([]string{own}, s.Ranked...)
		}
		s.Target = v.Target
	}
	return s
}
