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

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/redact"
	"github.com/agenthandoff/handoff/worker"
)

// packageFlags are the flags that make a package.
type packageFlags struct {
	fieldFlags[protocol.Package]

	file, contextFile, schemaFile, groupFile string
	transfer                                 transferFlags

	from, capability, parent, deadline, await string
	words                                     string // that a target is found by
	to, variables, artifacts                  []string
	requires, policies, next                  []string
}

func (f *packageFlags) declare(fs *pflag.FlagSet) {
	f.fs = fs
	fs.SortFlags = false // the flags that each submission needs come first
	type pkg = protocol.Package
	fs.StringVarP(&f.file, "file", "f", "", "read the package from a JSON `FILE`, or stdin with -; flags replace its fields")
	fs.StringVar(&f.from, "from", "", "the `AGENT` that hands off (default $HANDOFF_AGENT, else human)")
	fs.StringArrayVar(&f.to, "to", nil, "the `AGENT` to hand to; repeat it to hand the same to several (a broadcast)")
	fs.StringVar(&f.capability, "capability", "", "hand to the best agent with this `CAPABILITY`, instead of --to")
	fs.StringVar(&f.words, "for", "", "hand to the agent whose profile matches these `WORDS`, instead of --to, if there is a clear match (see handoff agents find); without --task they are the task, too")
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
	f.declareTransfer(fs)
	fs.StringVar(&f.schemaFile, "output-schema", "", "`FILE` with the JSON Schema that the result's body must meet")
	fs.StringArrayVar(&f.requires, "requires", nil, "capability the target must have, `NAME[:0.8]` (repeatable)")
	strict := fs.Bool("strict-capabilities", false, "refuse an agent that has only a part of what --requires asks for (default: accept it with a warning)")
	f.onGiven("strict-capabilities", func(p *pkg) { p.Policy.StrictCapabilities = strict })
	f.declareBids()
	f.text("rationale", "`WHY` it was decided so; required for an escalation", func(p *pkg) *string { return &p.Audit.DecisionRationale })
	f.text("risk", "`RISK`: low, medium or high", func(p *pkg) *string { return (*string)(&p.Audit.RiskLevel) })
	f.declareApproval()
	fs.StringVar(&f.deadline, "deadline", "", "over everything: `WHEN`, as a duration from now (2h, 3d) or an instant (2026-01-31T17:00:00Z)")
	f.millis("work-timeout", "from acceptance to completion (default: the agent's, else 1h)", func(p *pkg) *int64 { return &p.Expectations.TimeoutMS })
	f.declareRouting()
	f.text("on-timeout", "`WHAT` follows the work timeout: "+policyWords("on_timeout"), func(p *pkg) *string {
		p.Policy.OnTimeout = new(protocol.OnTimeout)
		return (*string)(p.Policy.OnTimeout)
	})
	f.millis("progress-timeout", "from one sign of progress to the next (default: none is asked for)", func(p *pkg) *int64 { p.Policy.ProgressTimeoutMS = new(int64); return p.Policy.ProgressTimeoutMS })
	f.text("late-result", "`WHAT` becomes of a late result when no attempt is left: "+policyWords("late_result"), func(p *pkg) *string {
		p.Policy.LateResult = new(protocol.LateResult)
		return (*string)(p.Policy.LateResult)
	})
	fs.StringArrayVar(&f.next, "next", nil, "`RULE` that names the next agent if the result has no command; the first that holds counts: 'reviewer: score < 80 -> writer x2', then 'reviewer: -> publisher'. A rule without AGENT: is for every agent's results (repeatable)")
	f.declareReturn(fs)
	f.declareLimits(fs)
	f.declareWorkspace(fs)
	fs.StringArrayVar(&f.policies, "policy", nil, "policy `NAME=VALUE`, for example max_attempts=1 (repeatable; see handoff schema package)")
}

// declareReturn declares the flags of the return, and for a group of its members and of its
// success.
func (f *packageFlags) declareReturn(fs *pflag.FlagSet) {
	type pkg = protocol.Package
	own := func(p *pkg) *protocol.ReturnProtocol { return orNew(&p.Return) }
	expected := func(p *pkg) *protocol.ReturnProtocol { own(p).Expected = true; return p.Return }
	expects := fs.Bool("return", false, "deliver the end to the source, as work that it takes in (a delegation and an escalation always do)")
	f.millis("return-timeout", "a result is expected back within this; required for a delegation", func(p *pkg) *int64 { return &expected(p).TimeoutMS })
	f.text("return-of", "`WHOSE` end is the return: chain, with all that is handed on by goto (default), or handoff", func(p *pkg) *string { return (*string)(&own(p).Of) })
	f.text("on-return-timeout", "`WHAT` follows the return timeout: "+policyWords("on_return_timeout"), func(p *pkg) *string { return (*string)(&expected(p).OnTimeout) })
	fs.StringVar(&f.await, "await", "", "`WHAT` a parent that hands this off does meanwhile: continue (default), or block until it has ended. In a program of \"handoff work\": the program is run again then")
	f.onGiven("await", func(p *pkg) { expected(p).Wait = f.await })
	fs.StringVar(&f.groupFile, "group", "", "hand to a group: a JSON list of members, each with its target and the fields that differ, from a `FILE`, or stdin with -")
	f.text("aggregate", "a group has succeeded when `WHO` of it has: all (default), any or majority", func(p *pkg) *string { return (*string)(&own(p).Aggregation) })
	from := fs.StringArray("count-from", nil, "the `AGENT` of a group whose end counts (repeatable; default: all of them)")
	f.onGiven("count-from", func(p *pkg) { own(p).From = *from })
	rest := fs.Bool("cancel-rest", false, "cancel the other members once the group's outcome is certain")
	f.onGiven("cancel-rest", func(p *pkg) { own(p).CancelRest = *rest })
	f.onGiven("return", func(p *pkg) { own(p).Expected = *expects }) // the last word, for --return=false
}

// build makes the package. Its content is for the package's own validation to judge; here only
// unreadable input is refused.
func (f *packageFlags) build(ctx context.Context, a *app, now time.Time) (protocol.Package, error) {
	var pkg protocol.Package
	if f.file != "" {
		body, err := a.read(f.file)
		if err != nil {
			return pkg, err
		}
		if pkg, err = protocol.DecodePackage(body); hasCode(protocol.CodeMalformed)(err) && f.file != "-" {
			err = inField(err, f.file, "")
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
	for i, text := range f.next {
		rule, err := parseRule(text)
		if err != nil {
			return pkg, err
		}
		if i == 0 {
			pkg.Next = nil // those of a file
		}
		pkg.Next = append(pkg.Next, rule)
	}
	if err := applyPolicies(&pkg.Policy, f.policies); err != nil {
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
		pkg.Source = f.from
	case pkg.Source == "":
		pkg.Source = cmp.Or(agent, protocol.Human)
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
		{f.contextFile, `{"context":`, `}`, func(part protocol.Package) { pkg.Context = part.Context }},
		{f.transfer.historyFile, `{"context":{"conversation_history":`, `}}`, func(part protocol.Package) { pkg.Context.ConversationHistory = part.Context.ConversationHistory }},
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
	"limits.max_cost_micros": "--max-cost", "limits.max_time_ms": "--max-time", "limits.share_percent": "--share", "limits.on_exhausted": "--on-exhausted",
}

// hint names the flag in an error about a field, where flags made the package.
func (f *packageFlags) hint(err error) error {
	var e *protocol.Error
	if !errors.As(err, &e) || f.file != "" {
		return err
	}
	hinted := *e
	switch {
	case e.Code == protocol.CodeMissing && e.Field == "reason":
		hinted.Message += "; give it with --reason: why this agent gets the work, for its brief, the history and the audit"
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

// transferFlags select the part of the conversation that is handed off.
type transferFlags struct {
	mode                    string
	maxMessages, maxTokens  int
	summarizer, historyFile string
	assist                  string // the assistant where no summarizer is given, and words are not certain
}

func (f *packageFlags) declareTransfer(fs *pflag.FlagSet) {
	t := &f.transfer
	fs.StringVar(&t.historyFile, "history-file", "", "read the conversation so far, a JSON list of messages, from a `FILE`, or stdin with -")
	fs.StringVar(&t.mode, "transfer", "", "`HOW` much of the conversation goes: full, relevant_only, summary or reference (default: summary for a delegation, full for an escalation, else relevant_only)")
	fs.IntVar(&t.maxMessages, "max-messages", 0, "of the conversation, at most `N` messages: the first request, the newest, and those about the task")
	fs.IntVar(&t.maxTokens, "max-context-tokens", 0, "of the conversation, at most `N` tokens, as estimated")
	fs.StringVar(&t.summarizer, "summarizer", "", "shell `COMMAND` that reads the conversation as JSON and prints a summary (default $HANDOFF_SUMMARIZER; else what assists; without one, and with --key, extracts are the summary)")
	assistFlag(fs, &t.assist)
}

// cutConversation cuts the conversation by the flags. Without any of them it stays as it is.
func (f *packageFlags) cutConversation(ctx context.Context, pkg *protocol.Package, a *app) error {
	t, h := f.transfer, &pkg.Context.HistoryTransfer
	given := func(name string) bool { return f.fs.Changed(name) }
	if !slices.ContainsFunc([]string{"history-file", "transfer", "max-messages", "max-context-tokens", "summarizer"}, given) {
		return nil
	}
	const field = "context.history_transfer."
	switch {
	case given("transfer") && !slices.Contains(asWords(protocol.TransferModes), t.mode):
		return protocol.Errorf(protocol.CodeInvalid, field+"mode", "must be one of full, summary, relevant_only, reference, not %q", t.mode)
	case given("max-messages") && (t.maxMessages < 1 || t.maxMessages > protocol.HistoryMessagesMax):
		return protocol.Errorf(protocol.CodeInvalid, field+"max_messages", "must be from 1 to %d, not %d", protocol.HistoryMessagesMax, t.maxMessages)
	case given("max-context-tokens") && (t.maxTokens < 1 || t.maxTokens > protocol.TokensMax):
		return protocol.Errorf(protocol.CodeInvalid, field+"max_tokens", "must be from 1 to %d, not %d", protocol.TokensMax, t.maxTokens)
	}
	h.Mode = cmp.Or(protocol.TransferMode(t.mode), h.Mode)
	h.MaxMessages, h.MaxTokens = cmp.Or(t.maxMessages, h.MaxMessages), cmp.Or(t.maxTokens, h.MaxTokens)
	if len(pkg.Context.ConversationHistory) == 0 {
		return nil
	}
	if pkg.Type == "" && f.await == protocol.WaitBlock && a.env(worker.EnvAwaitDir) != "" {
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
		if err := a.summarize(ctx, t, pkg); err != nil {
			return err
		}
	}
	pkg.CutConversation()
	return nil
}

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

// declareRouting declares the flags of a package's way to its agent.
func (f *packageFlags) declareRouting() {
	type pkg = protocol.Package
	rules := func(p *pkg) *protocol.RoutingRules { return orNew(&p.Routing) }
	f.text("on-open", "`WHAT` becomes of it where the breaker of its agent is open: refuse (default) or wait", func(p *pkg) *string {
		return (*string)(&rules(p).OnOpen)
	})
	waits := f.fs.Bool("wait-for-agent", false, "submit it even if no agent has the name or the capability yet; it waits for one, up to its deadline")
	f.onGiven("wait-for-agent", func(p *pkg) {
		if rules(p).OnUnknown = protocol.OnOpenRefuse; *waits {
			p.Routing.OnUnknown = protocol.OnOpenWait
		}
	})
	f.text("route-by", "`RULE` by which an agent with the capability is chosen: fit (default), load or success (default of all: handoff fleet set routing.by=...)", func(p *pkg) *string {
		return (*string)(&rules(p).By)
	})
	f.texts("ranked", "`AGENT` that gets it where the one of --to refuses it; the best first, at most 8 (repeatable; --for finds them)", func(p *pkg) *[]string {
		return &rules(p).Ranked
	})
}

// declareLimits declares the flags of the limits of a handoff and of all that follows from it.
func (f *packageFlags) declareLimits(fs *pflag.FlagSet) {
	type pkg = protocol.Package
	own := func(p *pkg) *protocol.Limits { return orNew(&p.Limits) }
	f.text("complexity", "`CLASS` that sets limits which are not given: simple, medium, complex, or auto (what assists classifies it; default the rules of the fleet)", func(p *pkg) *string { return &p.Constraints.Complexity })
	f.limit("max-handoffs", "at most `N` handoffs below this one", func(p *pkg) **int64 { return &own(p).MaxHandoffs })
	f.limit("max-depth", "at most `N` levels of handoffs below this one", func(p *pkg) **int64 { return &own(p).MaxDepth })
	f.limit("max-agents", "at most `N` agents have a part in it, its own included", func(p *pkg) **int64 { return &own(p).MaxAgents })
	f.limit("max-tokens", "at most `N` tokens for it and all that follows from it", func(p *pkg) **int64 { return &own(p).MaxTokens })
	cost := new(int64)
	fs.Var((*costValue)(cost), "max-cost", "at most this cost for it and all that follows from it, in the fleet's currency: 1.50")
	f.onGiven("max-cost", func(p *pkg) { own(p).MaxCostMicros = cost })
	within := new(time.Duration)
	fieldVar(fs, within, "max-time", "at most this long until its end; it becomes the deadline")
	f.onGiven("max-time", func(p *pkg) { ms := within.Milliseconds(); own(p).MaxTimeMS = &ms })
	f.limit("share", "`PERCENT` of what is left that a handoff below gets, if it asks for nothing (default 50)", func(p *pkg) **int64 { return &own(p).SharePercent })
	f.text("on-exhausted", "`WHAT` follows when a budget has run out: return (default; the holder hands back what it has) or ask (a person, before the next attempt)", func(p *pkg) *string { return (*string)(&own(p).OnExhausted) })
}

// limit declares a flag that is a whole number which may be absent.
func (f *fieldFlags[T]) limit(name, usage string, field func(*T) **int64) {
	value := f.fs.Int64(name, 0, usage)
	f.onGiven(name, func(to *T) { *field(to) = value })
}

// declareApproval declares the flags of the approval of a package before an agent gets it.
func (f *packageFlags) declareApproval() {
	type pkg = protocol.Package
	own := func(p *pkg) *protocol.Approval { return orNew(&p.Approval) }
	f.text("approve-by", "the `AGENT`, or human, that approves it before its target gets it", func(p *pkg) *string { own(p).Required = true; return &p.Approval.By })
	f.text("approval-question", "`WHAT` the approver is asked", func(p *pkg) *string { return &own(p).Question })
	f.millis("approval-timeout", "an approver has so long to answer, then the authority above is asked (default 24h)", func(p *pkg) *int64 { return &own(p).TimeoutMS })
	f.text("on-approval-timeout", "`WHAT` follows where an approver does not answer: escalate (default) or close", func(p *pkg) *string { return (*string)(&own(p).OnTimeout) })
}

// declareApproval declares the flags of the approval of packages before the agent gets them.
func (f *profileFlags) declareApproval() {
	f.text("approve", "`WHICH` handoffs to it are approved first: always, never (default), or from a risk on: low, medium or high; one without a risk is among these", func(p *protocol.Profile) *string { return (*string)(&p.Approve) })
}

// declareAutonomy declares the flag of how much autonomy the agent has.
func (f *profileFlags) declareAutonomy() {
	amount := f.fs.Float64("autonomy", 0, "the largest autonomy_budget.amount of a package that it takes (default: any)")
	f.onGiven("autonomy", func(p *protocol.Profile) { p.AutonomyBudget = amount })
}

// declareBids declares the flags of a call for bids.
func (f *packageFlags) declareBids() {
	type pkg = protocol.Package
	own := func(p *pkg) *protocol.Bids { return orNew(&p.Bids) }
	asks := f.fs.Bool("bids", false, "ask agents with the --capability what they would do it for; it goes to the one with the best bid")
	f.millis("bid-window", "how long they may take to bid, 100ms to 1h (default 5s)", func(p *pkg) *int64 { return &own(p).WindowMS })
	most := f.fs.Int("bid-most", protocol.BiddersDefault, "ask at most `N` agents")
	f.onGiven("bid-most", func(p *pkg) { own(p).Most = *most })
	least := f.fs.Int("bid-least", 1, "with fewer than `N` bids none of them wins; on_no_taker then decides")
	f.onGiven("bid-least", func(p *pkg) { own(p).Least = *least })
	weights := new(weightsValue)
	f.fs.Var(weights, "bid-weights", "what counts in a bid, `cost=2,eta=1,confidence=0.5`; what is left out does not count (default: each counts the same)")
	f.onGiven("bid-weights", func(p *pkg) { own(p).Weights = (*protocol.BidWeights)(weights) })
	f.onGiven("bids", func(p *pkg) { // the last word, for --bids=false
		own(p)
		if !*asks {
			p.Bids = nil
		}
	})
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

// declareWorkspace declares the flags of the workspace and of the locks in it.
func (f *packageFlags) declareWorkspace(fs *pflag.FlagSet) {
	type pkg = protocol.Package
	f.text("workspace", "`NAME` of the workflow that it has a place in (default: that of --workflow, where it was opened with handoff workflow open)", func(p *pkg) *string { return &p.Workspace })
	own := func(p *pkg) *protocol.Locks { return orNew(&p.Locks) }
	lock := func(name string, mode protocol.LockMode, words string) {
		paths := fs.StringArray(name, nil, words)
		f.onGiven(name, func(p *pkg) {
			for _, path := range *paths {
				own(p).Paths = append(own(p).Paths, protocol.LockPath{Path: path, Mode: mode})
			}
		})
	}
	lock("lock", protocol.LockExclusive, "`PATH` that it has for itself from before its offer to its end; with a slash at the end all that is below (repeatable)")
	lock("lock-shared", protocol.LockShared, "`PATH` that it shares with others that read, as long (repeatable)")
	f.millis("lock-wait", "it waits for its locks for so long (default 5m; 0 is not at all)", func(p *pkg) *int64 { own(p).WaitMS = new(int64); return own(p).WaitMS })
}
