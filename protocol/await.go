package protocol

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
)

// Awaits tells whether the result is no end: its command hands off, and waits for what comes
// back.
func (r *Result) Awaits() bool { return r.Command != nil && isGiven(r.Command.Await) }

// SaysMore tells whether the result has more than a command and what it took.
func (r *Result) SaysMore() bool {
	return len(r.Body) > 0 || r.Summary != "" || r.Notes != "" || len(r.Variables) > 0 || !r.Artifacts.IsZero()
}

// isGiven tells whether a field is there, and not null.
func isGiven(raw json.RawMessage) bool { c := first(raw); return c != 0 && c != 'n' }

// validateAwait checks what a command waits for.
func (c *Command) validateAwait() *Error {
	if err := oneOf("command.for", c.For, Aggregations); err != nil {
		return err
	}
	switch {
	case !isGiven(c.Await) && c.For != "":
		return Errorf(CodeMissing, "command.await", "is missing: command.for says how many of them are waited for")
	case !isGiven(c.Await):
		return nil
	case isGiven(c.Goto):
		return Errorf(CodeConflict, "command.await", "does not go with command.goto: a result waits, or hands on")
	case isGiven(c.Update):
		return Errorf(CodeConflict, "command.await", "does not go with command.update: each entry is a package of its own")
	}
	entries, err := c.awaited()
	if err == nil && len(entries) > 0 && c.For != "" && c.For != AggregateAll {
		_, err = membersOf(entries, c.For)
	}
	return err
}

// awaited reads what a command waits for: a package for each.
func (c *Command) awaited() ([]Package, *Error) {
	const field = "command.await"
	var r updateReader
	list := r.list(field, c.Await)
	switch {
	case r.err != nil:
		return nil, Errorf(CodeInvalid, field, "must be a list of objects with agent and task")
	case len(list) == 0:
		return nil, Errorf(CodeMissing, field, "is empty: it names what is waited for")
	case len(list) > AwaitMax:
		return nil, Errorf(CodeTooLarge, field, "has %d entries, at most %d are allowed", len(list), AwaitMax)
	}
	packages := make([]Package, len(list))
	for i, raw := range list {
		var err *Error
		if packages[i], err = readAwaited(fmt.Sprintf("%s[%d]", field, i), raw); err != nil {
			return nil, err
		}
	}
	return packages, nil
}

// readAwaited reads a package that has short forms: agent and capability for those of target, and a
// text for the task.
func readAwaited(field string, raw json.RawMessage) (Package, *Error) {
	if first(raw) != '{' {
		return Package{}, Errorf(CodeInvalid, field, "must be an object with agent and task")
	}
	var r updateReader
	entry := r.object(field, raw)
	agent, capability, task := entry["agent"], entry["capability"], entry["task"]
	delete(entry, "agent")
	delete(entry, "capability")
	isText := first(task) == '"'
	if isText {
		delete(entry, "task")
	}
	body, err := json.Marshal(entry)
	if err != nil || r.err != nil {
		return Package{}, cmp.Or(r.err, Errorf(CodeMalformed, field, "cannot be read: %v", err))
	}
	pkg, err := DecodePackage(body)
	if err != nil {
		e := *err.(*Error)
		e.below(field)
		return Package{}, &e
	}
	if isText {
		pkg.Task.Description = r.text(field+".task", task)
	}
	if agent != nil || capability != nil {
		if pkg.Target.given() > 0 || agent != nil && capability != nil {
			return Package{}, Errorf(CodeConflict, field+".agent", "does not go with target, or with capability: give one of them")
		}
	}
	if agent != nil {
		pkg.Target.Agent = bareName(r.text(field+".agent", agent))
		r.keep(checkSpelled(field+".agent", pkg.Target.Agent))
	}
	if capability != nil {
		pkg.Target.Capability = r.text(field+".capability", capability)
		r.keep(checkID(field+".capability", pkg.Target.Capability))
	}
	switch {
	case r.err != nil:
	case pkg.Target.given() == 0 && len(pkg.Members) == 0:
		return pkg, Errorf(CodeMissing, field+".agent", "is missing: the agent that is asked, or a capability")
	case !slices.Contains([]Type{"", Delegation, Broadcast}, pkg.Type):
		return pkg, Errorf(CodeConflict, field+".type", "is %s; what is waited for is a delegation, or a broadcast", pkg.Type)
	}
	return pkg, r.err
}

// membersOf makes one group of what is waited for: it ends as soon as its outcome is certain,
// and the rest is cancelled.
func membersOf(entries []Package, mode Aggregation) (Package, *Error) {
	group := Package{Type: Broadcast, Return: &ReturnProtocol{Aggregation: mode, CancelRest: true}}
	for i, e := range entries {
		member := Member{Target: e.Target, Reason: e.Reason, Priority: e.Priority,
			Variables: e.Context.Variables, Artifacts: e.Context.Artifacts}
		if task := e.Task; task.Description != "" {
			member.Task = &task
		}
		e.Target, e.Reason, e.Priority, e.Task = Target{}, "", "", Task{}
		e.Context.Variables, e.Context.Artifacts = nil, Artifacts{}
		if !reflect.ValueOf(e).IsZero() || member.Target.Agents != nil {
			return group, Errorf(CodeConflict, fmt.Sprintf("command.await[%d]", i),
				"has more than a member of a group has: for %s, an entry is of agent (or target), task, reason, priority, and context.variables and context.artifacts", mode)
		}
		group.Members = append(group.Members, member)
	}
	return group, nil
}

// Await makes the packages that a result's command waits for, of the work that pkg asked from
// for. For all of them, each is a delegation; for any, or a majority, they are the members of
// one group, of the same words, which cancels the rest. pkg and result are validated; the
// packages are neither normalized nor validated. The error is a *Error whose field begins with
// command.await.
//
// An entry is a package, whose source, parent and key Handoff fills in, with short forms: agent and
// capability for those of target, and a text for the task. Its type is delegation, or broadcast where it
// names several; a delegation waits for AwaitTimeoutMS where it does not say for how long. Without
// a task it is asked for that of pkg. None sends a return of its own.
func Await(pkg Package, from string, result Result) ([]Package, error) {
	packages, err := result.Command.awaited()
	if err != nil {
		return nil, err
	}
	if mode := result.Command.For; mode != "" && mode != AggregateAll {
		group, err := membersOf(packages, mode)
		if err != nil {
			return nil, err
		}
		packages = []Package{group}
	}
	for i := range packages {
		p := &packages[i]
		p.Reason = cmp.Or(p.Reason, "asked by "+from)
		if p.Task.Description == "" {
			p.Task = pkg.Task
		}
		if p.Type == "" && p.GroupSize() > 0 {
			p.Type = Broadcast
		}
		p.Type = cmp.Or(p.Type, Delegation)
		own := ReturnProtocol{}
		if p.Return != nil {
			own = *p.Return
		}
		own.Wait = WaitBlock
		if p.Type == Delegation {
			own.Expected, own.TimeoutMS = true, cmp.Or(own.TimeoutMS, AwaitTimeoutMS)
		}
		p.Return = &own
	}
	return packages, nil
}
