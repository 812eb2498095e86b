package protocol

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/agenthandoff/handoff/protocol/internal/wirejson"
)

// Limits of the rules for what follows.
const (
	// NextRulesMax is how many rules a package has.
	NextRulesMax = 16
	// NextTimesDefault is how often a rule that says nothing of it is followed along a chain.
	NextTimesDefault, NextTimesMax = 3, 100
	// NextValuesMax is how many values one condition lists.
	NextValuesMax = 64
)

// NextRule is one of a package's rules for what follows on its result. They stand in
// for a command of the result: where it has none, the first rule that holds makes it.
type NextRule struct {
	// From is the agent whose results the rule is for, an id or prefix*; absent is every agent.
	From string `json:"from,omitempty"`
	// If is what has to hold; absent always holds.
	If *NextCondition `json:"if,omitempty"`
	// Goto is the agents that go on, or one of Ends, as in a Command.
	Goto   json.RawMessage            `json:"goto"`
	Update map[string]json.RawMessage `json:"update,omitempty"` // as in a Command
	// Times is how often it is followed along a chain; absent is NextTimesDefault. Taken is how often
	// it was, which Handoff counts.
	Times int `json:"times,omitempty"`
	Taken int `json:"taken,omitempty"`
}

// NextCondition compares a variable, or the status of a result, with what one of the other fields
// says. Lt, Le, Gt and Ge compare numbers. A variable that is absent meets Exists alone.
type NextCondition struct {
	Variable string            `json:"variable,omitempty"`
	Status   ResultStatus      `json:"status,omitempty"` // the status that the result has
	Eq       json.RawMessage   `json:"eq,omitempty"`
	Ne       json.RawMessage   `json:"ne,omitempty"`
	Lt       *float64          `json:"lt,omitempty"`
	Le       *float64          `json:"le,omitempty"`
	Gt       *float64          `json:"gt,omitempty"`
	Ge       *float64          `json:"ge,omitempty"`
	In       []json.RawMessage `json:"in,omitempty"`
	Exists   *bool             `json:"exists,omitempty"`
}

// MayHaveRules tells, without reading a package, whether it may have rules for what follows.
func MayHaveRules(body []byte) bool { return bytes.Contains(body, []byte(`"next":`)) }

// followRules gives a result without a command the one that the package's rules make, and returns
// the package with that rule counted. from is the agent that has the result.
func followRules(pkg Package, from string, result Result) (Package, Result) {
	if result.Command != nil {
		return pkg, result
	}
	variables := overlay(pkg.Context.Variables, result.Variables)
	for i, rule := range pkg.Next {
		if !rule.holds(from, variables, result) {
			continue
		}
		pkg.Next = slices.Clone(pkg.Next)
		pkg.Next[i].Taken++
		update := map[string]json.RawMessage{"reason": nil}
		maps.Copy(update, rule.Update)
		if !isGiven(update["reason"]) {
			update["reason"], _ = json.Marshal("handed on by " + from + ": " + rule.words(variables)) // text always has a JSON form
		}
		result.Command = &Command{Goto: rule.Goto}
		result.Command.Update, _ = json.Marshal(update) // its values were decoded from JSON
		return pkg, result
	}
	return pkg, result
}

// holds tells whether a rule is the one to follow. An agent never goes on to itself.
func (r *NextRule) holds(from string, variables map[string]json.RawMessage, result Result) bool {
	if r.Taken >= cmp.Or(r.Times, NextTimesDefault) || r.goesTo(from) {
		return false
	}
	if r.From != "" && !matchesAny([]string{r.From}, from) {
		return false
	}
	return r.If == nil || r.If.holds(variables, cmp.Or(result.Status, Success))
}

// goesTo reports whether a rule names an agent.
func (r *NextRule) goesTo(agent string) bool {
	targets, err := Command{Goto: r.Goto}.Targets()
	return err != nil || slices.ContainsFunc(targets, func(to Goto) bool { return to.Agent == agent })
}

func (c *NextCondition) holds(variables map[string]json.RawMessage, status ResultStatus) bool {
	if c.Status != "" {
		return c.Status == status
	}
	value, there := variables[c.Variable]
	switch {
	case c.Exists != nil:
		return there == *c.Exists
	case !there:
		return false
	case c.Eq != nil:
		return sameValue(value, c.Eq)
	case c.Ne != nil:
		return !sameValue(value, c.Ne)
	case c.In != nil:
		return slices.ContainsFunc(c.In, func(one json.RawMessage) bool { return sameValue(value, one) })
	}
	number, err := strconv.ParseFloat(string(value), 64)
	if err != nil {
		return false
	}
	return c.Lt != nil && number < *c.Lt || c.Le != nil && number <= *c.Le ||
		c.Gt != nil && number > *c.Gt || c.Ge != nil && number >= *c.Ge
}

// sameValue compares two values: numbers by what they count, all else by canonical JSON.
func sameValue(a, b json.RawMessage) bool {
	x, errX := strconv.ParseFloat(string(a), 64)
	y, errY := strconv.ParseFloat(string(b), 64)
	if errX == nil && errY == nil {
		return x == y
	}
	left, errX := json.Marshal(canonical(a))
	right, errY := json.Marshal(canonical(b))
	return errX == nil && errY == nil && string(left) == string(right)
}

// words say why a rule holds: quality_score 72 < 80.
func (r *NextRule) words(variables map[string]json.RawMessage) string {
	c := r.If
	switch {
	case c == nil:
		return "no other rule holds"
	case c.Status != "":
		return "status " + string(c.Status)
	case c.Exists != nil && !*c.Exists:
		return c.Variable + " is not set"
	case c.Exists != nil:
		return c.Variable + " is set"
	}
	op, _ := c.operator()
	return fmt.Sprintf("%s %s %s", c.Variable, wirejson.Clip(string(variables[c.Variable])), op)
}

// operator is the one comparison of a condition in words, and how many it has.
func (c *NextCondition) operator() (words string, n int) {
	values := func(op string, there bool, value any) {
		if there {
			body, _ := json.Marshal(value) // decoded from JSON
			words, n = op+" "+wirejson.Clip(string(body)), n+1
		}
	}
	values("=", c.Eq != nil, c.Eq)
	values("!=", c.Ne != nil, c.Ne)
	values("<", c.Lt != nil, c.Lt)
	values("<=", c.Le != nil, c.Le)
	values(">", c.Gt != nil, c.Gt)
	values(">=", c.Ge != nil, c.Ge)
	values("in", c.In != nil, c.In)
	values("exists", c.Exists != nil, c.Exists)
	return words, n
}
