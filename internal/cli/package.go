package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/redact"
	"github.com/agenthandoff/handoff/worker"
)

// packageFlags are the flags that make a package: those of protocol.Package, and others.
type packageFlags struct {
	*binding
	given protocol.Package

	File         string   `flag:"file,f" doc:"read the package from a JSON {FILE}, or stdin with -; flags replace its fields"`
	From         string   `flag:"from" doc:"the {AGENT} that hands off (default $HANDOFF_AGENT, else human)"`
	To           []string `flag:"to" doc:"the {AGENT} to hand to; repeat it to hand the same to several (a broadcast)"`
	Capability   string   `flag:"capability" doc:"hand to the best agent with this {CAPABILITY}, instead of --to"`
	For          string   `flag:"for" doc:"hand to the agent whose profile matches these {WORDS}, instead of --to, if there is a clear match (see handoff agents find); without --task they are the task, too"`
	Parent       string   `flag:"parent" doc:"{TICKET} this one follows from (default $HANDOFF_TICKET, inside a worker)"`
	Variables    []string `flag:"var" doc:"context variable {NAME=VALUE}; the value is JSON if it parses, else text (repeatable)"`
	Artifacts    []string `flag:"artifact" doc:"artifact {NAME=PATH}, or a URI as the path (repeatable)"`
	ContextFile  string   `flag:"context-file" doc:"read the context from a JSON {FILE}, or stdin with -"`
	HistoryFile  string   `flag:"history-file" doc:"read the conversation so far, a JSON list of messages, from a {FILE}, or stdin with -"`
	Summarizer   string   `flag:"summarizer" doc:"shell {COMMAND} that reads the conversation as JSON and prints a summary (default $HANDOFF_SUMMARIZER; else what assists; without one, and with --key, extracts are the summary)"`
	assistFlag   `flag:""`
	SchemaFile   string       `flag:"output-schema" doc:"{FILE} with the JSON Schema that the result's body must meet"`
	Requires     []string     `flag:"requires" doc:"capability the target must have, {NAME[:0.8]} (repeatable)"`
	Bids         bool         `flag:"bids" doc:"call for bids of the agents with the --capability; it goes to the one with the best bid"`
	Weights      weightsValue `flag:"bid-weights" doc:"{WEIGHTS} of a bid, cost=2,eta=1,confidence=0.5; others do not count (default: each counts the same)"`
	At           string       `flag:"at" doc:"offer it at an {INSTANT} (2026-01-31T17:00:00Z), at most 89 days ahead; it is stored at once"`
	In           string       `flag:"in" doc:"offer it after a {DURATION} (2h, 3d), as --at"`
	Deadline     string       `flag:"deadline" doc:"over everything: {WHEN}, as a duration from now, or from its start (2h, 3d), or an instant (2026-01-31T17:00:00Z)"`
	WaitForAgent bool         `flag:"wait-for-agent" doc:"submit it even if no agent has the name or the capability yet; it waits for one, up to its deadline"`
	Next         []string     `flag:"next" doc:"{RULE} that names the next agent if the result has no command; the first that holds counts: 'reviewer: score < 80 -> writer x2', then 'reviewer: -> publisher'. A rule without AGENT: is for every agent's results (repeatable)"`
	Return       bool         `flag:"return" doc:"deliver the end to the source, as work that it takes in (a delegation and an escalation always do)"`
	GroupFile    string       `flag:"group" doc:"hand to a group: a JSON list of members, each with its target and the fields that differ, from a {FILE}, or stdin with -"`
	Lock         []string     `flag:"lock" doc:"{PATH} that it has for itself from before its offer to its end; with a slash at the end all that is below (repeatable)"`
	LockShared   []string     `flag:"lock-shared" doc:"{PATH} that it shares with others that read, as long (repeatable)"`
	Policies     []string     `flag:"policy" doc:"policy {NAME=VALUE}, for example max_attempts=1 (repeatable; see handoff schema package)"`
}

// declare declares the flags of o, which are those of f among others.
func (f *packageFlags) declare(fs *pflag.FlagSet, o any) {
	f.given.Bids = &protocol.Bids{Most: protocol.BiddersDefault, Least: 1}
	all := newFlagPart()
	bind(all, o)
	f.binding = bind(all, &f.given)
	order := ""
	for _, topic := range submitTopics {
		order += " " + topic.flags
	}
	inOrder(fs, all, order)
}

// over lays the flags that are fields over a package.
func (f *packageFlags) over(p *protocol.Package) {
	f.binding.over(p)
	changed := f.fs.Changed
	if changed("approve-by") {
		p.Approval.Required = true
	}
	if changed("wait-for-agent") {
		if orNew(&p.Routing).OnUnknown = protocol.OnOpenRefuse; f.WaitForAgent {
			p.Routing.OnUnknown = protocol.OnOpenWait
		}
	}
	if changed("return-timeout") || changed("on-return-timeout") || changed("await") {
		p.Return.Expected = true
	}
	if changed("return") {
		orNew(&p.Return).Expected = f.Return
	}
	if changed("bid-weights") {
		orNew(&p.Bids).Weights = (*protocol.BidWeights)(&f.Weights)
	}
	if changed("bids") {
		if orNew(&p.Bids); !f.Bids {
			p.Bids = nil
		}
	}
	lock := func(paths []string, mode protocol.LockMode) {
		for _, path := range paths {
			locks := orNew(&p.Locks)
			locks.Paths = append(locks.Paths, protocol.LockPath{Path: path, Mode: mode})
		}
	}
	lock(f.Lock, protocol.LockExclusive)
	lock(f.LockShared, protocol.LockShared)
}

// build makes the package. Its content is for the package's own validation to judge; here only
// unreadable input is refused.
func (f *packageFlags) build(ctx context.Context, a *app, now time.Time) (protocol.Package, error) {
	var pkg protocol.Package
	if f.File != "" {
		var err error
		if pkg, err = readAs(a, f.File, protocol.DecodePackage); hasCode(protocol.CodeMalformed)(err) && f.File != "-" {
			err = inField(err, f.File, "")
		}
		if err != nil {
			return pkg, err
		}
	}
	return f.complete(ctx, pkg, a, now)
}

// complete lays the flags over a file's package.
func (f *packageFlags) complete(ctx context.Context, pkg protocol.Package, a *app, now time.Time) (protocol.Package, error) {
	f.ends(&pkg, a.env)
	if err := f.files(&pkg, a); err != nil {
		return pkg, err
	}
	f.over(&pkg)
	if err := f.notEmpty(&pkg); err != nil {
		return pkg, err
	}
	if err := f.setTimes(&pkg, now); err != nil {
		return pkg, err
	}
	if err := addVariables(&pkg.Context.Variables, "--var", f.Variables); err != nil {
		return pkg, err
	}
	if err := addArtifacts(&pkg.Context.Artifacts, f.Artifacts); err != nil {
		return pkg, err
	}
	for _, text := range f.Requires {
		id, level, _, err := parseLevel("--requires", text)
		if err != nil {
			return pkg, err
		}
		pkg.RequiredCapabilities = append(pkg.RequiredCapabilities, protocol.RequiredCapability{ID: id, MinProficiency: level})
	}
	for i, text := range f.Next {
		rule, err := parseRule(text)
		if err != nil {
			return pkg, err
		}
		if i == 0 {
			pkg.Next = nil // those of a file
		}
		pkg.Next = append(pkg.Next, rule)
	}
	if err := applyPolicies(&pkg.Policy, f.Policies); err != nil {
		return pkg, err
	}
	return pkg, f.cutConversation(ctx, &pkg, a)
}

// ends sets source, target, parent and trace.
func (f *packageFlags) ends(pkg *protocol.Package, env func(string) string) {
	changed := f.fs.Changed
	agent, ticket := workedOn(env)
	switch {
	case changed("from"):
		pkg.Source = f.From
	case pkg.Source == "":
		pkg.Source = cmp.Or(agent, protocol.Human)
	}
	if changed("to") || changed("capability") || changed("group") {
		pkg.Target = protocol.Target{Capability: f.Capability}
	}
	switch len(f.To) {
	case 0:
	case 1:
		pkg.Target.Agent = f.To[0]
	default:
		pkg.Target.Agents = f.To
		if pkg.Type == "" && !changed("type") {
			pkg.Type = protocol.Broadcast
		}
	}
	switch {
	case changed("parent"):
		pkg.Parent = f.Parent
	case pkg.Parent == "":
		pkg.Parent = ticket
	}
	traceOf(pkg, env)
}

// files reads the parts of the package that lie in files of their own.
func (f *packageFlags) files(pkg *protocol.Package, a *app) error {
	for _, of := range []struct {
		file, before, after string
		set                 func(part protocol.Package)
	}{
		{f.ContextFile, `{"context":`, `}`, func(part protocol.Package) { pkg.Context = part.Context }},
		{f.HistoryFile, `{"context":{"conversation_history":`, `}}`, func(part protocol.Package) { pkg.Context.ConversationHistory = part.Context.ConversationHistory }},
		{f.GroupFile, `{"members":`, `}`, func(part protocol.Package) { pkg.Members = part.Members }},
		{f.SchemaFile, `{"expectations":{"output_schema":`, `}}`, func(part protocol.Package) { pkg.Expectations.OutputSchema = part.Expectations.OutputSchema }},
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

// notEmpty refuses flags whose empty value is absent on the wire, against their meaning.
func (f *packageFlags) notEmpty(pkg *protocol.Package) error {
	changed := f.fs.Changed
	switch {
	case changed("key") && pkg.Key == "": // an unset variable in a script: without a key it would be a new handoff each time
		return protocol.Errorf(protocol.CodeMissing, "key", "is present but empty; leave --key out or fill it in")
	case changed("work-timeout") && pkg.Expectations.TimeoutMS == 0:
		return protocol.Errorf(protocol.CodeInvalid, "expectations.timeout_ms", "is 0; leave --work-timeout out for the agent's own")
	case changed("approval-timeout") && pkg.Approval.TimeoutMS == 0:
		return protocol.Errorf(protocol.CodeInvalid, "approval.timeout_ms", "is 0; leave --approval-timeout out for the default")
	case changed("return-timeout") && pkg.Return.TimeoutMS == 0:
		return protocol.Errorf(protocol.CodeInvalid, "return.timeout_ms", "is 0; leave --return-timeout out for none")
	}
	return nil
}

// setTimes sets the start and the deadline of a package. A duration of the deadline is from the start.
func (f *packageFlags) setTimes(pkg *protocol.Package, now time.Time) error {
	if f.fs.Changed("at") && f.fs.Changed("in") {
		return usagef("--at and --in both set its start; give one")
	}
	for _, flag := range []struct {
		name, text, field string
		wants             string
		relative          bool
		to                *time.Time
	}{
		{"at", f.At, "start", "an instant (2026-01-31T17:00:00Z); --in takes a duration", false, &pkg.StartAt},
		{"in", f.In, "start", "a duration (2h, 3d); --at takes an instant", true, &pkg.StartAt},
		{"deadline", f.Deadline, "deadline", "", true, &pkg.Constraints.Deadline},
	} {
		if !f.fs.Changed(flag.name) {
			continue
		}
		from := now
		if flag.name == "deadline" && pkg.StartAt.After(now) {
			from = pkg.StartAt
		}
		at, relative, err := parseInstant(flag.text, from)
		switch {
		case flag.wants != "" && (err != nil || relative != flag.relative):
			return usagef("--%s: %q is not %s", flag.name, flag.text, flag.wants)
		case err != nil:
			return usagef("--%s: %v", flag.name, err)
		case relative && pkg.Key != "":
			return usagef("--%s %s with --key: submitted again it would be another package; give the %s as an instant, for example %s",
				flag.name, flag.text, flag.field, at.Format(time.RFC3339))
		}
		*flag.to = at
	}
	return nil
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
		if string(value) == `""` { // unset: the value below it holds again
			value = json.RawMessage("null")
		}
		one, err := json.Marshal(map[string]json.RawMessage{name: value})
		if err != nil {
			return err
		}
		decoder := json.NewDecoder(bytes.NewReader(one))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(to); err != nil {
			return protocol.Errorf(protocol.CodeInvalid, "policy."+name, "must be %s, and %s is not", policyKind(name), value)
		}
	}
	return nil
}

// flagOf maps a field of the package to its flag.
var flagOf = map[string]string{
	"source": "--from", "target": "--to or --capability", "target.agent": "--to", "target.capability": "--capability",
	"target.agents": "--to, for each of them, or --group", "members": "--group",
	"reason": "--reason", "task.description": "--task", "return.timeout_ms": "--return-timeout", "return": "--return-timeout",
	"audit.decision_rationale": "--rationale", "constraints.deadline": "--deadline", "expectations.timeout_ms": "--work-timeout",
	"context.conversation_id": "--conversation", "context.user_intent": "--intent", "priority": "--priority", "type": "--type",
}

// flagOfValue maps a field to a flag of another name.
var flagOfValue = map[string]string{
	"routing.on_open": "--on-open", "routing.on_unknown": "--wait-for-agent", "routing.by": "--route-by", "constraints.complexity": "--complexity",
	"limits.max_handoffs": "--max-handoffs", "limits.max_depth": "--max-depth", "limits.max_agents": "--max-agents", "limits.max_tokens": "--max-tokens",
	"start_at": "--at or --in", "limits.max_cost_micros": "--max-cost", "limits.max_time_ms": "--max-time", "limits.share_percent": "--share", "limits.on_exhausted": "--on-exhausted",
}

// hint names the flag in an error about a field, where flags made the package.
func (f *packageFlags) hint(err error) error {
	if f.File != "" {
		return err
	}
	return amended(err, func(e *protocol.Error) {
		switch {
		case e.Code == protocol.CodeMissing && e.Field == "reason":
			e.Message += "; give it with --reason: why this agent gets the work, for its brief, the history and the audit"
		case e.Code == protocol.CodeMissing && flagOf[e.Field] != "":
			e.Message += "; give it with " + flagOf[e.Field]
		case e.Code == protocol.CodeInvalid && flagOfValue[e.Field] != "":
			e.Message += " (" + flagOfValue[e.Field] + ")"
		case e.Code == protocol.CodeBreakerOpen:
			e.Message = strings.Replace(e.Message, "routing.on_open", "--on-open wait", 1)
		}
	})
}

// policyKind names the values that a policy may have.
func policyKind(name string) string {
	i := slices.IndexFunc(protocol.PolicyFields, func(f protocol.PolicyField) bool { return f.Name == name })
	switch f := protocol.PolicyFields[i]; f.Default.(type) {
	case bool:
		return "true or false"
	case string:
		return "one of " + strings.Join(f.Words, ", ")
	default:
		return fmt.Sprintf("a whole number from %d to %d", f.Min, f.Max)
	}
}

// cutConversation cuts the conversation by the flags. Without any of them it stays as it is.
func (f *packageFlags) cutConversation(ctx context.Context, pkg *protocol.Package, a *app) error {
	h, given := &pkg.Context.HistoryTransfer, f.fs.Changed
	if !slices.ContainsFunc([]string{"history-file", "transfer", "max-messages", "max-context-tokens", "summarizer"}, given) {
		return nil
	}
	const field = "context.history_transfer."
	switch {
	case given("transfer") && !slices.Contains(protocol.TransferModes, h.Mode):
		return protocol.Errorf(protocol.CodeInvalid, field+"mode", "must be one of full, summary, relevant_only, reference, not %q", h.Mode)
	case given("max-messages") && (h.MaxMessages < 1 || h.MaxMessages > protocol.HistoryMessagesMax):
		return protocol.Errorf(protocol.CodeInvalid, field+"max_messages", "must be from 1 to %d, not %d", protocol.HistoryMessagesMax, h.MaxMessages)
	case given("max-context-tokens") && (h.MaxTokens < 1 || h.MaxTokens > protocol.TokensMax):
		return protocol.Errorf(protocol.CodeInvalid, field+"max_tokens", "must be from 1 to %d, not %d", protocol.TokensMax, h.MaxTokens)
	}
	if len(pkg.Context.ConversationHistory) == 0 {
		return nil
	}
	if pkg.Type == "" && f.awaits() && a.env(worker.EnvAwaitDir) != "" {
		h.Mode = cmp.Or(h.Mode, protocol.TransferSummary) // it becomes a delegation
	}
	h.Mode = cmp.Or(h.Mode, pkg.Type.Transfer())
	if pkg.GoesByReference() { // the whole is stored with the submission, and the key points are made there
		return nil
	}
	if err := a.redactConversation(ctx, pkg); err != nil {
		return err
	}
	if h.Mode == protocol.TransferSummary && pkg.Context.Summary == "" && pkg.Key == "" {
		if err := a.summarize(ctx, f, pkg); err != nil {
			return err
		}
	}
	pkg.CutConversation()
	return nil
}

// awaits reports whether --await block is given.
func (f *packageFlags) awaits() bool { return f.given.Return.Wait == protocol.WaitBlock }

// redactConversation takes secrets out of the conversation before it is cut, since a part of one
// might not be known as one, and before another program reads it.
func (a *app) redactConversation(ctx context.Context, pkg *protocol.Package) error {
	redactor, err := a.redactor()
	if err != nil {
		return err
	}
	if redactor == nil {
		if redactor, err = redact.Default(); err != nil {
			return err
		}
	}
	body, err := protocol.EncodePackage(protocol.Package{Context: protocol.Context{ConversationHistory: pkg.Context.ConversationHistory,
		OriginalRequest: pkg.Context.OriginalRequest, CompletedSteps: pkg.Context.CompletedSteps, Decisions: pkg.Context.Decisions, KeyPoints: pkg.Context.KeyPoints}})
	if err != nil {
		return err
	}
	body, n, err := redactor.Package(ctx, body)
	if err != nil || n == 0 {
		return err
	}
	clean, err := protocol.DecodePackage(body)
	if err != nil {
		return err
	}
	a.notef("handoff: secrets taken out of the conversation before it is cut: %d\n", n)
	c := &pkg.Context
	c.ConversationHistory, c.OriginalRequest = clean.Context.ConversationHistory, clean.Context.OriginalRequest
	c.CompletedSteps, c.Decisions, c.KeyPoints = clean.Context.CompletedSteps, clean.Context.Decisions, clean.Context.KeyPoints
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

// isURI matches a reference to another place; a drive of Windows has one letter.
var isURI = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]+:`)

// warnArtifacts names the missing files of name=path pairs. They may be at the target.
func (a *app) warnArtifacts(pairs []string) {
	for _, pair := range pairs {
		name, path, _ := strings.Cut(pair, "=")
		if path == "" || isURI.MatchString(path) {
			continue
		}
		if _, err := os.Stat(a.path(path)); errors.Is(err, fs.ErrNotExist) {
			a.notef("handoff: --artifact %s: there is no file %s here; the path is handed off as it is\n", name, path)
		}
	}
}

// ruleForm is a rule for the next agents: [FROM:] [VARIABLE OP VALUE] -> AGENT[, AGENT]… [xTIMES].
var ruleForm = regexp.MustCompile(`^(?:([^\s:]+):)?\s*(.*?)\s*->\s*([^\s,]+(?:\s*,\s*[^\s,]+)*)(?:\s+x(\d+))?$`)

// conditionForm is a rule's condition. A variable without a comparison has to exist.
var conditionForm = regexp.MustCompile(`^(\S+?)\s*(?:(<=|>=|!=|<|>|=|\bin\b)\s*(.+))?$`)

// parseRule reads a rule: reviewer: score < 80 -> writer x2.
func parseRule(text string) (protocol.NextRule, error) {
	wrong := usagef(`--next %q is no rule; write for example 'reviewer: score < 80 -> writer x2', 'reviewer: status = partial -> lead', or 'reviewer: -> publisher'`, text)
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
		c.Eq = api.JSONOrText(value)
	case "!=":
		c.Ne = api.JSONOrText(value)
	case "in":
		for one := range strings.SplitSeq(value, ",") {
			c.In = append(c.In, api.JSONOrText(strings.TrimSpace(one)))
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

// weightsValue is a flag of weights, as cost=2,eta=1.
type weightsValue protocol.BidWeights

func (w *weightsValue) String() string { return "" }

func (w *weightsValue) Type() string { return "WEIGHTS" }

func (w *weightsValue) Set(text string) error {
	of := map[string]*float64{"cost": &w.Cost, "eta": &w.ETA, "confidence": &w.Confidence}
	for _, part := range strings.Split(text, ",") {
		name, number, _ := strings.Cut(strings.TrimSpace(part), "=")
		weight, err := strconv.ParseFloat(number, 64)
		if of[name] == nil || err != nil {
			return protocol.Errorf(protocol.CodeInvalid, "", "%q is no weight; write cost=2,eta=1,confidence=0.5, or some of them", part)
		}
		*of[name] = weight
	}
	return nil
}
