package protocol

import (
	"cmp"
	"fmt"
	"slices"
)

// OnOpen decides about a submission that no agent can get now: the breaker of its agent is open, or
// no agent has the name or the capability.
type OnOpen string

const (
	OnOpenRefuse OnOpen = "refuse" // refuse it (CodeBreakerOpen, CodeUnknownAgent, CodeNoAgent); the default
	OnOpenWait   OnOpen = "wait"   // accept it, and offer it as soon as an agent may have it
)

// OnOpens lists all values of OnOpen.
var OnOpens = []OnOpen{OnOpenRefuse, OnOpenWait}

// RouteBy is how an agent is chosen among those that meet the requirements of a package.
type RouteBy string

const (
	RouteByFit     RouteBy = "fit"     // the fittest, then the one with the most room; the default
	RouteByLoad    RouteBy = "load"    // the same, with ties broken by the ticket
	RouteBySuccess RouteBy = "success" // the fittest with the fewest recent failures, then as by load
)

// RouteBys lists all values of RouteBy.
var RouteBys = []RouteBy{RouteByFit, RouteByLoad, RouteBySuccess}

// RoutingRules are a package's rules for choosing its agent.
type RoutingRules struct {
	OnOpen OnOpen `json:"on_open,omitempty" flag:"on-open" doc:"{WHAT} becomes of it where the breaker of its agent is open: refuse (default) or wait"`
	// OnUnknown applies to a target without an agent. A group does not wait, because each of its
	// members would.
	OnUnknown OnOpen `json:"on_unknown,omitempty"`
	// By is, if absent, the fleet's.
	By RouteBy `json:"by,omitempty" flag:"route-by" doc:"{RULE} by which an agent with the capability is chosen: fit (default), load or success (default of all: handoff fleet set routing.by=...)"`
	// Ranked lists the agents that may have it if the named one does not take it, best first.
	Ranked []string `json:"ranked,omitempty" flag:"ranked" doc:"{AGENT} that gets it if its target refuses it; the best first, at most 8 (repeatable)"`
}

// FleetRouting is how agents are chosen if the package has no rule.
type FleetRouting struct {
	By RouteBy `json:"by,omitempty"`
}

func (r *FleetRouting) validate() *Error {
	if r == nil {
		return nil
	}
	return oneOf("routing.by", r.By, RouteBys)
}

func (r *RoutingRules) validate(target Target, group bool) *Error {
	if r == nil {
		return nil
	}
	if err := oneOf("routing.on_unknown", r.OnUnknown, OnOpens); err != nil {
		return err
	}
	if group && r.OnUnknown == OnOpenWait {
		return Errorf(CodeConflict, "routing.on_unknown", "does not go with a group: name existing agents")
	}
	const field = "routing.ranked"
	if err := cmp.Or(oneOf("routing.on_open", r.OnOpen, OnOpens), oneOf("routing.by", r.By, RouteBys),
		atMost(field, len(r.Ranked), RankedMax, "has %d agents")); err != nil {
		return err
	}
	if len(r.Ranked) > 0 && target.Capability != "" {
		return Errorf(CodeConflict, field, "does not go with target.capability: an agent with the capability is chosen")
	}
	for i, agent := range r.Ranked {
		at := fmt.Sprintf("%s[%d]", field, i)
		if err := checkID(at, agent); err != nil {
			return err
		}
		if slices.Contains(r.Ranked[:i], agent) {
			return Errorf(CodeConflict, at, "names %s twice", agent)
		}
	}
	return nil
}

// summarize copies the rules that the core needs into a summary.
func (r *RoutingRules) summarize(s *Summary) {
	if r == nil {
		return
	}
	if s.RouteBy, s.Ranked = r.By, r.Ranked; r.OnOpen != OnOpenRefuse {
		s.OnOpen = r.OnOpen
	}
	if r.OnUnknown != OnOpenRefuse {
		s.OnUnknown = r.OnUnknown
	}
}

// Experiment compares variants of routing and policy: each unit of the matching handoffs gets one
// variant.
type Experiment struct {
	Name     string         `json:"name"`
	When     ApprovalWhen   `json:"when,omitzero"`  // all conditions; empty matches every handoff
	Unit     ExperimentUnit `json:"unit,omitempty"` // absent is ticket
	Variants []Variant      `json:"variants"`
}

// Variant is a set of changes. A variant without changes is the control.
type Variant struct {
	Name    string          `json:"name"`
	Weight  int64           `json:"weight"` // its share of the units, among the weights of all
	Target  Target          `json:"target,omitzero"`
	Routing *FleetRouting   `json:"routing,omitempty"`
	Policy  PolicyOverrides `json:"policy,omitzero"`
}

// ExperimentUnit is the set of handoffs that gets the same variant.
type ExperimentUnit string

const (
	UnitTicket       ExperimentUnit = "ticket" // each handoff alone
	UnitConversation ExperimentUnit = "conversation"
	UnitWorkflow     ExperimentUnit = "workflow"
)

// experimentUnits lists all values of ExperimentUnit.
var experimentUnits = []ExperimentUnit{UnitTicket, UnitConversation, UnitWorkflow}

func checkExperiments(all []Experiment) *Error {
	return checkNamed("experiments", all, experimentsMax, "lists %d experiments", (*Experiment).check, ".name", func(e *Experiment) string { return e.Name })
}

func (e *Experiment) check() *Error {
	if err := cmp.Or(checkID("name", e.Name), e.When.check("when."), oneOf("unit", e.Unit, experimentUnits)); err != nil {
		return err
	}
	if n := len(e.Variants); n < 1 || n > variantsMax {
		return Errorf(CodeInvalid, "variants", "must be from 1 to %d, not %d", variantsMax, n)
	}
	if err := checkNamed("variants", e.Variants, variantsMax, "lists %d", (*Variant).check, ".name", func(v *Variant) string { return v.Name }); err != nil {
		return err
	}
	if !slices.ContainsFunc(e.Variants, func(v Variant) bool { return v.Weight > 0 }) {
		return Errorf(CodeInvalid, "variants", "have no weight: one of them must have 1 or more")
	}
	return nil
}

func (v *Variant) check() *Error {
	if err := cmp.Or(checkID("name", v.Name), between("weight", v.Weight, 0, variantWeightMax)); err != nil {
		return err
	}
	switch t := v.Target; {
	case len(t.Agents) > 0:
		return Errorf(CodeInvalid, "target.agents", "is not for a variant: a handoff to several is in no experiment")
	case t.Agent != "" && t.Capability != "":
		return Errorf(CodeConflict, "target", "names an agent and a capability; give one of them")
	}
	return cmp.Or(optionalID("target.agent", v.Target.Agent), optionalID("target.capability", v.Target.Capability),
		v.Routing.validate(), v.Policy.validate("policy"))
}
