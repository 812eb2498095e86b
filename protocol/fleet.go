package protocol

import (
	"cmp"
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
	return checkList("complexity", rules, complexityRulesMax, "lists %d rules", (*ComplexityRule).check)
}

func (r *ComplexityRule) check() *Error {
	err := r.If.check("if.")
	switch {
	case err != nil:
		return err
	case r.If.Complexity != "":
		return Errorf(CodeConflict, "if.complexity", "cannot be a condition of the rule that decides it: leave it out")
	case r.Class == "":
		return Errorf(CodeMissing, "class", "is missing: one of %s", strings.Join(Complexities, ", "))
	}
	return oneOf("class", r.Class, Complexities)
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
	if err := cmp.Or(
		f.Policy.validate("policy"),
		oneOf("handoffs", f.Handoffs, HandoffModes),
		f.Breaker.validate("breaker"),
		f.Routing.validate(),
		checkExperiments(f.Experiments),
		checkComplexity(f.Complexity),
		checkKeyLimits("limits_by", f.LimitsBy),
		checkApprovalRules(f.Approvals),
		f.Limits.validate("limits"),
	); err != nil {
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
		return optionalBetween("loops.edge_repeats", f.Loops.EdgeRepeats, 0, LineageDepthMax).orNil()
	}
	return nil
}

// DecodeFleet reads the settings of a fleet as strictly as DecodePackage reads a package.
func DecodeFleet(body []byte) (Fleet, error) { return decode[Fleet](body, "fleet", FleetBytesMax) }
