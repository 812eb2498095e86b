package lifecycle

import (
	"slices"

	p "github.com/agenthandoff/handoff/protocol"
)

// FellBack follows the name of a variant in the state of a handoff that its experiment would have
// sent to another agent, which could not have it.
const FellBack = "/fallback"

// MovesTarget returns the target to which an experiment sends a submission in place of that of its
// package.
func MovesTarget(ticket string, s p.Summary, f *p.Fleet) (to p.Target, moves bool) {
	if f == nil || len(f.Experiments) == 0 { // as a rule
		return s.Target, false
	}
	varied := InExperiment(ticket, classify(s, f), f)
	return varied.Target, movesTarget(&varied, &s)
}

func movesTarget(varied, own *p.Summary) bool {
	return varied.Target.Agent != own.Target.Agent || varied.Target.Capability != own.Target.Capability
}

// InExperiment returns the summary of a submission as the variant has it that falls to it: of the
// first experiment of the fleet that it fits, the same for all of a unit. Without one it is s itself.
// What follows from another handoff, goes to several, or goes up is in no experiment.
func InExperiment(ticket string, s p.Summary, f *p.Fleet) p.Summary {
	if f == nil || len(f.Experiments) == 0 { // as a rule
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

// inExperiment tells whether an experiment is about a submission. Its source is never its target.
func inExperiment(e *p.Experiment, s *p.Summary) bool {
	return fitsRule(e.When, s, s.Target.Agent) &&
		!slices.ContainsFunc(e.Variants, func(v p.Variant) bool { return v.Target.Agent == s.Source })
}

// unitOf is what gets one variant as a whole; empty where a submission has no such thing.
func unitOf(e *p.Experiment, ticket string, s *p.Summary) string {
	switch e.Unit {
	case p.UnitConversation:
		return s.ConversationID
	case p.UnitWorkflow:
		return s.WorkflowID
	}
	return ticket
}

// variantOf gives a unit its variant, by its hash over the weights.
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

// vary applies a variant. What the package says of policies and of the choice of its agent wins.
func vary(s p.Summary, e *p.Experiment, v *p.Variant) p.Summary {
	s.Variant = e.Name + "/" + v.Name
	s.Overrides = s.Overrides.Over(v.Policy)
	if v.Routing != nil && s.RouteBy == "" {
		s.RouteBy = v.Routing.By
	}
	if v.Target.Agent != "" || v.Target.Capability != "" {
		if own := s.Target.Agent; own != "" && own != v.Target.Agent { // it stands in where the variant's refuses, too
			s.Ranked = append([]string{own}, s.Ranked...)
		}
		s.Target = v.Target
	}
	return s
}
