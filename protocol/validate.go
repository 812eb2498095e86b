package protocol

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/protocol/internal/wirejson"
)

// Validate checks everything about a package that can be known from it alone.
// It expects what Normalize leaves. The error is a *protocol.Error that names
// the first field that is wrong, and the package's source and target.
//
// What only Handoff itself may say is refused: returned, origin, and its own
// name as the source.
func (p Package) Validate(now time.Time) error {
	own := borrow(&p)
	defer freeScratch(own)
	return named(own, checkAll(own, now))
}

func checkAll(p *Package, now time.Time) *Error {
	if err := checkForeign(p); err != nil {
		return err
	}
	if err := checkPackage(p); err != nil {
		return err
	}
	if p.Type == Broadcast && p.GroupSize() == 0 {
		return Errorf(CodeMissing, "target.agents", "is missing: a broadcast names the agents it goes to, or has members")
	}
	return checkTimes(p, now)
}

// packages are what checks look at: reflection wants it on the heap, and a package
// is a kilobyte.
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

// named is the error, if there is one, with the package that it is about.
func named(p *Package, err *Error) error {
	if err != nil {
		return err.of(p)
	}
	return nil
}

// ValidateOwn is Validate for packages that Handoff itself makes: returns,
// redrives, and the packages of a group's members, which are of type broadcast
// and have a target and a parent of their own. A deadline may have passed: what
// was promised before is submitted all the same, and then runs out of time.
// It takes the time as Validate does, so that the one can stand for the other.
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

// checkForeign refuses what others may not say.
func checkForeign(p *Package) *Error {
	if err := CheckBy("source", p.Source); err != nil {
		return err.(*Error)
	}
	switch {
	case p.Returned != nil:
		return Errorf(CodeInvalid, "returned", "is written by Handoff alone, when it delivers a return; leave it out")
	case p.Origin != "":
		return Errorf(CodeInvalid, "origin", "is written by Handoff alone, when a handoff is redriven; leave it out")
	}
	return nil
}

// packageChecks are made in this order, which is the order of the messages
// that a person who writes a first package wants to see. Validate looks at the
// deadline behind them.
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

// of names the package an error is about.
func (e *Error) of(p *Package) *Error {
	with := *e
	with.Source, with.Target = wirejson.Clip(p.Source), wirejson.Clip(p.TargetWords())
	return &with
}

// String names the target in a few words.
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
	case given == 0 && p.Type == Escalation: // then the source's escalates_to is asked
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
	if n := len(p.Target.Agents); n > AgentsMax {
		return Errorf(CodeTooLarge, "target.agents", "names %d agents, at most %d are allowed", n, AgentsMax)
	}
	seen := make(map[string]bool, len(p.Target.Agents))
	for i, agent := range p.Target.Agents {
		field := fmt.Sprintf("target.agents[%d]", i)
		if err := checkAgent(field, agent); err != nil {
			return err
		}
		if agent == p.Source {
			return Errorf(CodeConflict, field, "is the source itself; an agent cannot hand off to itself")
		}
		if seen[agent] {
			return Errorf(CodeConflict, field, "names %s a second time", agent)
		}
		seen[agent] = true
	}
	return nil
}

func checkTask(field string, t *Task) *Error {
	err := required("description", t.Description)
	if err == nil {
		err = checkName("id", t.ID)
	}
	if err == nil {
		err = checkName("type", t.Type)
	}
	if err != nil {
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
	if err := oneOf("type", p.Type, Types); err != nil {
		return err
	}
	if err := oneOf("trigger", p.Trigger, Triggers); err != nil {
		return err
	}
	if err := oneOf("priority", p.Priority, Priorities); err != nil {
		return err
	}
	return oneOf("audit.risk_level", p.Audit.RiskLevel, Risks)
}

// checkType checks what each type of handoff asks for.
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
			return Errorf(CodeMissing, "return.timeout_ms", "is missing: a delegation says how long it waits for its return")
		}
	case Escalation:
		if strings.TrimSpace(p.Audit.DecisionRationale) == "" {
			return Errorf(CodeMissing, "audit.decision_rationale", "is missing or empty: an escalation says why")
		}
		if p.Source == Human {
			return Errorf(CodeConflict, "source", "is %s, and no authority is above a person: an escalation goes up from an agent", Human)
		}
	}
	return nil
}

func checkTimes(p *Package, now time.Time) *Error {
	deadline := p.Constraints.Deadline
	if deadline.IsZero() {
		return nil
	}
	if !deadline.After(now) {
		return Errorf(CodePast, "constraints.deadline", "%s has passed; it is %s now", stamp(deadline), stamp(now))
	}
	if latest := now.Add(time.Duration(DeadlineMaxMS) * time.Millisecond); deadline.After(latest) {
		return Errorf(CodeInvalid, "constraints.deadline", "%s is more than %d days ahead", stamp(deadline), DeadlineMaxMS/day)
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
	if err := between("expectations.max_iterations", int64(e.MaxIterations), 0, IterationsMax); err != nil {
		return err
	}
	if err := checkAmount("constraints.budget", p.Constraints.Budget); err != nil {
		return err
	}
	if err := checkLimits(p); err != nil {
		return err
	}
	if err := oneOf("constraints.complexity", p.Constraints.Complexity, Complexities); err != nil {
		return err
	}
	if by := p.Constraints.ComplexityBy; by != "" {
		if p.Constraints.Complexity == "" {
			return Errorf(CodeConflict, "constraints.complexity_by", "names what gave a class, and there is none")
		}
		if err := oneOf("constraints.complexity_by", by, Classifiers); err != nil {
			return err
		}
	}
	if budget := p.AutonomyBudget; budget != nil {
		if err := checkAmount("autonomy_budget.amount", budget.Amount); err != nil {
			return err
		}
		if err := checkDeciders(budget.Deciders); err != nil {
			return err
		}
		return oneOf("autonomy_budget.max_risk", budget.MaxRisk, Risks)
	}
	return nil
}

// checkDeciders checks who may decide after a denial, each once.
func checkDeciders(names []string) *Error {
	const field = "autonomy_budget.deciders"
	if len(names) > DecidersMax {
		return Errorf(CodeTooLarge, field, "names %d agents, at most %d are allowed", len(names), DecidersMax)
	}
	for i, name := range names {
		at := fmt.Sprintf("%s[%d]", field, i)
		if err := checkID(at, name); err != nil {
			return err
		}
		if slices.Contains(names[:i], name) {
			return Errorf(CodeConflict, at, "names %s a second time", name)
		}
	}
	return nil
}

func checkRequirements(p *Package) *Error {
	if n := len(p.RequiredCapabilities); n > RequiredCapabilitiesMax {
		return Errorf(CodeTooLarge, "required_capabilities", "lists %d capabilities, at most %d are allowed", n, RequiredCapabilitiesMax)
	}
	for i, c := range p.RequiredCapabilities {
		field := fmt.Sprintf("required_capabilities[%d]", i)
		if err := checkID(field+".id", c.ID); err != nil {
			return err
		}
		if err := checkProficiency(field+".min_proficiency", c.MinProficiency); err != nil {
			return err
		}
	}
	return nil
}

func checkWellFormed(p *Package) *Error {
	if err := wellFormed(packageShape, p); err != nil {
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
