package protocol

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// FleetKey is the key of the fleet's settings among the agents: a reserved name, which no agent
// has.
const FleetKey = System

// Fleet are the settings that hold for all agents of an engine, one field for each subject. An
// agent's profile wins over them, and a package over both.
type Fleet struct {
	Policy    PolicyOverrides `json:"policy,omitzero"`     // defaults for all that is offered
	Approvals []ApprovalRule  `json:"approvals,omitempty"` // what asks for an approval; the first that fits and has By names the approver
	// Limits bound every handoff that follows from none; a package may ask for less.
	Limits *Limits `json:"limits,omitempty"`
	// Classes are the limits of the classes of complexity, in place of those of DefaultClasses.
	Classes map[string]*Limits `json:"classes,omitempty"`
	// Complexity gives a class to submissions that name none: the first that fits.
	Complexity []ComplexityRule `json:"complexity,omitempty"`
	// Loops bound the rounds in which work comes back changed by little.
	Loops *Loops `json:"loops,omitempty"`
	// Handoffs is the mode of each agent whose profile has none of its own; absent is on.
	Handoffs HandoffMode `json:"handoffs,omitempty"`
	// Breaker is of every agent; nil is none.
	Breaker *Breaker `json:"breaker,omitempty"`
	// Routing is how agents are chosen.
	Routing *FleetRouting `json:"routing,omitempty"`
	// Experiments give handoffs variants of their way; the first that fits a handoff counts.
	Experiments []Experiment `json:"experiments,omitempty"`
	UpdatedAt   Time         `json:"updated_at,omitzero"`
}

// Loops bound the rounds of a lineage in which work comes back changed by little (documents 0 and 2).
type Loops struct {
	// EdgeRepeats is how often one agent may hand off the same work to the same other one, with
	// another reason or previous result each time; absent is EdgeRepeatsDefault, 0 is no bound.
	EdgeRepeats *int64 `json:"edge_repeats,omitempty"`
}

// EdgeRepeatsDefault is Loops.EdgeRepeats of a fleet without that setting.
const EdgeRepeatsDefault = 5

// ComplexityRule gives a class of complexity to the submissions that it fits.
type ComplexityRule struct {
	If    ApprovalWhen `json:"if,omitzero"` // all of it; nothing fits everything
	Class string       `json:"class"`
}

func checkComplexity(rules []ComplexityRule) *Error {
	if n := len(rules); n > ComplexityRulesMax {
		return Errorf(CodeTooLarge, "complexity", "lists %d rules, at most %d are allowed", n, ComplexityRulesMax)
	}
	for i, r := range rules {
		at := fmt.Sprintf("complexity[%d]", i)
		if err := r.If.check("if."); err != nil {
			return err.below(at)
		}
		switch {
		case r.If.Complexity != "":
			return Errorf(CodeConflict, at+".if.complexity", "is what the rule decides: leave it out")
		case r.Class == "":
			return Errorf(CodeMissing, at+".class", "is missing: one of %s", strings.Join(Complexities, ", "))
		}
		if err := oneOf("class", r.Class, Complexities); err != nil {
			return err.below(at)
		}
	}
	return nil
}

// DefaultClasses are the limits of a class of complexity.
func DefaultClasses(class string) *Limits {
	limits := func(handoffs, tokens, agents int64) *Limits {
		return &Limits{MaxHandoffs: &handoffs, MaxTokens: &tokens, MaxAgents: &agents}
	}
	switch class {
	case "simple":
		return limits(0, 10_000, 1)
	case "medium":
		return limits(2, 25_000, 3)
	case "complex":
		return limits(5, 150_000, 5)
	}
	return nil
}

// Validate checks the settings: all of them are within the limits.
func (f Fleet) Validate() error {
	if err := f.Policy.validate("policy"); err != nil {
		return err
	}
	if err := oneOf("handoffs", f.Handoffs, HandoffModes); err != nil {
		return err
	}
	if err := f.Breaker.validate("breaker"); err != nil {
		return err
	}
	if f.Routing != nil {
		if err := oneOf("routing.by", f.Routing.By, RouteBys); err != nil {
			return err
		}
	}
	if err := checkExperiments(f.Experiments); err != nil {
		return err
	}
	if err := checkComplexity(f.Complexity); err != nil {
		return err
	}
	if err := checkApprovalRules(f.Approvals); err != nil {
		return err
	}
	if err := f.Limits.validate("limits"); err != nil {
		return err
	}
	for _, class := range slices.Sorted(maps.Keys(f.Classes)) {
		if !slices.Contains(Complexities, class) {
			return Errorf(CodeInvalid, "classes", "has the classes %s, not %q", strings.Join(Complexities, ", "), class)
		}
		if err := f.Classes[class].validate("classes." + class); err != nil {
			return err
		}
	}
	if f.Loops != nil {
		if n := f.Loops.EdgeRepeats; n != nil {
			if err := between("loops.edge_repeats", *n, 0, LineageDepthMax); err != nil {
				return err
			}
		}
	}
	return nil
}

// DecodeFleet reads the settings of a fleet as strictly as DecodePackage reads a package.
func DecodeFleet(body []byte) (Fleet, error) {
	var f Fleet
	if err := decodeStrict(body, "fleet", FleetBytesMax, 0, fleetShape, &f); err != nil {
		return Fleet{}, err
	}
	return f, nil
}
