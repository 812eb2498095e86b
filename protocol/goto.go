package protocol

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
)

// Ends are the names that end a chain instead of handing off.
// No agent of such a name can be reached by a command.
var Ends = []string{"END", "__end__"}

// Continue makes the package that a result's command asks for: none where it has
// no command, no goto, or one that ends the chain; else exactly one. Where the result has no
// command, the package's rules for what follows make it (NextRule). pkg is what the work was done for, with the
// variables that answers have added; from is the agent that did it, ticket its
// handoff, and result what it handed in, validated. The package is neither
// normalized nor validated, and what is in pkg and result is shared, not copied.
//
// goto says to whom:
//
//   - a name, or one {agent, update}: a sequential handoff to it;
//   - a list of names: a broadcast of one package to them (target.agents), also
//     where it is a list of one;
//   - a list with at least one {agent, update}: a group, a member for each entry.
//     An agent may come twice.
//
// An object may have capability in place of agent: it goes to an agent that has it. A name may be
// spelled as models do: see Command.Targets and lifecycle.Directory.Spelled.
//
// An end in a list is passed over: it ends a branch, not the others.
//
// The package has from as its source, ticket as its parent, and the trigger
// task_completion. It carries on priority, the rules for what follows, constraints (the deadline
// is for Inherit), policy (apart from what that says of returns), audit, autonomy
// budget, task id, and of the context all but the locks of from on files in progress. Variables are pkg's, then the
// result's, then the update's; artifacts likewise, merged as Artifacts.With does.
// The summary is the result's, else pkg's, and the previous result is this one
// alone (Previous). How much of the conversation goes on,
// history_transfer says (CutConversation); where it has no mode that is full for an escalation,
// else relevant_only. The key, the return protocol, required
// capabilities and all expectations stay behind: they were about this result. So
// do type and requirements of the task, where the update describes another.
//
// update is an object. It is applied to the whole package; that of an entry of a
// list to its member. These fields have a meaning, all others become variables:
//
//	reason                                    reason; default "handed on by FROM"
//	next_task, task, task_description,
//	context.task_description                  task.description, the first of them that is given; an object is the whole task
//	context.artifacts_created                 context.artifacts: paths, or artifacts
//	context.previous_agent, context.completed nothing: source and trigger say it
//	artifacts                                 context.artifacts, a list or a map
//	workflow_state.phase, next_phase          context.phase, context.next_phase
//	workflow_state.completed_steps,
//	workflow_state.remaining_steps            the same of context, in place of what was there
//	metrics                                   laid over context.metrics
//	decisions                                 added to context.decisions: words, or decisions
//
// Other fields of context and of workflow_state become variables too, and so do
// second descriptions of the task, and workflow_state, metrics and decisions of
// an entry's update, since a member has no place of its own for them. A known
// field that is null is absent.
//
// The error is a *Error whose field begins with command: CodeConflict for the
// worker's own agent and for a name given twice, CodeInvalid for a field of an
// update that is of the wrong kind, and what Command.Targets refuses.
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
	next.CutConversation() // by the task that the update describes
	return []Package{next}, nil
}

// address sends the package where a command says, with what it says to each.
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

// oneForAll makes one package to several agents of members that differ in
// nothing but their agents.
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

// namesOnly tells whether a list in Goto holds nothing but names.
func (c Command) namesOnly() bool {
	var list []json.RawMessage
	if err := json.Unmarshal(c.Goto, &list); err != nil {
		return false
	}
	return !slices.ContainsFunc(list, func(raw json.RawMessage) bool { return first(raw) == '{' })
}

// carryOn is the package that follows on pkg, without a target and before any
// update.
func carryOn(pkg Package, from, ticket string, result Result) Package {
	next := Package{
		Trigger: TriggerTaskCompletion, Source: from, Reason: "handed on by " + from, Priority: pkg.Priority, Parent: ticket,
		Task: pkg.Task, Context: pkg.Context, Constraints: pkg.Constraints,
		AutonomyBudget: pkg.AutonomyBudget, Audit: pkg.Audit, Policy: pkg.Policy, Next: pkg.Next,
	}
	next.Constraints.Deadline = Time{} // that of the state may be another: Inherit
	next.Policy.ReturnTimeoutMS, next.Policy.OnReturnTimeout = nil, nil
	if pkg.Returned != nil { // that a return waits for its agent alone is its own
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
