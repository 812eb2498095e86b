package protocol

import "fmt"

// Experiment compares variants of the way that handoffs go: of what fits, each unit gets one of them.
type Experiment struct {
	Name     string         `json:"name"`
	When     ApprovalWhen   `json:"when,omitzero"`  // all of it; nothing fits everything
	Unit     ExperimentUnit `json:"unit,omitempty"` // absent is ticket
	Variants []Variant      `json:"variants"`
}

// Variant is what an experiment changes. One without changes is the one to compare with.
type Variant struct {
	Name    string          `json:"name"`
	Weight  int64           `json:"weight"` // its share of the units, among the weights of all
	Target  Target          `json:"target,omitzero"`
	Routing *FleetRouting   `json:"routing,omitempty"`
	Policy  PolicyOverrides `json:"policy,omitzero"`
}

// ExperimentUnit is what gets a variant as a whole.
type ExperimentUnit string

const (
	UnitTicket       ExperimentUnit = "ticket" // each handoff for itself
	UnitConversation ExperimentUnit = "conversation"
	UnitWorkflow     ExperimentUnit = "workflow"
)

// ExperimentUnits are all values of ExperimentUnit.
var ExperimentUnits = []ExperimentUnit{UnitTicket, UnitConversation, UnitWorkflow}

func checkExperiments(all []Experiment) *Error {
	if n := len(all); n > ExperimentsMax {
		return Errorf(CodeTooLarge, "experiments", "lists %d experiments, at most %d are allowed", n, ExperimentsMax)
	}
	seen := map[string]bool{}
	for i, e := range all {
		at := fmt.Sprintf("experiments[%d]", i)
		if err := e.check(); err != nil {
			return err.below(at)
		}
		if seen[e.Name] {
			return Errorf(CodeConflict, at+".name", "names %s a second time", e.Name)
		}
		seen[e.Name] = true
	}
	return nil
}

func (e *Experiment) check() *Error {
	if err := checkID("name", e.Name); err != nil {
		return err
	}
	if err := e.When.check("when."); err != nil {
		return err
	}
	if err := oneOf("unit", e.Unit, ExperimentUnits); err != nil {
		return err
	}
	if n := len(e.Variants); n < 1 || n > VariantsMax {
		return Errorf(CodeInvalid, "variants", "must be from 1 to %d, not %d", VariantsMax, n)
	}
	seen, weights := map[string]bool{}, int64(0)
	for i, v := range e.Variants {
		at := fmt.Sprintf("variants[%d]", i)
		if err := v.check(); err != nil {
			return err.below(at)
		}
		if seen[v.Name] {
			return Errorf(CodeConflict, at+".name", "names %s a second time", v.Name)
		}
		seen[v.Name], weights = true, weights+v.Weight
	}
	if weights == 0 {
		return Errorf(CodeInvalid, "variants", "have no weight: one of them must have 1 or more")
	}
	return nil
}

func (v *Variant) check() *Error {
	if err := checkID("name", v.Name); err != nil {
		return err
	}
	if v.Weight < 0 || v.Weight > VariantWeightMax {
		return Errorf(CodeInvalid, "weight", "must be from 0 to %d, not %d", VariantWeightMax, v.Weight)
	}
	switch t := v.Target; {
	case len(t.Agents) > 0:
		return Errorf(CodeInvalid, "target.agents", "is not for a variant: a handoff to several is in no experiment")
	case t.Agent != "" && t.Capability != "":
		return Errorf(CodeConflict, "target", "names an agent and a capability; give one of them")
	}
	if err := optionalID("target.agent", v.Target.Agent); err != nil {
		return err
	}
	if err := optionalID("target.capability", v.Target.Capability); err != nil {
		return err
	}
	if v.Routing != nil {
		if err := oneOf("routing.by", v.Routing.By, RouteBys); err != nil {
			return err
		}
	}
	return v.Policy.validate("policy")
}
