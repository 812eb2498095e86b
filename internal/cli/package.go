package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/agenthandoff/handoff/protocol"
)

// packageFlags are the flags that make a package.
type packageFlags struct {
	file, contextFile, historyFile, schemaFile string

	from, capability, key, parent, reason    string
	to                                       []string
	kind, trigger, priority                  string
	task, taskID, taskType                   string
	requirements, criteria                   []string
	conversation, workflow, intent, request  string
	variables, artifacts, relevant, policies []string
	requires                                 []string
	strict                                   bool
	rationale, risk, onTimeout, deadline     string
	workTimeout, progressTimeout             time.Duration
	lateResult                               string

	returns returnFlags
}

func (f *packageFlags) declare(fs *pflag.FlagSet) {
	fs.SortFlags = false // the flags that each submission needs come first
	fs.StringVarP(&f.file, "file", "f", "", "read the package from a JSON `FILE`, or stdin with -; flags replace its fields")
	fs.StringVar(&f.from, "from", "", "the `AGENT` that hands off (default $HANDOFF_AGENT, else human)")
	fs.StringArrayVar(&f.to, "to", nil, "the `AGENT` to hand to; repeat it to hand the same to several (a broadcast)")
	fs.StringVar(&f.capability, "capability", "", "hand to the best agent with this `CAPABILITY`, instead of --to")
	fs.StringVar(&f.reason, "reason", "", "`WHY` this handoff")
	fs.StringVar(&f.task, "task", "", "`WHAT` is to be done, in words")
	fs.StringVar(&f.taskID, "task-id", "", "`ID` of the task, your own")
	fs.StringVar(&f.taskType, "task-type", "", "`KIND` of task, your own word")
	fs.StringArrayVar(&f.requirements, "requirement", nil, "`WORDS` that the work must meet (repeatable)")
	fs.StringArrayVar(&f.criteria, "criterion", nil, "`WORDS` by which the result is judged (repeatable)")
	fs.StringVar(&f.kind, "type", "", "`TYPE`: sequential (default), delegation, broadcast or escalation (needs no --to)")
	fs.StringVar(&f.trigger, "trigger", "", "`WHAT` set it off: task_completion, capability_mismatch, escalation, timeout, explicit_request")
	fs.StringVar(&f.priority, "priority", "", "`PRIORITY`: critical, high, normal (default) or low")
	fs.StringVar(&f.key, "key", "", "idempotency `KEY`: the same source, key and package are the same handoff")
	fs.StringVar(&f.parent, "parent", "", "`TICKET` this one follows from (default $HANDOFF_TICKET, inside a worker)")
	fs.StringVar(&f.conversation, "conversation", "", "`ID` of the conversation it belongs to")
	fs.StringVar(&f.workflow, "workflow", "", "`ID` of the workflow it belongs to")
	fs.StringVar(&f.intent, "intent", "", "`WHAT` the user wants in the end")
	fs.StringVar(&f.request, "request", "", "the user's original `REQUEST`, verbatim")
	fs.StringArrayVar(&f.variables, "var", nil, "context variable `NAME=VALUE`; the value is JSON if it parses, else text (repeatable)")
	fs.StringArrayVar(&f.artifacts, "artifact", nil, "artifact `NAME=PATH`, or a URI as the path (repeatable)")
	fs.StringArrayVar(&f.relevant, "relevant-file", nil, "`PATH` of a file to read first (repeatable)")
	fs.StringVar(&f.contextFile, "context-file", "", "read the context from a JSON `FILE`, or stdin with -")
	fs.StringVar(&f.historyFile, "history-file", "", "read the conversation history, a JSON list of messages, from a `FILE`, or stdin with -")
	fs.StringVar(&f.schemaFile, "output-schema", "", "`FILE` with the JSON Schema that the result's body must meet")
	fs.StringArrayVar(&f.requires, "requires", nil, "capability the target must have, `NAME[:0.8]` (repeatable)")
	fs.BoolVar(&f.strict, "strict-capabilities", false, "refuse an agent that has only a part of what --requires asks for (default: accept it with a warning)")
	fs.StringVar(&f.rationale, "rationale", "", "`WHY` it was decided so; required for an escalation")
	fs.StringVar(&f.risk, "risk", "", "`RISK`: low, medium or high")
	fs.StringVar(&f.deadline, "deadline", "", "over everything: `WHEN`, as a duration from now (2h, 3d) or an instant (2026-01-31T17:00:00Z)")
	fieldVar(fs, &f.workTimeout, "work-timeout", "from acceptance to completion (default: the agent's, else 1h)")
	fs.StringVar(&f.onTimeout, "on-timeout", "", "`WHAT` follows the work timeout: "+policyWords("on_timeout"))
	fieldVar(fs, &f.progressTimeout, "progress-timeout", "from one sign of progress to the next (default: none is asked for)")
	fs.StringVar(&f.lateResult, "late-result", "", "`WHAT` becomes of a late result when no attempt is left: "+policyWords("late_result"))
	f.returns.declare(fs)
	fs.StringArrayVar(&f.policies, "policy", nil, "policy `NAME=VALUE`, for example max_attempts=1 (repeatable; see handoff schema package)")
}

// build makes the package. What it says is for the package's own validation to
// judge; here only what cannot be read is refused.
func (f *packageFlags) build(changed func(string) bool, a *app, now time.Time) (protocol.Package, error) {
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
	return f.complete(pkg, changed, a, now)
}

// complete lays the flags over what a file says.
func (f *packageFlags) complete(pkg protocol.Package, changed func(string) bool, a *app, now time.Time) (protocol.Package, error) {
	f.ends(&pkg, changed, a.env)
	set := func(flag string, field *string, value string) {
		if changed(flag) {
			*field = value
		}
	}
	set("reason", &pkg.Reason, f.reason)
	set("key", &pkg.Key, f.key)
	if changed("key") && f.key == "" { // an unset variable in a script: without a key it would be a new handoff each time
		return pkg, protocol.Errorf(protocol.CodeMissing, "key", "is there but empty; leave --key out or fill it in")
	}
	set("task", &pkg.Task.Description, f.task)
	set("task-id", &pkg.Task.ID, f.taskID)
	set("task-type", &pkg.Task.Type, f.taskType)
	set("type", (*string)(&pkg.Type), f.kind)
	set("trigger", (*string)(&pkg.Trigger), f.trigger)
	set("priority", (*string)(&pkg.Priority), f.priority)
	set("rationale", &pkg.Audit.DecisionRationale, f.rationale)
	set("risk", (*string)(&pkg.Audit.RiskLevel), f.risk)
	pkg.Task.Requirements = append(pkg.Task.Requirements, f.requirements...)
	pkg.Expectations.SuccessCriteria = append(pkg.Expectations.SuccessCriteria, f.criteria...)
	if err := f.context(&pkg.Context, changed, a); err != nil {
		return pkg, err
	}
	if err := f.limits(&pkg, changed, a, now); err != nil {
		return pkg, err
	}
	if err := f.returns.apply(&pkg, changed, a); err != nil {
		return pkg, err
	}
	return pkg, f.wants(&pkg, changed, a)
}

// ends sets source, target, parent and trace. A package from a file says itself who
// hands off; only inside a worker is that known without saying.
func (f *packageFlags) ends(pkg *protocol.Package, changed func(string) bool, env func(string) string) {
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

func (f *packageFlags) context(c *protocol.Context, changed func(string) bool, a *app) error {
	if f.contextFile != "" {
		part, err := a.readPart(f.contextFile, `{"context":`, `}`)
		if err != nil {
			return err
		}
		*c = part.Context
	}
	if f.historyFile != "" {
		part, err := a.readPart(f.historyFile, `{"context":{"conversation_history":`, `}}`)
		if err != nil {
			return err
		}
		c.ConversationHistory = part.Context.ConversationHistory
	}
	// Given and empty is refused by the package, so emptiness must get there.
	if changed("intent") {
		c.UserIntent = &f.intent
	}
	if changed("conversation") {
		c.ConversationID = &f.conversation
	}
	if changed("workflow") {
		c.WorkflowID = f.workflow
	}
	if changed("request") {
		c.OriginalRequest = f.request
	}
	if err := addVariables(&c.Variables, "--var", f.variables); err != nil {
		return err
	}
	for _, path := range f.relevant {
		c.RelevantFiles = append(c.RelevantFiles, protocol.FileReference{Path: path})
	}
	return addArtifacts(&c.Artifacts, f.artifacts)
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

func (f *packageFlags) limits(pkg *protocol.Package, changed func(string) bool, a *app, now time.Time) error {
	if changed("deadline") {
		at, relative, err := parseInstant(f.deadline, now)
		if err != nil {
			return usagef("--deadline: %v", err)
		}
		if relative && pkg.Key != "" {
			return usagef("--deadline %s with --key: submitted again it would be another package; give the deadline as an instant, for example %s",
				f.deadline, at.Format(time.RFC3339))
		}
		pkg.Constraints.Deadline = at
	}
	if changed("work-timeout") {
		pkg.Expectations.TimeoutMS = f.workTimeout.Milliseconds()
		if f.workTimeout == 0 { // 0 is absent on the wire, and is not what the flag means
			return protocol.Errorf(protocol.CodeInvalid, "expectations.timeout_ms", "is 0; leave --work-timeout out for the agent's own")
		}
	}
	if changed("progress-timeout") {
		ms := f.progressTimeout.Milliseconds()
		pkg.Policy.ProgressTimeoutMS = &ms
	}
	if changed("late-result") {
		late := protocol.LateResult(f.lateResult)
		pkg.Policy.LateResult = &late
	}
	return nil
}

// wants sets what the target must be and the result must meet.
func (f *packageFlags) wants(pkg *protocol.Package, changed func(string) bool, a *app) error {
	for _, text := range f.requires {
		id, level, _, err := parseLevel("--requires", text)
		if err != nil {
			return err
		}
		pkg.RequiredCapabilities = append(pkg.RequiredCapabilities, protocol.RequiredCapability{ID: id, MinProficiency: level})
	}
	if changed("strict-capabilities") {
		pkg.Policy.StrictCapabilities = &f.strict
	}
	if f.schemaFile != "" {
		part, err := a.readPart(f.schemaFile, `{"expectations":{"output_schema":`, `}}`)
		if err != nil {
			return err
		}
		pkg.Expectations.OutputSchema = part.Expectations.OutputSchema
	}
	if changed("on-timeout") {
		onTimeout := protocol.OnTimeout(f.onTimeout)
		pkg.Policy.OnTimeout = &onTimeout
	}
	return applyPolicies(&pkg.Policy, f.policies)
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

// read reads a file named on the command line, - being stdin, up to the size
// that any input may have.
func (a *app) read(path string) ([]byte, error) {
	from, name := a.in, "standard input"
	if path != "-" {
		name = path
		file, err := a.open(path)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		from = file
	}
	body, err := io.ReadAll(io.LimitReader(from, protocol.PackageBytesMax+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if len(body) > protocol.PackageBytesMax {
		return nil, protocol.Errorf(protocol.CodeTooLarge, "package", "%s is over %d bytes, which is the most that is read; hand large files over as artifacts", name, protocol.PackageBytesMax)
	}
	return body, nil
}

// readPart reads a file that holds one part of a package. What is wrong with it
// is said as if it stood in the package, with its own lines and columns.
func (a *app) readPart(path, before, after string) (protocol.Package, error) {
	body, err := a.read(path)
	if err != nil {
		return protocol.Package{}, err
	}
	if !json.Valid(body) {
		_, err := protocol.DecodePackage(body)
		return protocol.Package{}, inField(err, path, "")
	}
	pkg, err := protocol.DecodePackage(slices.Concat([]byte(before), body, []byte(after)))
	var e *protocol.Error
	if errors.As(err, &e) { // before stands in the first line, and not in the file
		moved := *e
		moved.Message = firstLine.ReplaceAllStringFunc(e.Message, func(at string) string {
			column, _ := strconv.Atoi(firstLine.FindStringSubmatch(at)[1])
			return fmt.Sprintf("(line 1, column %d)", column-len(before))
		})
		err = &moved
	}
	return pkg, err
}

// firstLine is how the decoder says where a field stands.
var firstLine = regexp.MustCompile(`\(line 1, column ([0-9]+)\)`)

// inField says of input that did not parse which input it was: the decoder knows
// only that it stands on its own, and may name a field from deep within.
func inField(err error, field, more string) error {
	var e *protocol.Error
	if !errors.As(err, &e) {
		return err
	}
	named := *e
	named.Field, named.Message = field, named.Message+more
	return &named
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
