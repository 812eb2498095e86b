package protocol

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/internal/wirejson"
)

// Validate checks everything about a package that can be checked from it alone. It expects a
// normalized package. The error is a *protocol.Error that names the first wrong field, and the
// package's source and target.
//
// Fields that only Handoff itself may set are refused: returned, origin, and its own name as the
// source.
func (p Package) Validate(now time.Time) error {
	own := borrow(&p)
	defer freeScratch(own)
	return named(own, checkAll(own, now))
}

func checkAll(p *Package, now time.Time) *Error {
	if err := cmp.Or(checkForeign(p), checkPackage(p)); err != nil {
		return err
	}
	if p.Type == Broadcast && p.GroupSize() == 0 {
		return Errorf(CodeMissing, "target.agents", "is missing: a broadcast names the agents it goes to, or has members")
	}
	return checkTimes(p, now)
}

// packages pools the packages under check: reflection needs them on the heap, and a package has a
// kilobyte.
var packages = sync.Pool{New: func() any { return new(Package) }}

func borrow(p *Package) *Package {
	own := packages.Get().(*Package)
	*own = *p
	return own
}

func freeScratch(own *Package) {
	*own = Package{}
	packages.Put(own)
}

// named adds the package to an error, if there is one.
func named(p *Package, err *Error) error {
	if err != nil {
		return err.of(p)
	}
	return nil
}

// ValidateOwn is Validate for packages that Handoff itself makes: returns, redrives, and the
// packages of a group's members, which are of type broadcast and have a target and a parent of
// their own. A deadline may have passed: a promised handoff is submitted all the same, and then
// runs out of time. It has the signature of Validate, so that one can replace the other.
func (p Package) ValidateOwn(_ time.Time) error {
	own := borrow(&p)
	defer freeScratch(own)
	return named(own, checkPackage(own))
}

func checkPackage(p *Package) *Error {
	for _, check := range packageChecks {
		if err := check(p); err != nil {
			return err
		}
	}
	return nil
}

// checkForeign refuses fields that only Handoff may set.
func checkForeign(p *Package) *Error {
	if err := CheckBy("source", p.Source); err != nil && ScheduleOf(p.Source, p.Key) == "" && RuleOf(p.Source, p.Key) == "" {
		return err.(*Error)
	}
	switch {
	case p.Returned != nil:
		return Errorf(CodeInvalid, "returned", "is written only by Handoff, when it delivers a return; leave it out")
	case p.Origin != "":
		return Errorf(CodeInvalid, "origin", "is written only by Handoff, when a handoff is redriven; leave it out")
	}
	return nil
}

// packageChecks are made in this order, so that the first message helps a person who writes a first
// package. Validate checks the deadline after them.
var packageChecks = []func(*Package) *Error{
	func(p *Package) *Error { _, err := checkVersion(p.Version); return err },
	checkParties,
	checkMembers,
	checkOrigin,
	func(p *Package) *Error { return required("reason", p.Reason) },
	func(p *Package) *Error { return checkTask("task", &p.Task) },
	checkHead,
	checkType,
	checkReturn,
	func(p *Package) *Error { return checkContext(&p.Context) },
	checkNumbers,
	checkRequirements,
	func(p *Package) *Error { return checkApproval(p.Approval) },
	checkWorkspace,
	func(p *Package) *Error { return p.Policy.validate("policy") },
	func(p *Package) *Error { return p.Routing.validate(p.Target, p.GroupSize() > 0) },
	func(p *Package) *Error { return p.Bids.validate(p.Target, len(p.Members)) },
	checkNext,
	func(p *Package) *Error { return checkTrace(p.TraceParent, p.TraceState) },
	checkWellFormed,
}

// orNil returns the error; nil if there is none.
func (e *Error) orNil() error {
	if e == nil {
		return nil
	}
	return e
}

// of adds the names of a package to an error.
func (e *Error) of(p *Package) *Error {
	with := *e
	with.Source, with.Target = wirejson.Clip(p.Source), wirejson.Clip(p.TargetWords())
	return &with
}

// String describes the target in a few words.
func (t Target) String() string {
	switch {
	case t.Agent != "":
		return t.Agent
	case t.Capability != "":
		return "capability " + t.Capability
	case len(t.Agents) > 3:
		return fmt.Sprintf("%s and %d more", strings.Join(t.Agents[:3], ", "), len(t.Agents)-3)
	}
	return strings.Join(t.Agents, ", ")
}

func checkParties(p *Package) *Error {
	if err := checkID("source", p.Source); err != nil {
		return err
	}
	switch given := p.Target.given(); {
	case p.Members != nil && given > 0:
		return Errorf(CodeConflict, "target", "is for a package without members; these name their own")
	case p.Members != nil:
		return nil
	case given == 0 && p.Type == Escalation: // then the source's escalates_to applies
		return nil
	case given == 0:
		return Errorf(CodeMissing, "target", "is missing: name an agent or a capability")
	case given > 1:
		return Errorf(CodeConflict, "target", "names more than one of agent, capability and agents; choose one")
	case len(p.Target.Agents) > 0:
		return checkAgents(p)
	}
	return checkTarget("target", p.Target, p.Source)
}

// given counts the fields that are set.
func (t Target) given() int {
	n := 0
	for _, there := range []bool{t.Agent != "", t.Capability != "", len(t.Agents) > 0} {
		if there {
			n++
		}
	}
	return n
}

// checkTarget checks a target that names an agent or a capability.
func checkTarget(field string, t Target, source string) *Error {
	name, id := "agent", t.Agent
	if id == "" {
		name, id = "capability", t.Capability
	}
	check := checkID
	if name == "agent" {
		check = checkAgent
	}
	if err := check(name, id); err != nil {
		return err.below(field)
	}
	if name == "agent" && id == source {
		return Errorf(CodeConflict, field+".agent", "is the source itself; an agent cannot hand off to itself")
	}
	return nil
}

func checkAgents(p *Package) *Error {
	const field = "target.agents"
	return checkNamed(field, p.Target.Agents, AgentsMax, "names %d agents", func(agent *string) *Error {
		if *agent == p.Source {
			return Errorf(CodeConflict, "", "is the source itself; an agent cannot hand off to itself")
		}
		return checkAgent("", *agent)
	}, "", itself)
}

func checkTask(field string, t *Task) *Error {
	if err := cmp.Or(required("description", t.Description), checkName("id", t.ID), checkName("type", t.Type)); err != nil {
		return err.below(field)
	}
	return nil
}

func checkHead(p *Package) *Error {
	if len(p.Key) > KeyBytesMax {
		return tooLarge("key", len(p.Key), KeyBytesMax)
	}
	if p.Parent != "" {
		if _, err := ParseTicket(p.Parent); err != nil {
			return Errorf(CodeInvalid, "parent", "%q is not a ticket; a ticket is the UUID that a submission returns", wirejson.Clip(p.Parent))
		}
	}
	return cmp.Or(
		oneOf("type", p.Type, Types),
		oneOf("trigger", p.Trigger, Triggers),
		oneOf("priority", p.Priority, Priorities),
		oneOf("audit.risk_level", p.Audit.RiskLevel, Risks),
	)
}

// checkType checks the requirements of each type of handoff.
func checkType(p *Package) *Error {
	switch {
	case p.Type == Broadcast:
	case len(p.Target.Agents) > 0:
		return Errorf(CodeConflict, "target.agents", "is for the type broadcast; this is of type %s", p.Type)
	case len(p.Members) > 0:
		return Errorf(CodeConflict, "members", "is for the type broadcast; this is of type %s", p.Type)
	}
	switch p.Type {
	case Delegation:
		if p.Return == nil || p.Return.TimeoutMS == 0 {
			return Errorf(CodeMissing, "return.timeout_ms", "is missing: a delegation needs a timeout for its return")
		}
	case Escalation:
		if strings.TrimSpace(p.Audit.DecisionRationale) == "" {
			return Errorf(CodeMissing, "audit.decision_rationale", "is missing or empty: an escalation needs a rationale")
		}
		if p.Source == Human {
			return Errorf(CodeConflict, "source", "is %s, and no authority is above a person: an escalation goes up from an agent", Human)
		}
	}
	return nil
}

func checkTimes(p *Package, now time.Time) *Error {
	start, deadline := p.StartAt, p.Constraints.Deadline
	latest := now.Add(time.Duration(DeadlineMaxMS) * time.Millisecond)
	switch {
	case !deadline.IsZero() && !deadline.After(now):
		return Errorf(CodePast, "constraints.deadline", "%s has passed; it is %s now", stamp(deadline), stamp(now))
	case deadline.After(latest):
		return Errorf(CodeInvalid, "constraints.deadline", "%s is more than %d days ahead", stamp(deadline), DeadlineMaxMS/day)
	case !start.IsZero() && now.Sub(start) > startSkewMS*time.Millisecond:
		return Errorf(CodePast, "start_at", "%s has passed; it is %s now", stamp(start), stamp(now))
	case start.After(now.Add(time.Duration(startMaxMS) * time.Millisecond)):
		return Errorf(CodeInvalid, "start_at", "%s is more than %d days ahead; its deadline is within %d days", stamp(start), startMaxMS/day, DeadlineMaxMS/day)
	case start.After(now) && !deadline.IsZero() && !start.Before(deadline):
		return Errorf(CodeConflict, "start_at", "%s is not before the deadline, %s", stamp(start), stamp(deadline))
	}
	return nil
}

func stamp(at time.Time) string { return at.UTC().Format(time.RFC3339) }

func checkNumbers(p *Package) *Error {
	e := p.Expectations
	if err := between("expectations.timeout_ms", e.TimeoutMS, 0, WorkTimeoutMaxMS); err != nil {
		return err
	}
	if own := p.Policy.WorkTimeoutMS; own != nil && e.TimeoutMS > 0 && *own != e.TimeoutMS {
		return Errorf(CodeConflict, "expectations.timeout_ms", "is %d and policy.work_timeout_ms is %d; they mean the same, give one", e.TimeoutMS, *own)
	}
	if err := cmp.Or(between("expectations.max_iterations", e.MaxIterations, 0, IterationsMax),
		checkAmount("constraints.budget", p.Constraints.Budget),
		checkLimits(p),
		oneOf("constraints.complexity", p.Constraints.Complexity, Complexities)); err != nil {
		return err
	}
	if by := p.Constraints.ComplexityBy; by != "" {
		if p.Constraints.Complexity == "" {
			return Errorf(CodeConflict, "constraints.complexity_by", "names a classifier, but there is no class")
		}
		if err := oneOf("constraints.complexity_by", by, Classifiers); err != nil {
			return err
		}
	}
	if budget := p.AutonomyBudget; budget != nil {
		return cmp.Or(
			checkAmount("autonomy_budget.amount", budget.Amount),
			checkDeciders(budget.Deciders),
			oneOf("autonomy_budget.max_risk", budget.MaxRisk, Risks),
		)
	}
	return nil
}

// checkDeciders checks the deciders; each may occur once.
func checkDeciders(names []string) *Error {
	const field = "autonomy_budget.deciders"
	return checkNamed(field, names, DecidersMax, "names %d agents", func(name *string) *Error { return checkID("", *name) }, "", itself)
}

func checkRequirements(p *Package) *Error {
	const field = "required_capabilities"
	return checkList(field, p.RequiredCapabilities, RequiredCapabilitiesMax, "lists %d capabilities", func(c *RequiredCapability) *Error {
		return cmp.Or(checkID("id", c.ID), checkProficiency("min_proficiency", c.MinProficiency))
	})
}

func checkWellFormed(p *Package) *Error {
	if err := wellFormed(p); err != nil {
		return err
	}
	for name, raw := range p.Extra {
		err := wirejson.CheckText(name)
		if err == nil {
			err = wirejson.CheckRaw(raw, 1)
		}
		if err != nil {
			return asError(err.Below(name))
		}
	}
	return nil
}

// checkMembers checks the recipients of a group of different packages. An agent that occurs twice
// gets two handoffs.
func checkMembers(p *Package) *Error {
	if p.Members != nil && len(p.Members) == 0 {
		return Errorf(CodeMissing, "members", "is present but empty; leave it out or fill it in")
	}
	return checkList("members", p.Members, ChildrenMax, "lists %d members", func(m *Member) *Error { return m.check(p.Source) })
}

func (m *Member) check(source string) *Error {
	switch given := m.Target.given(); {
	case len(m.Target.Agents) > 0:
		return Errorf(CodeConflict, "target.agents", "is for a whole package; a member is one agent or one capability")
	case given == 0:
		return Errorf(CodeMissing, "target", "is missing: name an agent or a capability")
	case given > 1:
		return Errorf(CodeConflict, "target", "names both an agent and a capability; choose one")
	}
	if err := checkTarget("target", m.Target, source); err != nil {
		return err
	}
	if m.Reason != "" && strings.TrimSpace(m.Reason) == "" {
		return required("reason", m.Reason)
	}
	if err := oneOf("priority", m.Priority, Priorities); err != nil {
		return err
	}
	if m.Task != nil {
		if err := checkTask("task", m.Task); err != nil {
			return err
		}
	}
	return checkArtifacts("artifacts", m.Artifacts)
}

// checkReturn checks the return protocol.
func checkReturn(p *Package) *Error {
	if err := checkGroupReturn(p); err != nil {
		return err
	}
	r := p.Return
	if r == nil {
		return nil
	}
	if err := between("return.timeout_ms", r.TimeoutMS, 0, ReturnTimeoutMaxMS); err != nil {
		return err
	}
	if own := p.Policy.ReturnTimeoutMS; own != nil && r.TimeoutMS > 0 && *own != r.TimeoutMS {
		return Errorf(CodeConflict, "return.timeout_ms", "is %d and policy.return_timeout_ms is %d; they mean the same, give one", r.TimeoutMS, *own)
	}
	return cmp.Or(
		oneOf("return.on_timeout", r.OnTimeout, OnTimeouts),
		oneOf("return.wait", r.Wait, Waits),
		oneOf("return.of", r.Of, ReturnScopes),
		oneOf("return.aggregation", r.Aggregation, Aggregations),
		checkCounted(p, r),
	)
}

// checkCounted checks the settings of a return for a group's members.
func checkCounted(p *Package, r *ReturnProtocol) *Error {
	if p.GroupSize() == 0 {
		for _, f := range []struct {
			field string
			given bool
		}{{"return.aggregation", r.Aggregation != ""}, {"return.from", len(r.From) > 0}, {"return.cancel_rest", r.CancelRest}} {
			if f.given {
				return Errorf(CodeConflict, f.field, "is for a group: target.agents or members")
			}
		}
		return nil
	}
	if err := atMost("return.from", len(r.From), ChildrenMax, "names %d agents"); err != nil {
		return err
	}
	left := map[string]bool{} // recipients not named yet
	for _, agent := range p.Recipients() {
		left[agent] = true
	}
	for i, agent := range r.From {
		field := fmt.Sprintf("return.from[%d]", i)
		if err := checkID(field, agent); err != nil {
			return err
		}
		fresh, recipient := left[agent]
		switch {
		case !recipient:
			return Errorf(CodeConflict, field, "names %s, which is no recipient of this group", agent)
		case !fresh:
			return Errorf(CodeConflict, field, "names %s a second time", agent)
		}
		left[agent] = false
	}
	return nil
}

// checkGroupReturn refuses actions that a group cannot take after its return timeout: it has no
// work that another attempt or an authority could continue.
func checkGroupReturn(p *Package) *Error {
	if p.GroupSize() == 0 {
		return nil
	}
	asked := func(field string, on OnTimeout) *Error {
		if on != OnTimeoutRetry && on != OnTimeoutEscalate {
			return nil
		}
		return Errorf(CodeConflict, field, "is %s, and a group has no work of its own to %s; it fails at its return timeout, and its members have clocks of their own", on, on)
	}
	if on := p.Policy.OnReturnTimeout; on != nil {
		if err := asked("policy.on_return_timeout", *on); err != nil {
			return err
		}
	}
	if p.Return != nil {
		return asked("return.on_timeout", p.Return.OnTimeout)
	}
	return nil
}

// checkOrigin checks the fields that Handoff itself has written, so that our mistakes are found
// before they are stored.
func checkOrigin(p *Package) *Error {
	if p.Origin != "" {
		if _, err := ParseTicket(p.Origin); err != nil {
			return Errorf(CodeInvalid, "origin", "%q is not a ticket", wirejson.Clip(p.Origin))
		}
	}
	if r := p.Returned; r != nil {
		if _, err := ParseTicket(r.HandoffID); err != nil {
			return Errorf(CodeInvalid, "returned.handoff_id", "%q is not a ticket", wirejson.Clip(r.HandoffID))
		}
		return cmp.Or(chosen("returned.status", r.Status, ReturnStatuses), chosen("returned.outcome", r.Outcome, Outcomes))
	}
	return nil
}

// checkContext checks the context. A conversation id or a user intent may be absent, but not empty.
func checkContext(c *Context) *Error {
	for _, f := range []struct {
		field string
		text  *string
	}{{"context.conversation_id", c.ConversationID}, {"context.user_intent", c.UserIntent}} {
		if f.text != nil && strings.TrimSpace(*f.text) == "" {
			return Errorf(CodeMissing, f.field, "is present but empty; leave it out or fill it in")
		}
	}
	conversation := ""
	if c.ConversationID != nil {
		conversation = *c.ConversationID
	}
	return cmp.Or(checkName("context.conversation_id", conversation),
		checkName("context.workflow_id", c.WorkflowID), checkName("context.user_id", c.UserID),
		checkName("context.correlation_id", c.CorrelationID), checkName("context.trace_id", c.TraceID),
		checkName("context.phase", c.Phase), checkName("context.next_phase", c.NextPhase),
		c.HistoryTransfer.check(), checkFiles(c), checkPrevious(c.Previous), checkArtifacts("context.artifacts", c.Artifacts))
}

func (t *HistoryTransfer) check() *Error {
	const field = "context.history_transfer."
	return cmp.Or(
		oneOf(field+"mode", t.Mode, TransferModes),
		between(field+"max_messages", t.MaxMessages, 0, HistoryMessagesMax),
		between(field+"max_tokens", t.MaxTokens, 0, TokensMax),
		between(field+"omitted", t.Omitted, 0, HistoryMessagesMax),
		between(field+"original_tokens", t.OriginalTokens, 0, TokensMax),
		between(field+"tokens", t.Tokens, 0, TokensMax),
		oneOf(field+"by", t.By, SummaryBys),
	)
}

func checkFiles(c *Context) *Error {
	path := func(path string) *Error {
		if path == "" {
			return Errorf(CodeMissing, "path", "is missing or empty")
		}
		return nil
	}
	return cmp.Or(
		each("context.relevant_files", c.RelevantFiles, func(f *FileReference) *Error { return path(f.Path) }),
		each("context.files_in_progress", c.FilesInProgress, func(f *FileLock) *Error {
			return cmp.Or(path(f.Path), oneOf("lock_type", f.LockType, LockTypes))
		}),
	)
}

func checkArtifacts(field string, all Artifacts) *Error {
	if all.List != nil && all.ByName != nil {
		return Errorf(CodeConflict, field, "is given both as a list and by name")
	}
	return each(field, all.List, func(a *Artifact) *Error {
		if a.ID == "" && a.Name == "" && a.Path == "" {
			return Errorf(CodeMissing, "", "has neither id nor name nor path")
		}
		return oneOf("status", a.Status, ArtifactStatuses)
	})
}

// checkNext checks the rules for results without a command.
func checkNext(p *Package) *Error {
	if err := atMost("next", len(p.Next), nextRulesMax, "has %d rules"); err != nil {
		return err
	}
	for i := range p.Next {
		rule, field := &p.Next[i], fmt.Sprintf("next[%d]", i)
		if err := rule.validate(); err != nil {
			return err.below(field)
		}
		for j := range i {
			if earlier := &p.Next[j]; earlier.From == rule.From && sameValue(earlier.Goto, rule.Goto) && reflect.DeepEqual(earlier.If, rule.If) {
				return Errorf(CodeConflict, field, "is the same as next[%d]; one rule with a larger times is enough", j)
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
		return Errorf(CodeMissing, "goto", "is missing: name the next agent or agents, or one of %s", strings.Join(Ends, ", "))
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
	if err := cmp.Or(zeroOrBetween("times", r.Times, 1, NextTimesMax), between("taken", r.Taken, 0, NextTimesMax)); err != nil {
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
		return Errorf(CodeConflict, "status", "cannot be combined with a variable; compare that by another rule")
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
	}
	return cmp.Or(atMost("in", len(c.In), nextValuesMax, "lists %d values"), checkName("variable", c.Variable))
}

// Building blocks of the checks. An optional field passes if it is empty.

// required refuses a blank text.
func required(field, text string) *Error {
	if strings.TrimSpace(text) == "" {
		return Errorf(CodeMissing, field, "is missing or empty")
	}
	return nil
}

func checkID(field, id string) *Error {
	if err := CheckID(field, id); err != nil {
		return err.(*Error)
	}
	return nil
}

func checkAgent(field, name string) *Error {
	if err := CheckAgent(field, name); err != nil {
		return err.(*Error)
	}
	return nil
}

func optionalAgent(field, name string) *Error {
	if name == "" {
		return nil
	}
	return checkAgent(field, name)
}

func optionalID(field, id string) *Error {
	if id == "" {
		return nil
	}
	return checkID(field, id)
}

// checkName checks a name from outside: any text of NameBytesMax without control characters. The
// state keeps such names, and NATS headers and logs show them.
func checkName(field, name string) *Error {
	if len(name) > NameBytesMax {
		return tooLarge(field, len(name), NameBytesMax)
	}
	if i := strings.IndexFunc(name, func(r rune) bool { return r != 0 && (r < ' ' || r == 0x7f) }); i >= 0 {
		return Errorf(CodeInvalid, field, "has a control character at byte %d", i)
	}
	return nil
}

func oneOf[T ~string](field string, value T, all []T) *Error {
	if value == "" || slices.Contains(all, value) {
		return nil
	}
	words := make([]string, len(all))
	for i, word := range all {
		words[i] = string(word)
	}
	return Errorf(CodeInvalid, field, "must be one of %s, not %q", strings.Join(words, ", "), wirejson.Clip(string(value)))
}

// chosen is oneOf for a field that is present: empty is not allowed.
func chosen[T ~string](field string, value T, all []T) *Error {
	if value == "" {
		return Errorf(CodeMissing, field, "is present but empty; leave it out or fill it in")
	}
	return oneOf(field, value, all)
}

func between[N int | int64](field string, n N, least, most int64) *Error {
	if n := int64(n); n < least || n > most {
		return Errorf(CodeInvalid, field, "must be from %d to %d, not %d", least, most, n)
	}
	return nil
}

// optionalBetween is between for a number that may be absent: nil.
func optionalBetween[N int | int64](field string, n *N, least, most int64) *Error {
	if n == nil {
		return nil
	}
	return between(field, *n, least, most)
}

// zeroOrBetween is between for a number that is 0 if it is absent.
func zeroOrBetween[N int | int64](field string, n N, least, most int64) *Error {
	if n == 0 {
		return nil
	}
	return between(field, n, least, most)
}

// atMost refuses a list with too many items. has is its number of items in words, such as "has %d rules".
func atMost(field string, n, most int, has string) *Error {
	if n > most {
		return Errorf(CodeTooLarge, field, "%s, at most %d are allowed", fmt.Sprintf(has, n), most)
	}
	return nil
}

// checkList checks the number of items of a list, and then each. It stops at the first fault, so that a
// list over its limit costs nothing more.
func checkList[T any](field string, list []T, most int, has string, check func(item *T) *Error) *Error {
	if err := atMost(field, len(list), most, has); err != nil {
		return err
	}
	return each(field, list, check)
}

// checkNamed is checkList for items of which no two may have the same name.
func checkNamed[T any](field string, list []T, most int, has string, check func(item *T) *Error, name string, nameOf func(item *T) string) *Error {
	if err := checkList(field, list, most, has, check); err != nil {
		return err
	}
	return distinct(field, list, name, nameOf)
}

// each checks the items of a list.
func each[T any](field string, list []T, check func(item *T) *Error) *Error {
	for i := range list {
		if err := check(&list[i]); err != nil {
			return err.below(fmt.Sprintf("%s[%d]", field, i))
		}
	}
	return nil
}

// distinct refuses an item whose name an earlier one has. field is that of the name in the item.
func distinct[T any](field string, list []T, name string, nameOf func(item *T) string) *Error {
	if len(list) < 2 {
		return nil
	}
	seen := make(map[string]bool, len(list))
	for i := range list {
		of := nameOf(&list[i])
		if seen[of] {
			return Errorf(CodeConflict, fmt.Sprintf("%s[%d]%s", field, i, name), "names %s a second time", of)
		}
		seen[of] = true
	}
	return nil
}

func itself(name *string) string { return *name }

func checkAmount(field string, amount *float64) *Error {
	if amount != nil && !(*amount >= 0 && *amount <= BudgetMax) { // NaN is neither
		return Errorf(CodeInvalid, field, "must be from 0 to %g, not %g", float64(BudgetMax), *amount)
	}
	return nil
}

func checkProficiency(field string, p float64) *Error {
	if math.IsNaN(p) || p < 0 || p > 1 {
		return Errorf(CodeInvalid, field, "must be from 0 to 1, not %g", p)
	}
	return nil
}
