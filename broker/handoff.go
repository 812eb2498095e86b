package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// Child is a handoff that a holder hands off. What it hands off from within its work is found by the key
// of the package, or by the package itself: a second attempt that asks for the same goes on with
// what the first one handed off. N is the ordinal of one that goes with the result; one that is
// negative has it found by its key as well.
type Child struct {
	N       int
	Package protocol.Package
	// Nth is which one it is of equal packages without a key that this attempt hands off from within
	// its work, from 1, so that a call that is repeated finds it; 0 is the next one.
	Nth int
	// AtOnce begins a sequential one at once, and not when this handoff completes. Waits records that
	// the program waits for it in its slot.
	AtOnce, Waits bool

	onChain bool // the chain goes on with it
}

// keyed is a child by its key: its ordinal, and the short form of its key.
type keyed struct {
	Child
	key  protocol.ChildKey
	cell string
}

// HandOff hands off work from within the work: the child is recorded under this holder's fence, then
// submitted. It returns the child's ticket. A package with a key stands for one child of this handoff;
// without one, an attempt that asks so often for an equal package gets as many, and those that an
// earlier attempt handed off first. Source and parent of pkg are filled in, and what it takes
// over from this handoff (Package.Inherit). A *protocol.Error says what is wrong
// with the package.
//
// A sequential one begins when this handoff completes: until then it awaits its
// source, and it is dropped where this attempt ends in another way. The next attempt hands off
// another one then.
func (c *Claim) HandOff(ctx context.Context, child Child) (ticket string, err error) {
	key, err := protocol.ChildKeyOf(child.Package)
	if err != nil {
		return "", err
	}
	key.Nth = child.Nth
	if n := len(key.Given); n > protocol.KeyBytesMax {
		return "", protocol.Errorf(protocol.CodeTooLarge, "key", "%s", protocol.OverSize(n, protocol.KeyBytesMax))
	}
	for {
		n, cell, made := lifecycle.FindChild(c.State(), key)
		if made {
			return c.adopt(ctx, n, key)
		}
		child.N = n
		next, err := c.prepareChild(ctx, keyed{child, key, cell}, atOnce)
		if err != nil {
			return "", err
		}
		all, taken := []handedOff{next}, false
		err = c.appendReport(ctx, func(s protocol.State, now time.Time) (lifecycle.Step, error) {
			if err := c.checkAccepted(s); err != nil {
				return lifecycle.Step{}, err
			}
			if at, _, there := lifecycle.FindChild(s, key); there || at != n { // another process of this holder was first
				taken = true
				return lifecycle.Step{}, nil
			}
			next.next.By = c.Holder.ID
			step, err := lifecycle.HandOff(s, next.next, now)
			asRecorded(all, step)
			return step, err
		})
		switch {
		case err != nil:
			return "", c.recordBar(ctx, next.next, err)
		case !taken:
			// Only this one: to look after all of them at each would be quadratic. And
			// recorded is handed off, whichever process submits it.
			c.submitChildren(ctx, all)
			return next.next.Ticket, nil
		}
		head, err := c.b.Head(ctx, c.Ticket, c.lastHead().Seq+1)
		if err != nil {
			return "", err
		}
		c.setHead(&head)
	}
}

// adopt goes on with a child that was handed off before, by an earlier attempt perhaps.
func (c *Claim) adopt(ctx context.Context, n int, key protocol.ChildKey) (ticket string, err error) {
	if err := c.checkSameKey(ctx, n, key); err != nil {
		return "", err
	}
	err = c.appendReport(ctx, func(s protocol.State, now time.Time) (lifecycle.Step, error) {
		if err := c.checkAccepted(s); err != nil {
			return lifecycle.Step{}, err
		}
		return lifecycle.Adopt(s, c.Holder.ID, []int{n}, now)
	})
	if err != nil {
		return "", err
	}
	s := c.State()
	ticket = s.ChildTicket(n)
	there, err := c.b.exists(ctx, ticket)
	if err == nil && !there { // its submission was interrupted
		_, err = c.b.EnsureChildren(ctx, *c.lastHead())
	}
	return ticket, err
}

// checkSameKey refuses a key that was used for another package under this handoff.
func (c *Claim) checkSameKey(ctx context.Context, n int, key protocol.ChildKey) error {
	if key.Given == "" {
		return nil
	}
	all, err := c.HandedOff(ctx)
	if err != nil {
		return err
	}
	for _, child := range all {
		if child.N == n && (child.Key != key.Given || child.written != key.Written) {
			return protocol.Errorf(protocol.CodeConflict, "key", "the key %q was used under %s for another package (ticket %s)", key.Given, c.Ticket, child.Ticket)
		}
	}
	return nil
}

// CheckChild says what HandOff and Complete would say of a child's package.
// Nothing is written.
func (c *Claim) CheckChild(ctx context.Context, child Child) error {
	made, err := c.byKey([]Child{child})
	if err != nil {
		return err
	}
	in, err := c.preparedChild(ctx, made[0])
	if err != nil {
		return err
	}
	_, directory, err := c.b.decideFirstAppend(ctx, in)
	if head := c.lastHead(); err == nil && head.State.Fence != 0 {
		_, err = lifecycle.HandOff(head.State, newNext(in, made[0], directory), c.b.decisionTime(head))
	}
	return err
}

// byKey finds those children whose ordinal is negative by their keys. Each of them is a new one: they go
// with the result, and the others of this handoff do not.
func (c *Claim) byKey(children []Child) (all []keyed, err error) {
	s, cells := c.State(), []string(nil)
	free := 0
	if s.Children != nil {
		free = s.Children.Count
	}
	for _, child := range children {
		made := keyed{Child: child}
		if child.N < 0 {
			if made.key, err = protocol.ChildKeyOf(child.Package); err != nil {
				return nil, err
			}
			made.key.Given = ""
			made.cell, cells = lifecycle.NewChild(s, made.key, cells)
			made.N = free
		}
		free = max(free, made.N+1)
		all = append(all, made)
	}
	return all, nil
}

// preparedChild makes a child's package ready to be submitted.
func (c *Claim) preparedChild(ctx context.Context, child keyed) (Prepared, error) {
	if child.N < 0 || child.N >= protocol.ChildrenMax {
		return Prepared{}, protocol.Errorf(protocol.CodeTooLarge, "children", "a handoff hands off at most %d others, with the ordinals 0 to %d; this is %d", protocol.ChildrenMax, protocol.ChildrenMax-1, child.N)
	}
	own, err := c.ownPackage()
	if err != nil {
		return Prepared{}, err
	}
	pkg := child.Package
	pkg.Source, pkg.Parent, pkg.Key = c.Agent, c.Ticket, ""
	head := c.lastHead()
	pkg.Inherit(protocol.Parent{State: head.State, Package: own}, c.b.decisionTime(head))
	if child.onChain {
		if err := c.adaptMode(ctx, &own, &pkg); err != nil {
			return Prepared{}, err
		}
	}
	if pkg.Workspace == "" && head.State.Workspace == "" && pkg.Context.WorkflowID != "" { // it joins as a submission does
		open, err := c.b.workspaceOpen(ctx, pkg.Context.WorkflowID)
		if err != nil {
			return Prepared{}, err
		}
		if open {
			pkg.Workspace = pkg.Context.WorkflowID
		}
	}
	in, err := c.b.Prepare(ctx, pkg)
	if child.onChain && pkg.Context.Previous != nil && errors.Is(err, &protocol.Error{Code: protocol.CodeTooLarge, Field: "package"}) {
		pkg.Context.Previous = nil // it must not be the reason that finished work is refused
		in, err = c.b.Prepare(ctx, pkg)
	}
	if err != nil {
		return Prepared{}, err
	}
	if in.summary.Workspace != head.State.Workspace {
		if err := c.b.enterWorkspace(ctx, in.summary.Workspace, c.Agent, c.Ticket); err != nil {
			return Prepared{}, err
		}
	}
	in.Ticket = protocol.ChildTicketN(c.Ticket, child.N)
	if child.cell != "" {
		in.Ticket = protocol.ChildTicket(c.Ticket, child.cell)
	}
	in.context = in.Package.ContextHash()
	in.summary.Lineage = lifecycle.LineageOf(head.State.Lineage, in.summary.Type, c.Agent, in.summary.TargetWords(), in.context)
	in.summary.Excluded, err = c.excludedAgents(in)
	return in, err
}

// recordBar records that a hand-off was refused by a limit or a rule, and returns the refusal.
func (c *Claim) recordBar(ctx context.Context, next lifecycle.Next, err error) error {
	var refused *protocol.Error
	if !errors.As(err, &refused) || !lifecycle.Bars(refused.Code) {
		return err
	}
	recorded := c.appendReport(ctx, func(s protocol.State, now time.Time) (lifecycle.Step, error) {
		return lifecycle.RecordBar(s, c.Holder.ID, next, refused, now)
	})
	if recorded != nil {
		c.b.log.Warn("refused hand-off not recorded", "ticket", c.Ticket, "code", refused.Code, "err", recorded)
	}
	return err
}

// excludedAgents are the agents that a child is not offered to, because they refused this
// handoff. The tasks are compared as they are stored.
func (c *Claim) excludedAgents(in Prepared) ([]string, error) {
	parent := c.State()
	if len(lifecycle.Refusers(parent)) == 0 {
		return nil, nil
	}
	of, err := protocol.DecodePackage(c.Package)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeMalformed, "package", "%v", err)
	}
	child, err := protocol.DecodePackage(in.Body)
	if err != nil {
		return nil, err
	}
	return lifecycle.Inherit(parent, in.summary, sameTask(of.Task, child.Task)), nil
}

// sameTask tells whether two packages ask for the same.
func sameTask(a, b protocol.Task) bool {
	return a.Type == b.Type && a.Description == b.Description && slices.Equal(a.Requirements, b.Requirements)
}

// handedOff is the event that records a child, and what its submission needs
// beside that.
type handedOff struct {
	next      lifecycle.Next
	pkg       protocol.Package
	when      handingOff
	directory *lifecycle.Directory // in which it was checked
}

// handingOff is when a child is handed off.
type handingOff int

const (
	atOnce     handingOff = iota // from within the work
	awaited                      // by a result that waits for it
	withResult                   // by the result that closes this handoff
)

// prepareChild checks a child's package and makes the event that records it. One that a result
// hands off and that no agent can be given is recorded, too, as undelivered, since the work for
// it is done.
func (c *Claim) prepareChild(ctx context.Context, child keyed, when handingOff) (handedOff, error) {
	in, err := c.preparedChild(ctx, child)
	if err != nil {
		return handedOff{}, err
	}
	if when != atOnce { // promised with the result: it waits for a breaker, and is not refused
		in.summary.OnOpen = protocol.OnOpenWait
	}
	_, directory, err := c.b.decideFirstAppend(ctx, in)
	undelivered := ""
	var refused, barred *protocol.Error
	switch {
	case err == nil:
	case errors.As(err, &refused) && lifecycle.Bars(refused.Code):
		barred = refused
	case when != atOnce && refused != nil:
		undelivered, directory = protocol.CutText(withoutParties(*refused), protocol.FailureBytesMax), nil
	default:
		return handedOff{}, err
	}
	packed, err := c.b.storePackage(ctx, in)
	if err != nil {
		return handedOff{}, err
	}
	next := newNext(in, child, directory)
	if barred == nil {
		if barred, err = c.reserve(ctx, in, next); err != nil {
			return handedOff{}, err
		}
	}
	if when != atOnce {
		source, _, err := c.b.recentSource(ctx, in.summary) // it was just read
		if err != nil {
			return handedOff{}, err
		}
		next.FailBarred = source != nil && source.OnBarred == protocol.BarredFail
	}
	next.Refused, next.Fence, next.After, next.Undelivered = barred, c.Fence(), when != withResult && !child.AtOnce && in.Package.Type == protocol.Sequential, undelivered
	next.Digest, next.Package, next.Blob, next.Trace = packed.digest, packed.body, packed.blob, childSpan(ctx, c.State(), in.summary.Trace)
	return handedOff{next: next, pkg: in.Package, when: when, directory: directory}, nil
}

// newNext is a child as the core decides about it.
func newNext(in Prepared, child keyed, directory *lifecycle.Directory) lifecycle.Next {
	asks := lifecycle.AskedLimits(in.summary, directory)
	if child.onChain { // what it says of limits is what the package before it said
		asks = nil
	}
	return lifecycle.Next{Asks: asks, Members: in.Package.GroupSize(), HandedOff: protocol.HandedOff{
		N: child.N, Goto: child.onChain, Returns: in.summary.Wait == protocol.WaitBlock, Waits: child.Waits, Ticket: in.Ticket, Type: in.Package.Type, Target: in.summary.TargetWords(),
		Key: child.key.Given, Cell: child.cell, Written: child.key.Written, Excluded: in.summary.Excluded, Hash: in.context}}
}

// withoutParties is an error without the agents that it is between.
func withoutParties(e protocol.Error) string {
	e.Source, e.Target = "", ""
	return e.Error()
}

// childrenWithResult are the children that go with a result: those given, and those that
// its command asks for.
func (c *Claim) childrenWithResult(ctx context.Context, result protocol.Result, children []Child) ([]handedOff, error) {
	taken := protocol.Bits("")
	if made := c.lastHead().State.Children; made != nil {
		taken = made.Made
	}
	var next []Child
	for _, child := range children {
		if child.N < 0 || !taken.Has(child.N) {
			next = append(next, child)
		}
	}
	given, err := c.byKey(next)
	if err != nil {
		return nil, err
	}
	followed, err := c.childrenOfCommand(ctx, result, taken, given)
	if err != nil {
		return nil, err
	}
	if len(given)+len(followed) > HandedOffAtOnceMax {
		return nil, protocol.Errorf(protocol.CodeTooLarge, "children", "%d handoffs are handed off with one result, at most %d are allowed; a list of agents in one command is one group", len(given)+len(followed), HandedOffAtOnceMax)
	}
	var all []handedOff
	for _, child := range append(given, followed...) {
		if taken.Has(child.N) {
			return nil, protocol.Errorf(protocol.CodeConflict, "children", "two have the ordinal %d", child.N)
		}
		made, err := c.prepareChild(ctx, child, withResult)
		if err != nil {
			return nil, err
		}
		taken = taken.With(child.N)
		all = append(all, made)
	}
	return all, boundHandOffs(ctx, c.b, all)
}

// childrenOfCommand makes the children that a result's command asks for, or a rule of the
// package, with ordinals that no other has.
func (c *Claim) childrenOfCommand(ctx context.Context, result protocol.Result, taken protocol.Bits, beside []keyed) ([]keyed, error) {
	if rules := result.Command == nil && protocol.MayHaveRules(c.Package); !rules && (result.Command == nil || len(result.Command.Goto) == 0) {
		return nil, nil
	}
	pkg, err := c.ownPackage()
	if err != nil {
		return nil, err
	}
	if len(result.Body) > protocol.PreviousBodyBytesMax { // the digest of it is that of what can be read
		if result.Body, err = c.b.storedResultBody(ctx, result); err != nil {
			return nil, err
		}
	}
	pkg.Context.AddDecisions(c.LastState().Decisions)
	packages, err := protocol.Continue(pkg, c.Agent, c.Ticket, result)
	if err != nil {
		return nil, err
	}
	for _, child := range beside {
		taken = taken.With(child.N)
	}
	var all []keyed
	n := 0
	for _, pkg := range packages {
		for taken.Has(n) {
			n++
		}
		if err := c.respell(ctx, "command.goto", &pkg); err != nil {
			return nil, err
		}
		all = append(all, keyed{Child: Child{N: n, Package: pkg, onChain: true}})
		n++
	}
	return all, nil
}

// ownPackage is the package of this handoff, with the variables of the answers.
func (c *Claim) ownPackage() (protocol.Package, error) {
	pkg, err := protocol.DecodePackage(c.packageAsGiven())
	if err != nil {
		return pkg, protocol.Errorf(protocol.CodeMalformed, "package", "%v", err)
	}
	pkg.Supplement(c.Answers)
	return pkg, nil
}

// HandedOffAtOnceMax is how many handoffs one result hands off; a group counts as one.
const HandedOffAtOnceMax = 64

// boundHandOffs keeps an append under what the engine takes in a message:
// packages that together are too large go into blobs.
func boundHandOffs(ctx context.Context, b *Broker, all []handedOff) error {
	room := protocol.InlineBytesMax
	for i := range all {
		event := &all[i].next
		if event.Blob != nil {
			continue
		}
		if len(event.Package) <= room {
			room -= len(event.Package)
			continue
		}
		blob, err := b.blobs.PutBlob(ctx, event.Package)
		if err != nil {
			return fmt.Errorf("store package: %w", err)
		}
		event.Package, event.Blob = nil, &blob
	}
	return nil
}

// submitChildren submits what an append has just recorded, and tells whether all of it was. A
// supervisor does what fails.
func (c *Claim) submitChildren(ctx context.Context, all []handedOff) (whole bool) {
	whole = true
	made := c.lastHead().State.Children
	for _, child := range all {
		if made == nil || !made.Made.Has(child.next.N) { // refused
			continue
		}
		parent := c.State()
		parent.Closed = child.when == withResult // as the append that recorded it left it
		_, err := c.b.submitChild(ctx, childOf(parent, &child.next.HandedOff, child.pkg, child.directory))
		if err != nil {
			whole = false
			c.b.log.Warn("child not submitted; a supervisor will", "ticket", c.Ticket, "child", child.next.Ticket, "err", err)
		}
	}
	return whole
}

// onlyChildren tells whether a closed handoff has no other open children than these.
func onlyChildren(s *protocol.State, these []handedOff) bool {
	return s.Closed && s.Children != nil && len(s.Children.Made.Without(s.Children.Closed).Numbers()) == len(these)
}

// followSource begins what awaited this handoff, which has completed. Should that
// fail, a supervisor does it.
func (c *Claim) followSource(ctx context.Context) {
	s := c.State()
	if !s.Closed || s.Children == nil {
		return
	}
	for _, n := range s.Children.After.Numbers() {
		child, err := c.b.Head(ctx, s.ChildTicket(n), 0)
		if err == nil {
			_, err = c.b.followSource(ctx, child, s)
		}
		if err != nil {
			c.b.log.Warn("what follows does not begin yet; a supervisor will see to it", "ticket", c.Ticket, "child", n+1, "err", err)
		}
	}
}

// Suspend releases the handoff until children that it handed off have closed. Then it is
// offered to this agent again, as the same attempt. Suspend reports false, and changes
// nothing, where the children are known to have closed already.
func (c *Claim) Suspend(ctx context.Context, children ...int) (suspended bool, err error) {
	err = c.appendReport(ctx, func(s protocol.State, now time.Time) (lifecycle.Step, error) {
		if err := c.checkAccepted(s); err != nil {
			return lifecycle.Step{}, err
		}
		step, err := lifecycle.Suspend(s, c.Holder.ID, children, now)
		suspended = len(step.Events) > 0
		return step, err
	})
	if err != nil || !suspended {
		return false, err
	}
	return true, c.finish(ctx)
}

// Escalate passes the handoff up the chain of authority. The rationale is
// required; the assessment is what was found out so far.
func (c *Claim) Escalate(ctx context.Context, rationale, assessment string) error {
	err := c.appendReportWith(ctx, c.b.fullDirectory, func(s protocol.State, d *lifecycle.Directory, now time.Time) (lifecycle.Step, error) {
		if err := c.checkAccepted(s); err != nil {
			return lifecycle.Step{}, err
		}
		return lifecycle.Escalate(s, d, c.Holder.ID, cutReason(rationale), cutReason(assessment), now)
	})
	if err != nil {
		return err
	}
	return c.finish(ctx)
}

// Answer is what an authority says to a handoff that was escalated to it: the
// handoff goes back to the agent that escalated it, with the answer.
func (c *Claim) Answer(ctx context.Context, answer protocol.Answer) error {
	answer.By = c.Agent
	if err := answer.Validate(); err != nil {
		return err
	}
	err := c.appendReportWith(ctx, c.b.fullDirectory, func(s protocol.State, d *lifecycle.Directory, now time.Time) (lifecycle.Step, error) {
		answer.Question = s.EscalationQuestion // the fence is of this one
		return lifecycle.Answer(s, d, answer, now)
	})
	if err != nil {
		return err
	}
	return c.finish(ctx)
}

// RollBack returns the handoff to its source: a rollback. partial is what there
// is of a result; nil is nothing. Where the lease is lost it is kept in the history (LateResults).
func (c *Claim) RollBack(ctx context.Context, reason string, partial *protocol.Result) error {
	body := protocol.RolledBack{Reason: cutReason(reason)}
	if partial != nil {
		var err error
		if body.Result, body.Blob, err = c.storePartial(ctx, partial); err != nil {
			return err
		}
		if body.Usage, err = c.price(ctx, partial.Usage); err != nil {
			return err
		}
	}
	err := c.appendReportWith(ctx, c.b.sourceAgent, func(s protocol.State, d *lifecycle.Directory, now time.Time) (lifecycle.Step, error) {
		event := body
		event.By = c.Holder.ID
		return lifecycle.RollBackHeld(s, d, event, now)
	})
	if errors.Is(err, ErrLeaseLost) && partial != nil { // its end was forced meanwhile
		err = c.resultAfterLoss(ctx, parked(*partial, body.Result, body.Blob), err)
	}
	if err != nil {
		return err
	}
	return c.finish(ctx)
}
