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

// Fleet holds the settings for all agents of an engine, one field per subject. An agent's profile
// takes precedence over them, and a package over both.
type Fleet struct {
	Policy    PolicyOverrides `json:"policy,omitzero"`     // defaults for all offers
	Approvals []ApprovalRule  `json:"approvals,omitempty"` // which handoffs need an approval; the first match with By names the approver
	// Limits bound every handoff that follows from no other; a package may ask for less.
	Limits *Limits `json:"limits,omitempty"`
	// Classes holds the limits of the complexity classes, in place of DefaultClasses.
	Classes map[string]*Limits `json:"classes,omitempty"`
	// Complexity assigns a class to submissions without one: the first match.
	Complexity []ComplexityRule `json:"complexity,omitempty"`
	// Loops bound the rounds in which work returns with little change.
	Loops *Loops `json:"loops,omitempty"`
	// Handoffs is the mode of each agent whose profile has none; absent is on.
	Handoffs HandoffMode `json:"handoffs,omitempty"`
	// Breaker applies to every agent; nil is none.
	Breaker *Breaker `json:"breaker,omitempty"`
	// Routing selects how agents are chosen.
	Routing *FleetRouting `json:"routing,omitempty"`
	// Experiments assign variants to handoffs; the first match counts.
	Experiments []Experiment `json:"experiments,omitempty"`
	// LimitsBy bound the work of all agents by keys.
	LimitsBy  []KeyLimit `json:"limits_by,omitempty"`
	UpdatedAt Time       `json:"updated_at,omitzero"`
}

// Loops bound the rounds of a lineage in which work returns with little change (documents 0 and 2).
type Loops struct {
	// EdgeRepeats is how often an agent may hand off the same work to the same agent, with another
	// reason or previous result each time; absent is EdgeRepeatsDefault, 0 is no bound.
	EdgeRepeats *int64 `json:"edge_repeats,omitempty"`
}

// EdgeRepeatsDefault is Loops.EdgeRepeats of a fleet without that setting.
const EdgeRepeatsDefault = 5

// ComplexityRule assigns a complexity class to matching submissions.
type ComplexityRule struct {
	If    ApprovalWhen `json:"if,omitzero"` // all conditions; empty matches every handoff
	Class string       `json:"class"`
}

func checkComplexity(rules []ComplexityRule) *Error {
	if n := len(rules); n > complexityRulesMax {
		return Errorf(CodeTooLarge, "complexity", "lists %d rules, at most %d are allowed", n, complexityRulesMax)
	}
	for i, r := range rules {
		at := fmt.Sprintf("complexity[%d]", i)
		if err := r.If.check("if."); err != nil {
			return err.below(at)
		}
		switch {
		case r.If.Complexity != "":
			return Errorf(CodeConflict, at+".if.complexity", "cannot be a condition of the rule that decides it: leave it out")
		case r.Class == "":
			return Errorf(CodeMissing, at+".class", "is missing: one of %s", strings.Join(Complexities, ", "))
		}
		if err := oneOf("class", r.Class, Complexities); err != nil {
			return err.below(at)
		}
	}
	return nil
}

// DefaultClasses returns the limits of a complexity class.
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

// Validate checks that all settings are within their limits.
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
	if err := checkKeyLimits("limits_by", f.LimitsBy); err != nil {
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
