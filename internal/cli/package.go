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

	"github.com/spf13/pflag"

	"github.com/agenthandoff/handoff/protocol"
)

// packageFlags are the flags that make a package.
type packageFlags struct {
	fieldFlags[protocol.Package]

	file, contextFile, historyFile, schemaFile, groupFile string

	from, capability, parent, deadline, await string
	to, variables, artifacts                  []string
	requires, policies                        []string
}

func (f *packageFlags) declare(fs *pflag.FlagSet) {
	f.fs = fs
	fs.SortFlags = false // the flags that each submission needs come first
	type pkg = protocol.Package
	fs.StringVarP(&f.file, "file", "f", "", "read the package from a JSON `FILE`, or stdin with -; flags replace its fields")
	fs.StringVar(&f.from, "from", "", "the `AGENT` that hands off (default $HANDOFF_AGENT, else human)")
	fs.StringArrayVar(&f.to, "to", nil, "the `AGENT` to hand to; repeat it to hand the same to several (a broadcast)")
	fs.StringVar(&f.capability, "capability", "", "hand to the best agent with this `CAPABILITY`, instead of --to")
	f.text("reason", "`WHY` this handoff", func(p *pkg) *string { return &p.Reason })
	f.text("task", "`WHAT` is to be done, in words", func(p *pkg) *string { return &p.Task.Description })
	f.text("task-id", "`ID` of the task, your own", func(p *pkg) *string { return &p.Task.ID })
	f.text("task-type", "`KIND` of task, your own word", func(p *pkg) *string { return &p.Task.Type })
	f.texts("requirement", "`WORDS` that the work must meet (repeatable)", func(p *pkg) *[]string { return &p.Task.Requirements })
	f.texts("criterion", "`WORDS` by which the result is judged (repeatable)", func(p *pkg) *[]string { return &p.Expectations.SuccessCriteria })
	f.text("type", "`TYPE`: sequential (default), delegation, broadcast or escalation (needs no --to)", func(p *pkg) *string { return (*string)(&p.Type) })
	f.text("trigger", "`WHAT` set it off: task_completion, capability_mismatch, escalation, timeout, explicit_request", func(p *pkg) *string { return (*string)(&p.Trigger) })
	f.text("priority", "`PRIORITY`: critical, high, normal (default) or low", func(p *pkg) *string { return (*string)(&p.Priority) })
	f.text("key", "idempotency `KEY`: the same source, key and package are the same handoff", func(p *pkg) *string { return &p.Key })
	fs.StringVar(&f.parent, "parent", "", "`TICKET` this one follows from (default $HANDOFF_TICKET, inside a worker)")
	f.text("conversation", "`ID` of the conversation it belongs to", func(p *pkg) *string { p.Context.ConversationID = new(string); return p.Context.ConversationID })
	f.text("workflow", "`ID` of the workflow it belongs to", func(p *pkg) *string { return &p.Context.WorkflowID })
	f.text("intent", "`WHAT` the user wants in the end", func(p *pkg) *string { p.Context.UserIntent = new(string); return p.Context.UserIntent })
	f.text("request", "the user's original `REQUEST`, verbatim", func(p *pkg) *string { return &p.Context.OriginalRequest })
	fs.StringArrayVar(&f.variables, "var", nil, "context variable `NAME=VALUE`; the value is JSON if it parses, else text (repeatable)")
	fs.StringArrayVar(&f.artifacts, "artifact", nil, "artifact `NAME=PATH`, or a URI as the path (repeatable)")
	relevant := fs.StringArray("relevant-file", nil, "`PATH` of a file to read first (repeatable)")
	f.onGiven("relevant-file", func(p *pkg) {
		for _, path := range *relevant {
			p.Context.RelevantFiles = append(p.Context.RelevantFiles, protocol.FileReference{Path: path})
		}
	})
	fs.StringVar(&f.contextFile, "context-file", "", "read the context from a JSON `FILE`, or stdin with -")
	fs.StringVar(&f.historyFile, "history-file", "", "read the conversation history, a JSON list of messages, from a `FILE`, or stdin with -")
	fs.StringVar(&f.schemaFile, "output-schema", "", "`FILE` with the JSON Schema that the result's body must meet")
	fs.StringArrayVar(&f.requires, "requires", nil, "capability the target must have, `NAME[:0.8]` (repeatable)")
	strict := fs.Bool("strict-capabilities", false, "refuse an agent that has only a part of what --requires asks for (default: accept it with a warning)")
	f.onGiven("strict-capabilities", func(p *pkg) { p.Policy.StrictCapabilities = strict })
	f.text("rationale", "`WHY` it was decided so; required for an escalation", func(p *pkg) *string { return &p.Audit.DecisionRationale })
	f.text("risk", "`RISK`: low, medium or high", func(p *pkg) *string { return (*string)(&p.Audit.RiskLevel) })
	fs.StringVar(&f.deadline, "deadline", "", "over everything: `WHEN`, as a duration from now (2h, 3d) or an instant (2026-01-31T17:00:00Z)")
	f.millis("work-timeout", "from acceptance to completion (default: the agent's, else 1h)", func(p *pkg) *int64 { return &p.Expectations.TimeoutMS })
	f.text("on-timeout", "`WHAT` follows the work timeout: "+policyWords("on_timeout"), func(p *pkg) *string {
		p.Policy.OnTimeout = new(protocol.OnTimeout)
		return (*string)(p.Policy.OnTimeout)
	})
	f.millis("progress-timeout", "from one sign of progress to the next (default: none is asked for)", func(p *pkg) *int64 { p.Policy.ProgressTimeoutMS = new(int64); return p.Policy.ProgressTimeoutMS })
	f.text("late-result", "`WHAT` becomes of a late result when no attempt is left: "+policyWords("late_result"), func(p *pkg) *string {
		p.Policy.LateResult = new(protocol.LateResult)
		return (*string)(p.Policy.LateResult)
	})
	f.declareReturn(fs)
	fs.StringArrayVar(&f.policies, "policy", nil, "policy `NAME=VALUE`, for example max_attempts=1 (repeatable; see handoff schema package)")
}

// declareReturn declares the flags that say what comes back, and, of a group, to whom it
// goes and when it has succeeded.
func (f *packageFlags) declareReturn(fs *pflag.FlagSet) {
	type pkg = protocol.Package
	own := func(p *pkg) *protocol.ReturnProtocol {
		if p.Return == nil {
			p.Return = new(protocol.ReturnProtocol)
		}
		return p.Return
	}
	expected := func(p *pkg) *protocol.ReturnProtocol { own(p).Expected = true; return p.Return }
	expects := fs.Bool("return", false, "deliver the end to the source, as work that it takes in (a delegation and an escalation always do)")
	f.millis("return-timeout", "a result is expected back within this; required for a delegation", func(p *pkg) *int64 { return &expected(p).TimeoutMS })
	f.text("on-return-timeout", "`WHAT` follows the return timeout: "+policyWords("on_return_timeout"), func(p *pkg) *string { return (*string)(&expected(p).OnTimeout) })
	fs.StringVar(&f.await, "await", "", "`WHAT` a parent that hands this off does meanwhile: continue (default), or block until it has ended")
	f.onGiven("await", func(p *pkg) { expected(p).Wait = f.await })
	fs.StringVar(&f.groupFile, "group", "", "hand to a group: a JSON list of members, each with its target and what is different for it, from a `FILE`, or stdin with -")
	f.text("aggregate", "a group has succeeded when `WHO` of it has: all (default), any or majority", func(p *pkg) *string { return (*string)(&own(p).Aggregation) })
	from := fs.StringArray("count-from", nil, "the `AGENT` of a group whose end counts (repeatable; default: all of them)")
	f.onGiven("count-from", func(p *pkg) { own(p).From = *from })
	rest := fs.Bool("cancel-rest", false, "cancel the other members once the group's outcome is certain")
	f.onGiven("cancel-rest", func(p *pkg) { own(p).CancelRest = *rest })
	f.onGiven("return", func(p *pkg) { own(p).Expected = *expects }) // the last word, for --return=false
}

// build makes the package. What it says is for the package's own validation to
// judge; here only what cannot be read is refused.
func (f *packageFlags) build(a *app, now time.Time) (protocol.Package, error) {
	var pkg protocol.Package
	if f.file != "" {
		body, err := a.read(f.file)
		if err != nil {
			return pkg, err
		}
		if pkg, err = protocol.DecodePackage(body); err != nil {
			return pkg, err
		}
	}
	return f.complete(pkg, a, now)
}

// complete lays the flags over what a file says.
func (f *packageFlags) complete(pkg protocol.Package, a *app, now time.Time) (protocol.Package, error) {
	f.ends(&pkg, a.env)
	if err := f.files(&pkg, a); err != nil {
		return pkg, err
	}
	f.setGiven(&pkg)
	if err := f.notEmpty(&pkg); err != nil {
		return pkg, err
	}
	if err := f.setDeadline(&pkg, now); err != nil {
		return pkg, err
	}
	if err := addVariables(&pkg.Context.Variables, "--var", f.variables); err != nil {
		return pkg, err
	}
	if err := addArtifacts(&pkg.Context.Artifacts, f.artifacts); err != nil {
		return pkg, err
	}
	for _, text := range f.requires {
		id, level, _, err := parseLevel("--requires", text)
		if err != nil {
			return pkg, err
		}
		pkg.RequiredCapabilities = append(pkg.RequiredCapabilities, protocol.RequiredCapability{ID: id, MinProficiency: level})
	}
	return pkg, applyPolicies(&pkg.Policy, f.policies)
}

// ends sets source, target, parent and trace. A package from a file says itself who
// hands off; only inside a worker is that known without saying.
func (f *packageFlags) ends(pkg *protocol.Package, env func(string) string) {
	changed := f.fs.Changed
	switch {
	case changed("from"):
		pkg.Source = f.from
	case pkg.Source == "" && env("HANDOFF_AGENT") != "":
		pkg.Source = env("HANDOFF_AGENT")
	case f.file == "":
		pkg.Source = protocol.Human
	}
	if changed("to") || changed("capability") || changed("group") {
		pkg.Target = protocol.Target{Capability: f.capability}
	}
	switch len(f.to) {
	case 0:
	case 1:
		pkg.Target.Agent = f.to[0]
	default:
		pkg.Target.Agents = f.to
		if pkg.Type == "" && !changed("type") {
			pkg.Type = protocol.Broadcast
		}
	}
	switch {
	case changed("parent"):
		pkg.Parent = f.parent
	case pkg.Parent == "":
		pkg.Parent = env("HANDOFF_TICKET")
	}
	traceOf(pkg, env)
}

// files reads the parts of the package that lie in files of their own.
func (f *packageFlags) files(pkg *protocol.Package, a *app) error {
	for _, of := range []struct {
		file, before, after string
		set                 func(part protocol.Package)
	}{
		{f.contextFile, `{"context":`, `}`, func(part protocol.Package) { pkg.Context = part.Context }},
		{f.historyFile, `{"context":{"conversation_history":`, `}}`, func(part protocol.Package) { pkg.Context.ConversationHistory = part.Context.ConversationHistory }},
		{f.groupFile, `{"members":`, `}`, func(part protocol.Package) { pkg.Members = part.Members }},
		{f.schemaFile, `{"expectations":{"output_schema":`, `}}`, func(part protocol.Package) { pkg.Expectations.OutputSchema = part.Expectations.OutputSchema }},
	} {
		if of.file == "" {
			continue
		}
		part, err := a.readPart(of.file, of.before, of.after)
		if err != nil {
			return err
		}
		of.set(part)
	}
	return nil
}

// notEmpty refuses flags whose value is absent on the wire, which is not what they mean.
func (f *packageFlags) notEmpty(pkg *protocol.Package) error {
	changed := f.fs.Changed
	switch {
	case changed("key") && pkg.Key == "": // an unset variable in a script: without a key it would be a new handoff each time
		return protocol.Errorf(protocol.CodeMissing, "key", "is there but empty; leave --key out or fill it in")
	case changed("work-timeout") && pkg.Expectations.TimeoutMS == 0:
		return protocol.Errorf(protocol.CodeInvalid, "expectations.timeout_ms", "is 0; leave --work-timeout out for the agent's own")
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

// addArtifacts adds name=path pairs in the form that is already there.
func addArtifacts(to *protocol.Artifacts, pairs []string) error {
	for _, pair := range pairs {
		name, path, ok := strings.Cut(pair, "=")
		if !ok || name == "" {
			return usagef("--artifact %q: write name=path", pair)
		}
		if to.ByName != nil {
			to.ByName[name] = &path
			continue
		}
		to.List = append(to.List, protocol.Artifact{Name: name, Path: path})
	}
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

// applyPolicies sets name=value pairs by their names on the wire.
func applyPolicies(to *protocol.PolicyOverrides, pairs []string) error {
	values, err := parseVariables("--policy", pairs)
	if err != nil {
		return err
	}
	for name, value := range values {
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

// hint adds the flag to what is said of a field that is missing, where flags made the package.
func (f *packageFlags) hint(err error) error {
	var e *protocol.Error
	if !errors.As(err, &e) || f.file != "" || e.Code != protocol.CodeMissing || flagOf[e.Field] == "" {
		return err
	}
	hinted := *e
	hinted.Message += "; give it with " + flagOf[e.Field]
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
