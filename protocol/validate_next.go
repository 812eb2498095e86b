package protocol

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
)

// checkNext checks the rules for what follows.
func checkNext(p *Package) *Error {
	if n := len(p.Next); n > NextRulesMax {
		return Errorf(CodeTooLarge, "next", "has %d rules, at most %d are allowed", n, NextRulesMax)
	}
	for i := range p.Next {
		rule, field := &p.Next[i], fmt.Sprintf("next[%d]", i)
		if err := rule.validate(); err != nil {
			return err.below(field)
		}
		for j := range i {
			if earlier := &p.Next[j]; earlier.From == rule.From && sameValue(earlier.Goto, rule.Goto) && reflect.DeepEqual(earlier.If, rule.If) {
				return Errorf(CodeConflict, field, "says the same as next[%d]; one rule with a larger times is enough", j)
			}
		}
	}
	return nil
}

func (r *NextRule) validate() *Error {
	if r.From != "" {
		if err := checkPatterns("from", []string{r.From}); err != nil {
			err.Field = "from"
			return err
		}
	}
	targets, err := Command{Goto: r.Goto}.Targets()
	switch {
	case err != nil:
		bad := *err.(*Error)
		bad.Field = strings.TrimPrefix(bad.Field, "command.")
		return &bad
	case len(targets) == 0:
		return Errorf(CodeMissing, "goto", "is missing: name the agent that goes on, agents, or one of %s", strings.Join(Ends, ", "))
	case r.From != "" && r.goesTo(r.From):
		return Errorf(CodeConflict, "goto", "is the agent that the rule is for; an agent cannot hand off to itself")
	}
	for _, to := range targets {
		if err := optionalAgent("goto", to.Agent); err != nil { // no model has written it
			return err
		}
		if to.Update != nil {
			return Errorf(CodeConflict, "goto", "has an update of its own; a rule has one update, for all")
		}
	}
	if r.Times != 0 {
		if err := between("times", int64(r.Times), 1, NextTimesMax); err != nil {
			return err
		}
	}
	if err := between("taken", int64(r.Taken), 0, NextTimesMax); err != nil {
		return err
	}
	if err := r.If.validate(); err != nil {
		return err.below("if")
	}
	update, err := json.Marshal(r.Update)
	if err != nil {
		return Errorf(CodeMalformed, "update", "%v", err)
	}
	_, bad := readUpdate("update", update, r.From)
	return bad
}

func (c *NextCondition) validate() *Error {
	if c == nil {
		return nil
	}
	_, operators := c.operator()
	switch {
	case c.Status != "" && (c.Variable != "" || operators > 0):
		return Errorf(CodeConflict, "status", "stands alone; a variable is compared by another rule")
	case c.Status != "":
		return oneOf("status", c.Status, ResultStatuses)
	case c.Variable == "":
		return Errorf(CodeMissing, "variable", "is missing: name the variable that is compared, or a status")
	case operators == 0:
		return Errorf(CodeMissing, "eq", "is missing: compare the variable by one of eq, ne, lt, le, gt, ge, in and exists")
	case operators > 1:
		return Errorf(CodeConflict, "variable", "is compared in %d ways; a rule has one comparison", operators)
	case c.In != nil && len(c.In) == 0:
		return Errorf(CodeInvalid, "in", "lists no value")
	case len(c.In) > NextValuesMax:
		return Errorf(CodeTooLarge, "in", "lists %d values, at most %d are allowed", len(c.In), NextValuesMax)
	}
	return checkName("variable", c.Variable)
}
