package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// notEmpty refuses flags whose value is absent on the wire, which is not what they mean.
func (f *packageFlags) notEmpty(pkg *protocol.Package) error {
	changed := f.fs.Changed
	switch {
	case changed("key") && pkg.Key == "": // an unset variable in a script: without a key it would be a new handoff each time
		return protocol.Errorf(protocol.CodeMissing, "key", "is there but empty; leave --key out or fill it in")
	case changed("work-timeout") && pkg.Expectations.TimeoutMS == 0:
		return protocol.Errorf(protocol.CodeInvalid, "expectations.timeout_ms", "is 0; leave --work-timeout out for the agent's own")
	case changed("approval-timeout") && pkg.Approval.TimeoutMS == 0:
		return protocol.Errorf(protocol.CodeInvalid, "approval.timeout_ms", "is 0; leave --approval-timeout out for the default")
	case changed("return-timeout") && pkg.Return.TimeoutMS == 0:
		return protocol.Errorf(protocol.CodeInvalid, "return.timeout_ms", "is 0; leave --return-timeout out for none")
	}
	return nil
}

func (f *packageFlags) setDeadline(pkg *protocol.Package, now time.Time) error {
	if !f.fs.Changed("deadline") {
		return nil
	}
	at, relative, err := parseInstant(f.deadline, now)
	if err != nil {
		return usagef("--deadline: %v", err)
	}
	if relative && pkg.Key != "" {
		return usagef("--deadline %s with --key: submitted again it would be another package; give the deadline as an instant, for example %s",
			f.deadline, at.Format(time.RFC3339))
	}
	pkg.Constraints.Deadline = at
	return nil
}

// policyWords are the words of a policy that is a choice, as the help of its flag lists them.
func policyWords(name string) string {
	i := slices.IndexFunc(protocol.PolicyFields, func(f protocol.PolicyField) bool { return f.Name == name })
	f := protocol.PolicyFields[i]
	words := []string{fmt.Sprintf("%s (default)", f.Default)}
	for _, word := range f.Words {
		if word != f.Default {
			words = append(words, word)
		}
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// policyNames are the names of all policies on the wire.
func policyNames() []string {
	names := make([]string, len(protocol.PolicyFields))
	for i, f := range protocol.PolicyFields {
		names[i] = f.Name
	}
	return names
}

// applyPolicies sets name=value pairs by their names on the wire; an empty value unsets one.
func applyPolicies(to *protocol.PolicyOverrides, pairs []string) error {
	values, err := parseVariables("--policy", pairs)
	if err != nil {
		return err
	}
	for name, value := range values {
		if known := policyNames(); !slices.Contains(known, name) {
			return protocol.Errorf(protocol.CodeInvalid, "policy."+name, "is no policy%s; handoff schema package has them all", didYouMean(name, known))
		}
		if string(value) == `""` { // unset: what holds below it holds again
			value = json.RawMessage("null")
		}
		one, err := json.Marshal(map[string]json.RawMessage{name: value})
		if err != nil {
			return err
		}
		decoder := json.NewDecoder(bytes.NewReader(one))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(to); err != nil {
			return protocol.Errorf(protocol.CodeInvalid, "policy."+name, "cannot be %s: %v", value, plainJSON(err))
		}
	}
	return nil
}

// flagOf says with which flag a field of the package is given.
var flagOf = map[string]string{
	"source": "--from", "target": "--to or --capability", "target.agent": "--to", "target.capability": "--capability",
	"target.agents": "--to, for each of them, or --group", "members": "--group",
	"reason": "--reason", "task.description": "--task", "return.timeout_ms": "--return-timeout", "return": "--return-timeout",
	"audit.decision_rationale": "--rationale", "constraints.deadline": "--deadline", "expectations.timeout_ms": "--work-timeout",
	"context.conversation_id": "--conversation", "context.user_intent": "--intent", "priority": "--priority", "type": "--type",
}

// flagOfValue says which flag gives a field that has another name.
var flagOfValue = map[string]string{
	"routing.on_open": "--on-open", "routing.on_unknown": "--wait-for-agent", "routing.by": "--route-by", "constraints.complexity": "--complexity",
	"limits.max_handoffs": "--max-handoffs", "limits.max_depth": "--max-depth", "limits.max_agents": "--max-agents", "limits.max_tokens": "--max-tokens",
	"limits.max_cost_micros": "--max-cost", "limits.max_time_ms": "--max-time", "limits.share_percent": "--share", "limits.on_exhausted": "--on-exhausted",
}

// hint names the flag in what is said of a field, where flags made the package.
func (f *packageFlags) hint(err error) error {
	var e *protocol.Error
	if !errors.As(err, &e) || f.file != "" {
		return err
	}
	hinted := *e
	switch {
	case e.Code == protocol.CodeMissing && flagOf[e.Field] != "":
		hinted.Message += "; give it with " + flagOf[e.Field]
	case e.Code == protocol.CodeInvalid && flagOfValue[e.Field] != "":
		hinted.Message += " (" + flagOfValue[e.Field] + ")"
	case e.Code == protocol.CodeBreakerOpen:
		hinted.Message = strings.Replace(e.Message, "routing.on_open", "--on-open wait", 1)
	default:
		return err
	}
	return &hinted
}

// plainJSON says in words what encoding/json says in Go's.
func plainJSON(err error) string {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		where := cmp.Or(wrong.Field, "it")
		return fmt.Sprintf("%s may not be a %s", where, wrong.Value)
	}
	return strings.TrimPrefix(err.Error(), "json: ")
}
