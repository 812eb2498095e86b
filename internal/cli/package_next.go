package cli

import (
	"encoding/json"
	"regexp"
	"strconv"
	"strings"

	"github.com/agenthandoff/handoff/protocol"
)

// ruleForm is a rule for what follows: [FROM:] [VARIABLE OP VALUE] -> AGENT[, AGENT]… [xTIMES].
var ruleForm = regexp.MustCompile(`^(?:([^\s:]+):)?\s*(.*?)\s*->\s*([^\s,]+(?:\s*,\s*[^\s,]+)*)(?:\s+x(\d+))?$`)

// conditionForm is what a rule asks. A variable without a comparison has to be there.
var conditionForm = regexp.MustCompile(`^(\S+?)\s*(?:(<=|>=|!=|<|>|=|\bin\b)\s*(.+))?$`)

// parseRule reads a rule: quality_score < 80 -> docs-researcher.
func parseRule(text string) (protocol.NextRule, error) {
	wrong := usagef(`--next %q is no rule; write for example 'quality_score < 80 -> docs-researcher', 'reviewer: status = partial -> lead', or '-> code-implementer'`, text)
	parts := ruleForm.FindStringSubmatch(strings.TrimSpace(text))
	if parts == nil {
		return protocol.NextRule{}, wrong
	}
	rule := protocol.NextRule{From: parts[1], Goto: jsonText(parts[3])}
	if agents := strings.Split(parts[3], ","); len(agents) > 1 {
		for i := range agents {
			agents[i] = strings.TrimSpace(agents[i])
		}
		rule.Goto, _ = json.Marshal(agents) // texts always have a JSON form
	}
	if parts[4] != "" {
		times, err := strconv.Atoi(parts[4])
		if err != nil || times == 0 {
			return protocol.NextRule{}, usagef("--next %q: x%s: a rule is followed from 1 to %d times", text, parts[4], protocol.NextTimesMax)
		}
		rule.Times = times
	}
	if parts[2] == "" || parts[2] == "else" {
		return rule, nil
	}
	compared := conditionForm.FindStringSubmatch(parts[2])
	if compared == nil {
		return protocol.NextRule{}, wrong
	}
	var ok bool
	if rule.If, ok = condition(compared[1], compared[2], compared[3]); !ok {
		return protocol.NextRule{}, wrong
	}
	return rule, nil
}

// condition makes the condition of a comparison.
func condition(variable, op, value string) (*protocol.NextCondition, bool) {
	if variable == "status" && op == "=" {
		return &protocol.NextCondition{Status: protocol.ResultStatus(value)}, true
	}
	c := &protocol.NextCondition{Variable: variable}
	number := func(to **float64) bool {
		n, err := strconv.ParseFloat(value, 64)
		*to = &n
		return err == nil
	}
	switch op {
	case "":
		there := !strings.HasPrefix(variable, "!")
		c.Variable, c.Exists = strings.TrimPrefix(variable, "!"), &there
	case "=":
		c.Eq = jsonOrText(value)
	case "!=":
		c.Ne = jsonOrText(value)
	case "in":
		for one := range strings.SplitSeq(value, ",") {
			c.In = append(c.In, jsonOrText(strings.TrimSpace(one)))
		}
	case "<":
		return c, number(&c.Lt)
	case "<=":
		return c, number(&c.Le)
	case ">":
		return c, number(&c.Gt)
	case ">=":
		return c, number(&c.Ge)
	}
	return c, true
}
