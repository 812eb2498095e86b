package protocol

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/agenthandoff/handoff/internal/wirejson"
)

// Ends lists the names that end a chain instead of handing off. A command cannot reach an agent of
// such a name.
var Ends = []string{"END", "__end__"}

// Continue returns the package that a result's command asks for. It is none without a command,
// without a goto, or if the goto ends the chain; otherwise exactly one. Without a command, the
// package's own rules make it (NextRule). pkg is the package of the finished work, with the
// variables that answers have added; from is the agent that did it, ticket its handoff, and result
// its validated result. The new package is neither normalized nor validated, and shares data with
// pkg and result.
//
// goto names the targets:
//
//   - a name, or one {agent, update}: a sequential handoff to it;
//   - a list of names: a broadcast of one package to them (target.agents), also if it is a list of one;
//   - a list with at least one {agent, update}: a group, a member for each entry. An agent may occur
//     twice.
//
// An object may have capability in place of agent: it goes to an agent with that capability. A name
// may be spelled as models do: see Command.Targets and lifecycle.Directory.Spelled.
//
// An end in a list is skipped: it ends a branch, not the others.
//
// The package has from as its source, ticket as its parent, and the trigger task_completion. It
// keeps the priority, the rules, constraints (Inherit sets the deadline), policy (except for
// returns), audit, autonomy budget, task id, and the context except from's locks on files in
// progress. Variables are pkg's, then the result's, then the update's; artifacts likewise, merged
// by Artifacts.With. The summary is the result's, else pkg's, and the previous result is only this
// one (Previous). history_transfer selects how much of the conversation is kept (CutConversation);
// without a mode that is full for an escalation, else relevant_only. The key, the return protocol,
// required capabilities and all expectations are dropped: they were about this result. The type and
// requirements of the task are dropped if the update describes another task.
//
// update is an object. It is applied to the whole package; that of an entry of a list to its
// member. These fields have a meaning, all others become variables:
//
//	reason                                    reason; default "handed on by FROM"
//	next_task, task, task_description,
//	context.task_description                  task.description, the first of them that is given; an object is the whole task
//	context.artifacts_created                 context.artifacts: paths, or artifacts
//	context.previous_agent, context.completed ignored: source and trigger have this
//	artifacts                                 context.artifacts, a list or a map
//	start_at                                  start_at; a passed one is at once
//	workflow_state.phase, next_phase          context.phase, context.next_phase
//	workflow_state.completed_steps,
//	workflow_state.remaining_steps            the same of context, replacing the old ones
//	metrics                                   merged over context.metrics
//	decisions                                 added to context.decisions: words, or decisions
//
// Other fields of context and of workflow_state become variables too. So do second descriptions of
// the task; and workflow_state, metrics, decisions and start_at of an entry's update, because a member
// has no fields for them. A known field that is null is absent.
//
// The error is a *Error whose field begins with command: CodeConflict for the worker's own agent
// and for a repeated name, CodeInvalid for a field of an update that has the wrong type, and the
// errors of Command.Targets.
func Continue(pkg Package, from, ticket string, result Result) ([]Package, error) {
	pkg, result = followRules(pkg, from, result)
	if result.Command == nil {
		return nil, nil
	}
	targets, err := result.Command.Targets()
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(targets, func(to Goto) bool { return !slices.Contains(Ends, to.Agent) }) {
		return nil, nil
	}
	next := carryOn(pkg, from, ticket, result)
	u, bad := readUpdate("command.update", result.Command.Update, from)
	if bad != nil {
		return nil, bad
	}
	u.apply(&next)
	if bad := next.address(*result.Command, targets); bad != nil {
		return nil, bad
	}
	next.CutConversation() // by the task of the update
	return []Package{next}, nil
}

// address sets the targets of a command and their updates.
func (p *Package) address(c Command, targets []Goto) *Error {
	isList := first(c.Goto) == '['
	for i, to := range targets {
		field := "command.goto"
		if isList {
			field = fmt.Sprintf("command.goto[%d]", i)
		}
		if slices.Contains(Ends, to.Agent) {
			continue
		}
		if to.Agent == p.Source && to.Agent != "" {
			return Errorf(CodeConflict, field, "is %s itself; an agent cannot hand off to itself", to.Agent)
		}
		u, err := readUpdate(field+".update", to.Update, p.Source)
		switch {
		case err != nil:
			return err
		case isList:
			p.Members = append(p.Members, u.member(to.target(), p.Task))
		default:
			u.apply(p)
			p.Type, p.Target = Sequential, to.target()
		}
	}
	if !isList {
		return nil
	}
	if p.Type = Broadcast; c.namesOnly() {
		return p.oneForAll()
	}
	return nil
}

func (to Goto) target() Target { return Target{Agent: to.Agent, Capability: to.Capability} }

// oneForAll turns members that differ only in their agents into one package for several agents.
func (p *Package) oneForAll() *Error {
	seen := map[string]bool{}
	for _, m := range p.Members {
		agent := m.Target.Agent
		if seen[agent] {
			return Errorf(CodeConflict, "command.goto", "names %s twice; two handoffs to one agent are two objects with agent and update", agent)
		}
		seen[agent] = true
		p.Target.Agents = append(p.Target.Agents, agent)
	}
	p.Members = nil
	return nil
}

// namesOnly reports whether a list in Goto holds only names.
func (c Command) namesOnly() bool {
	var list []json.RawMessage
	if err := json.Unmarshal(c.Goto, &list); err != nil {
		return false
	}
	return !slices.ContainsFunc(list, func(raw json.RawMessage) bool { return first(raw) == '{' })
}

// carryOn returns the package that follows from pkg, without a target and before any update.
func carryOn(pkg Package, from, ticket string, result Result) Package {
	next := Package{
		Trigger: TriggerTaskCompletion, Source: from, Reason: "handed on by " + from, Priority: pkg.Priority, Parent: ticket,
		Task: pkg.Task, Context: pkg.Context, Constraints: pkg.Constraints,
		AutonomyBudget: pkg.AutonomyBudget, Audit: pkg.Audit, Policy: pkg.Policy, Next: pkg.Next,
	}
	next.Constraints.Deadline = Time{} // that of the state may differ: Inherit
	next.Policy.ReturnTimeoutMS, next.Policy.OnReturnTimeout = nil, nil
	if pkg.Returned != nil { // only a return waits just for its agent
		next.Policy = PolicyOverrides{}
	}
	c := &next.Context
	c.Previous = previousOf(from, ticket, result)
	c.Variables = overlay(pkg.Context.Variables, result.Variables)
	c.Artifacts = pkg.Context.Artifacts.With(result.Artifacts)
	c.Summary = cmp.Or(result.Summary, pkg.Context.Summary)
	c.FilesInProgress = slices.DeleteFunc(slices.Clone(c.FilesInProgress), func(lock FileLock) bool { return lock.Owner == from })
	if transfer := &c.HistoryTransfer; result.Summary != "" && transfer.By != "" {
		transfer.By = SummaryBySource
	}
	if c.HistoryTransfer.Mode == "" && len(c.ConversationHistory) > 0 && pkg.Type == Escalation {
		c.HistoryTransfer.Mode = TransferFull
	}
	tidyPackage(&next)
	return next
}

// update is a parsed update of a command. See Continue.
type update struct {
	reason    string
	task      *Task // its description may be empty
	artifacts Artifacts
	created   []Artifact // context.artifacts_created
	variables map[string]json.RawMessage
	startAt   Time

	phase, nextPhase               string
	completedSteps, remainingSteps []json.RawMessage
	metrics                        map[string]json.RawMessage
	decisions                      []Decision
	// homeless holds update fields that a member cannot carry.
	homeless map[string]json.RawMessage
}

// updateReader parses an update field by field, until the first error.
type updateReader struct {
	update
	from string
	err  *Error
}

// readUpdate reads an update. field is its path, from the agent that made it.
func readUpdate(field string, raw json.RawMessage, from string) (update, *Error) {
	if c := first(raw); c == 0 || c == 'n' {
		return update{}, nil
	}
	r := updateReader{from: from}
	r.variables = map[string]json.RawMessage{}
	r.homeless = map[string]json.RawMessage{}
	top := r.object(field, raw)
	r.tasks(field, top)
	r.context(field+".context", take(top, "context"))
	r.workflow(field+".workflow_state", r.remember(top, "workflow_state"))
	if reason := r.text(field+".reason", take(top, "reason")); strings.TrimSpace(reason) != "" {
		r.reason = reason
	}
	if raw := take(top, "artifacts"); raw != nil {
		r.read(field+".artifacts", raw, &r.artifacts)
		r.keep(checkArtifacts(field+".artifacts", r.artifacts))
	}
	r.read(field+".start_at", r.remember(top, "start_at"), &r.startAt)
	r.metrics = r.object(field+".metrics", r.remember(top, "metrics"))
	r.readDecisions(field+".decisions", r.remember(top, "decisions"))
	r.variables = overlay(r.variables, top)
	return r.update, r.err
}

// take removes a field and returns its value; nil if it is absent or null.
func take(of map[string]json.RawMessage, name string) json.RawMessage {
	raw := of[name]
	delete(of, name)
	if first(raw) == 'n' {
		return nil
	}
	return raw
}

// remember is take for a field that a member cannot carry.
func (r *updateReader) remember(of map[string]json.RawMessage, name string) json.RawMessage {
	raw := take(of, name)
	if raw != nil {
		r.homeless[name] = raw
	}
	return raw
}

// keep records the first error.
func (r *updateReader) keep(err *Error) {
	if r.err == nil && err != nil {
		r.err = err
	}
}

// read decodes a field as strictly as the rest of the wire.
func (r *updateReader) read(field string, raw json.RawMessage, into any) {
	if raw == nil || r.err != nil {
		return
	}
	if err := decodeStrict(raw, "", ResultBytesMax, 0, into); err != nil {
		e := *err.(*Error)
		if e.Field == "" {
			e.Field = field
		} else {
			e.below(field)
		}
		r.err = &e
	}
}

func (r *updateReader) text(field string, raw json.RawMessage) (text string) {
	r.read(field, raw, &text)
	return text
}

func (r *updateReader) name(field string, raw json.RawMessage) string {
	text := r.text(field, raw)
	r.keep(checkName(field, text))
	return text
}

func (r *updateReader) object(field string, raw json.RawMessage) map[string]json.RawMessage {
	fields := map[string]json.RawMessage{}
	r.read(field, raw, &fields)
	return fields
}

func (r *updateReader) list(field string, raw json.RawMessage) (list []json.RawMessage) {
	r.read(field, raw, &list)
	return list
}

// tasks reads the next task. Further descriptions remain in top, as variables.
func (r *updateReader) tasks(field string, top map[string]json.RawMessage) {
	for _, name := range []string{"next_task", "task", "task_description"} {
		if r.task == nil {
			r.oneTask(field+"."+name, take(top, name))
		}
	}
}

func (r *updateReader) oneTask(field string, raw json.RawMessage) {
	if raw == nil {
		return
	}
	var task Task
	if first(raw) == '{' {
		r.read(field, raw, &task)
		r.keep(checkName(field+".id", task.ID))
		r.keep(checkName(field+".type", task.Type))
	} else {
		task.Description = r.text(field, raw)
	}
	if strings.TrimSpace(task.Description) == "" {
		task.Description = "" // the previous one
	}
	r.task = &task
}

// context reads the update.context that agents of the swarm pattern write.
func (r *updateReader) context(field string, raw json.RawMessage) {
	context := r.object(field, raw)
	take(context, "previous_agent")
	take(context, "completed")
	if r.task == nil {
		r.oneTask(field+".task_description", take(context, "task_description"))
	}
	field += ".artifacts_created"
	for i, raw := range r.list(field, take(context, "artifacts_created")) {
		at := fmt.Sprintf("%s[%d]", field, i)
		artifact := Artifact{CreatedBy: r.from}
		if first(raw) == '"' {
			artifact.Path = r.text(at, raw)
		} else {
			r.read(at, raw, &artifact)
		}
		r.created = append(r.created, artifact)
	}
	r.keep(checkArtifacts(field, Artifacts{List: r.created}))
	r.variables = overlay(r.variables, context)
}

func (r *updateReader) workflow(field string, raw json.RawMessage) {
	state := r.object(field, raw)
	r.phase = r.name(field+".phase", take(state, "phase"))
	r.nextPhase = r.name(field+".next_phase", take(state, "next_phase"))
	r.completedSteps = r.list(field+".completed_steps", take(state, "completed_steps"))
	r.remainingSteps = r.list(field+".remaining_steps", take(state, "remaining_steps"))
	r.variables = overlay(r.variables, state)
}

func (r *updateReader) readDecisions(field string, raw json.RawMessage) {
	for i, raw := range r.list(field, raw) {
		at := fmt.Sprintf("%s[%d]", field, i)
		decision := Decision{MadeBy: r.from}
		if first(raw) == '"' {
			decision.Description = r.text(at, raw)
		} else {
			r.read(at, raw, &decision)
		}
		r.decisions = append(r.decisions, decision)
	}
}

// apply applies the update to a package for all targets.
func (u *update) apply(pkg *Package) {
	pkg.Reason = cmp.Or(u.reason, pkg.Reason)
	if !u.startAt.IsZero() {
		pkg.StartAt = u.startAt
	}
	if u.task != nil {
		pkg.Task = u.task.instead(pkg.Task)
	}
	c := &pkg.Context
	c.Variables = overlay(c.Variables, u.variables)
	c.Artifacts = c.Artifacts.With(u.artifacts).withCreated(u.created)
	c.Phase, c.NextPhase = cmp.Or(u.phase, c.Phase), cmp.Or(u.nextPhase, c.NextPhase)
	if u.completedSteps != nil {
		c.CompletedSteps = u.completedSteps
	}
	if u.remainingSteps != nil {
		c.RemainingSteps = u.remainingSteps
	}
	c.Metrics = overlay(c.Metrics, u.metrics)
	c.Decisions = append(slices.Clip(c.Decisions), u.decisions...)
	tidyPackage(pkg)
}

// member returns the member of a group to which an update applies alone. task is the group's.
func (u *update) member(to Target, task Task) Member {
	m := Member{Target: to, Reason: u.reason, Artifacts: u.artifacts.withCreated(u.created)}
	if u.task != nil {
		own := u.task.instead(task)
		m.Task = &own
	}
	if m.Variables = overlay(u.variables, u.homeless); len(m.Variables) == 0 {
		m.Variables = nil
	}
	return m
}

// instead merges an update's task over the previous one. It keeps the previous id if it has none,
// and the previous type and requirements if the description does not change.
func (t Task) instead(before Task) Task {
	t.ID = cmp.Or(t.ID, before.ID)
	if t.Description == "" || t.Description == before.Description {
		t.Description, t.Type = before.Description, cmp.Or(t.Type, before.Type)
		if t.Requirements == nil {
			t.Requirements = before.Requirements
		}
	}
	return t
}

// withCreated adds artifacts from a list of created ones. A bare path that equals one of these, or
// its last part, adds nothing; others are added to a map under their path.
func (a Artifacts) withCreated(created []Artifact) Artifacts {
	if len(created) == 0 {
		return a
	}
	there := map[string]bool{}
	for _, artifact := range a.All() {
		there[artifact.Path], there[path.Base(artifact.Path)] = true, true
	}
	var more Artifacts
	for _, artifact := range created {
		bare := artifact == Artifact{Path: artifact.Path, CreatedBy: artifact.CreatedBy}
		switch {
		case bare && there[artifact.Path]:
		case bare && a.ByName != nil:
			at := artifact.Path
			a = a.With(Artifacts{ByName: map[string]*string{at: &at}})
		default:
			more.List = append(more.List, artifact)
		}
	}
	return a.With(more)
}

// Limits of the rules for results without a command.
const (
	// nextRulesMax is how many rules a package has.
	nextRulesMax = 16
	// nextTimesDefault is how often a rule without a number is followed along a chain.
	nextTimesDefault, NextTimesMax = 3, 100
	// nextValuesMax is how many values one condition lists.
	nextValuesMax = 64
)

// NextRule is one of a package's rules for results without a command: the first matching rule makes
// the command.
type NextRule struct {
	// From selects the agent whose results the rule is for, an id or prefix*; absent is every agent.
	From string `json:"from,omitempty"`
	// If is the condition; absent always matches.
	If *NextCondition `json:"if,omitempty"`
	// Goto names the next agents, or is one of Ends, as in a Command.
	Goto   json.RawMessage            `json:"goto"`
	Update map[string]json.RawMessage `json:"update,omitempty" redact:"free"` // as in a Command
	// Times is how often it is followed along a chain; absent is nextTimesDefault. Taken counts how
	// often it was; Handoff sets it.
	Times int `json:"times,omitempty"`
	Taken int `json:"taken,omitempty"`
}

// NextCondition compares a variable, or the status of a result, with the value of one of the other
// fields. Lt, Le, Gt and Ge compare numbers. An absent variable only satisfies Exists.
type NextCondition struct {
	Variable string            `json:"variable,omitempty"`
	Status   ResultStatus      `json:"status,omitempty"` // the status of the result
	Eq       json.RawMessage   `json:"eq,omitempty"`
	Ne       json.RawMessage   `json:"ne,omitempty"`
	Lt       *float64          `json:"lt,omitempty"`
	Le       *float64          `json:"le,omitempty"`
	Gt       *float64          `json:"gt,omitempty"`
	Ge       *float64          `json:"ge,omitempty"`
	In       []json.RawMessage `json:"in,omitempty"`
	Exists   *bool             `json:"exists,omitempty"`
}

// MayHaveRules reports whether a package may have such rules, without parsing it.
func MayHaveRules(body []byte) bool { return bytes.Contains(body, []byte(`"next":`)) }

// followRules gives a result without a command the one of the package's first matching rule, and
// returns the package with that rule counted. from is the agent that has the result.
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
			update["reason"], _ = json.Marshal("handed on by " + from + ": " + rule.words(variables)) // a text always has a JSON form
		}
		result.Command = &Command{Goto: rule.Goto}
		result.Command.Update, _ = json.Marshal(update) // its values were decoded from JSON
		return pkg, result
	}
	return pkg, result
}

// holds reports whether a rule matches. An agent never continues to itself.
func (r *NextRule) holds(from string, variables map[string]json.RawMessage, result Result) bool {
	if r.Taken >= cmp.Or(r.Times, nextTimesDefault) || r.goesTo(from) {
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

// sameValue compares two values: numbers by value, others by canonical JSON.
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

// words describes why a rule matches: quality_score 72 < 80.
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

// operator returns the comparison of a condition in words, and the number of comparisons.
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
