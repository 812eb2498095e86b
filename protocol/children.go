package protocol

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/internal/wirejson"
)

// A child that was handed off during the work is recognized by its key: the key of its package, or
// else the digest of the package and its position among equal ones of the attempt.

// childCell is how many characters of the hash of a key the state keeps per child.
const childCell = 8

// noCell fills the place of a child that has no key, because a result handed it off.
const noCell = "........"

// ChildKey identifies a package that was handed off under a handoff.
type ChildKey struct {
	Given   string // the key of the package; if empty, its digest counts
	Written string // the digest of the package as it was written
	Nth     int    // position among equal packages of the attempt, from 1; 0: the next
}

// ChildKeyOf returns the key of a package as written, before it inherits from its parent. Times,
// the trace, the start and the resolved deadline do not count.
func ChildKeyOf(p Package) (ChildKey, error) {
	key := ChildKey{Given: p.Key}
	p.Key, p.Source, p.Parent, p.CreatedAt, p.StartAt, p.Constraints.Deadline = "", "", "", Time{}, Time{}, Time{}
	p.TraceParent, p.TraceState, p.Context.TraceID = "", "", ""
	body, err := EncodePackage(p)
	if err != nil {
		return key, err
	}
	sum := sha256.Sum256(body)
	key.Written = hex.EncodeToString(sum[:16])
	return key, nil
}

// Cell returns the short form of a key, which the state of the parent keeps. repeat counts the
// children with the same key.
func (k ChildKey) Cell(repeat int) string {
	name := "written\x00" + k.Written
	if k.Given != "" {
		name = "key\x00" + k.Given
	}
	sum := sha256.Sum256([]byte(name + "\x00" + strconv.Itoa(repeat)))
	return base64.RawURLEncoding.EncodeToString(sum[:childCell*6/8])
}

// ChildTicket returns the ticket of a child, derived from its parent and the short form of its key.
func ChildTicket(parent, cell string) string {
	return uuid.NewSHA1(ticketSpace, []byte(parent+"\x00child\x00"+cell)).String()
}

// cell returns the short form of a child's key; empty if it has none.
func (c *Children) cell(n int) string {
	if c == nil || n < 0 || (n+1)*childCell > len(c.Keys) {
		return ""
	}
	if cell := c.Keys[n*childCell : (n+1)*childCell]; cell != noCell {
		return cell
	}
	return ""
}

// ByCell returns the ordinal of the child with the short form of a key.
func (c *Children) ByCell(cell string) (n int, ok bool) {
	if c == nil {
		return 0, false
	}
	for n := range len(c.Keys) / childCell {
		if c.Keys[n*childCell:(n+1)*childCell] == cell {
			return n, true
		}
	}
	return 0, false
}

// SetCell records the short form of the key of a child.
func (c *Children) SetCell(n int, cell string) {
	if missing := n - len(c.Keys)/childCell; missing > 0 {
		c.Keys += strings.Repeat(noCell, missing)
	}
	c.Keys = c.Keys[:n*childCell] + cell + c.Keys[min((n+1)*childCell, len(c.Keys)):]
}

// ChildTicket returns the ticket of a child by its ordinal.
func (s *State) ChildTicket(n int) string {
	if cell := s.Children.cell(n); cell != "" {
		return ChildTicket(s.Ticket, cell)
	}
	return ChildTicketN(s.Ticket, n)
}

// Awaits reports whether the result only suspends the work: its command hands off, and waits for
// the ends.
func (r *Result) Awaits() bool { return r.Command != nil && isGiven(r.Command.Await) }

// SaysMore reports whether the result has more than a command and its usage.
func (r *Result) SaysMore() bool {
	return len(r.Body) > 0 || r.Summary != "" || r.Notes != "" || len(r.Variables) > 0 || !r.Artifacts.IsZero()
}

// isGiven reports whether a field is present, and not null.
func isGiven(raw json.RawMessage) bool { c := first(raw); return c != 0 && c != 'n' }

// validateAwait checks the awaited packages of a command.
func (c *Command) validateAwait() *Error {
	if err := oneOf("command.for", c.For, Aggregations); err != nil {
		return err
	}
	switch {
	case !isGiven(c.Await) && c.For != "":
		return Errorf(CodeMissing, "command.await", "is missing: command.for sets how many of them to wait for")
	case !isGiven(c.Await):
		return nil
	case isGiven(c.Goto):
		return Errorf(CodeConflict, "command.await", "does not go with command.goto: a result either waits or continues")
	case isGiven(c.Update):
		return Errorf(CodeConflict, "command.await", "does not go with command.update: each entry is a package of its own")
	}
	entries, err := c.awaited()
	if err == nil && len(entries) > 0 && c.For != "" && c.For != AggregateAll {
		_, err = membersOf(entries, c.For)
	}
	return err
}

// awaited reads the awaited packages of a command.
func (c *Command) awaited() ([]Package, *Error) {
	const field = "command.await"
	var r updateReader
	list := r.list(field, c.Await)
	switch {
	case r.err != nil:
		return nil, Errorf(CodeInvalid, field, "must be a list of objects with agent and task")
	case len(list) == 0:
		return nil, Errorf(CodeMissing, field, "is empty: it lists the packages to wait for")
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

// readAwaited reads a package that may have short forms: agent and capability for those of target,
// and a text for the task.
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
		return pkg, Errorf(CodeConflict, field+".type", "is %s; a result waits only for a delegation or a broadcast", pkg.Type)
	}
	return pkg, r.err
}

// membersOf combines the awaited packages into one group: it ends as soon as its outcome is
// certain, and the rest is cancelled.
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
				"has fields that a member of a group cannot have: for %s, an entry has agent (or target), task, reason, priority, context.variables and context.artifacts", mode)
		}
		group.Members = append(group.Members, member)
	}
	return group, nil
}

// Await returns the packages that a result's command waits for. from is the agent that did the work
// of pkg. To wait for all, each package is a delegation. To wait for any, or a majority, they are
// the members of one group, which cancels the rest. pkg and result are validated; the packages are
// neither normalized nor validated. The error is a *Error whose field begins with command.await.
//
// An entry is a package, whose source, parent and key Handoff fills in. It may have short forms:
// agent and capability for those of target, and a text for the task. Its type is delegation, or
// broadcast if it names several agents. A delegation without a timeout waits for awaitTimeoutMS.
// Without a task it gets that of pkg. None sends a return of its own.
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
			own.Expected, own.TimeoutMS = true, cmp.Or(own.TimeoutMS, awaitTimeoutMS)
		}
		p.Return = &own
	}
	return packages, nil
}

// A group is one handoff to several recipients: a package of type broadcast that names several
// agents, or that has members. It has a ticket, and so does each of its members.

// GroupSize returns how many members the group of this package has; 0 if it is not for a group. The
// package of a member may be its group's own (see MemberHandoff), so for an existing handoff use
// Summary.Aggregate.
func (p Package) GroupSize() int {
	if len(p.Members) > 0 {
		return len(p.Members)
	}
	return len(p.Target.Agents)
}

// MemberHandoff is one member of a group, before its submission.
type MemberHandoff struct {
	Ticket string // ChildTicketN of the group and N
	N      int    // its ordinal, from 0, in the order of the recipients
	Target Target // one agent, or one capability

	// Package is the package of the member. If the group sends one package to several agents
	// (target.agents) it is Shared: the group's package, byte for byte, so that a large one is stored
	// once, under one digest, for all recipients. Then only the Summary names the recipient. If the
	// members have different packages, it is the group's merged with the member's own, and is stored
	// separately.
	Package Package
	Shared  bool

	group string
	endOf ReturnScope
}

// MemberAt returns the member of a group with this ordinal, from 0. group is the group's ticket, p
// the normalized and validated package of the group. Nothing is checked again. The error is a
// *Error with CodeInvalid for an ordinal without a member.
//
// The package of a member that is not shared has the member's target, reason, priority and task if
// set, else the group's; the group's variables merged with the member's; the group's artifacts and
// the member's (merged by Artifacts.With). Its parent is the group. It has neither the group's key
// nor its return protocol: a member's end goes to its group.
func (p Package) MemberAt(group string, n int) (MemberHandoff, error) {
	if n < 0 || n >= p.GroupSize() {
		return MemberHandoff{}, Errorf(CodeInvalid, "members", "there is no member %d; the group %s has %d", n, wirejson.Clip(group), p.GroupSize())
	}
	m := MemberHandoff{Ticket: ChildTicketN(group, n), N: n, group: group}
	if p.Return != nil && p.Return.Of == ReturnOfHandoff {
		m.endOf = p.Return.Of
	}
	if len(p.Members) == 0 {
		m.Target, m.Package, m.Shared = Target{Agent: p.Target.Agents[n]}, p, true
		return m, nil
	}
	of := p.Members[n]
	m.Target, m.Package = of.Target, p
	own := &m.Package
	own.Type, own.Target, own.Parent = Broadcast, of.Target, group
	own.Key, own.Members, own.Return, own.Returned, own.Origin = "", nil, nil, nil, ""
	own.Reason, own.Priority = cmp.Or(of.Reason, p.Reason), cmp.Or(of.Priority, p.Priority)
	if of.Task != nil {
		own.Task = *of.Task
	}
	own.Context.Variables = overlay(p.Context.Variables, of.Variables)
	own.Context.Artifacts = p.Context.Artifacts.With(of.Artifacts)
	return m, nil
}

// Summarize returns the summary of a member: type broadcast, its own target, the group as its
// parent and group, its ordinal from 1. It expects no return. digest is that of its package as
// stored: the group's if it is Shared.
func (m MemberHandoff) Summarize(digest string) Summary {
	s := m.Package.Summarize(digest)
	s.Type, s.Target, s.Parent, s.Group, s.N = Broadcast, m.Target, m.group, m.group, m.N+1
	s.Aggregate, s.ReturnExpected, s.Wait, s.ReturnOf, s.Origin, s.EndOf = nil, false, "", "", "", m.endOf
	s.Overrides.ReturnTimeoutMS, s.Overrides.OnReturnTimeout = nil, nil
	return s
}

// TargetWords describes the recipients in a few words: "group of 5" for a group, whose recipients
// the summary does not list.
func (s Summary) TargetWords() string {
	if s.Aggregate != nil {
		return groupWords(s.Aggregate.Size)
	}
	return targetWords(s.Type, s.Target, s.Source)
}

// TargetWords describes the recipients in a few words. Unlike the summary's it names the first of
// several agents.
func (p Package) TargetWords() string {
	if len(p.Members) > 0 {
		return groupWords(len(p.Members))
	}
	return targetWords(p.Type, p.Target, p.Source)
}

func groupWords(size int) string { return fmt.Sprintf("group of %d", size) }

func targetWords(kind Type, target Target, source string) string {
	if kind == Escalation && target.given() == 0 {
		return "authority above " + source
	}
	return target.String()
}

// aggregate returns the group settings of a package; nil if it is not for a group.
func (p *Package) aggregate() *Aggregate {
	size := p.GroupSize()
	if size == 0 {
		return nil
	}
	a := &Aggregate{Size: size, Mode: AggregateAll}
	if p.Return == nil {
		return a
	}
	a.Mode, a.CancelRest = cmp.Or(p.Return.Aggregation, AggregateAll), p.Return.CancelRest
	if len(p.Return.From) == 0 {
		return a
	}
	counts := make(map[string]bool, len(p.Return.From))
	for _, agent := range p.Return.From {
		counts[agent] = true
	}
	var counted []int
	for n, agent := range p.Recipients() {
		if counts[agent] {
			counted = append(counted, n)
		}
	}
	if len(counted) < size { // otherwise all members count
		a.Counted = Bits("").With(counted...)
	}
	return a
}

// Recipients returns the agents of a group, in order; empty for a member that names a capability.
func (p *Package) Recipients() []string {
	if len(p.Members) == 0 {
		return p.Target.Agents
	}
	agents := make([]string, len(p.Members))
	for i, m := range p.Members {
		agents[i] = m.Target.Agent
	}
	return agents
}

// overlay returns the first map merged with the second. Neither is changed.
func overlay(under, over map[string]json.RawMessage) map[string]json.RawMessage {
	switch {
	case len(over) == 0:
		return under
	case len(under) == 0:
		return over
	}
	both := maps.Clone(under)
	maps.Copy(both, over)
	return both
}
