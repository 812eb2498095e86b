package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// Child is a handoff that a holder hands off. A child handed off during the work is found by the
// key of its package, or by the package itself: a second attempt that asks for the same package
// adopts the child of the first one. N is the ordinal of a child handed off with the result; if
// negative, that child is found by its key as well.
type Child struct {
	N       int
	Package protocol.Package
	// Nth numbers equal packages without a key that this attempt hands off during its work, from 1, so
	// that a repeated call finds its child; 0 is the next one.
	Nth int
	// AtOnce starts a sequential child at once, rather than when this handoff completes. Waits records
	// that the program waits for it in its slot.
	AtOnce, Waits bool

	onChain bool // the chain continues as this child
}

// keyed is a child with its ordinal and the short form of its key.
type keyed struct {
	Child
	key  protocol.ChildKey
	cell string
}

// HandOff hands off work during the work: the child is recorded under this holder's fence, then
// submitted. It returns the child's ticket. A package with a key names one child of this handoff;
// without a key, an attempt that asks several times for equal packages gets as many children, those
// of an earlier attempt first. HandOff sets Source and Parent of pkg, and the fields that it
// inherits from this handoff (Package.Inherit). A *protocol.Error has the fault of the package.
//
// A sequential child starts when this handoff completes: until then it awaits its source, and it is
// dropped if this attempt ends otherwise. The next attempt then hands off another child.
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
		err = c.reportWork(ctx, wantNothing, func(s protocol.State, q lifecycle.Query) (lifecycle.Step, error) {
			if at, _, there := lifecycle.FindChild(s, key); there || at != n { // another process of this holder was first
				taken = true
				return lifecycle.Step{}, nil
			}
			next.next.By = c.Holder.ID
			step, err := lifecycle.HandOff(s, next.next, q.Now)
			asRecorded(all, step)
			return step, err
		})
		switch {
		case err != nil:
			return "", c.recordBar(ctx, next.next, err)
		case !taken:
			// Only this child: checking all of them at each would be quadratic. Once recorded it is handed off;
			// any process may submit it.
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

// adopt continues with a child that was handed off before, perhaps by an earlier attempt.
func (c *Claim) adopt(ctx context.Context, n int, key protocol.ChildKey) (ticket string, err error) {
	if err := c.checkSameKey(ctx, n, key); err != nil {
		return "", err
	}
	err = c.reportWork(ctx, wantNothing, func(s protocol.State, q lifecycle.Query) (lifecycle.Step, error) {
		return lifecycle.Adopt(s, c.Holder.ID, []int{n}, q.Now)
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

// byKey assigns ordinals to those children whose ordinal is negative, by their keys. Each is a new
// child: they belong to the result, unlike the other children of this handoff.
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

// preparedChild prepares a child's package for submission.
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
	now := c.b.decisionTime(head)
	pkg.Inherit(protocol.Parent{State: head.State, Package: own}, now)
	if !pkg.StartAt.After(now) { // written by an earlier attempt or report, perhaps
		pkg.StartAt = time.Time{}
	}
	if child.onChain {
		if err := c.adaptMode(ctx, &own, &pkg); err != nil {
			return Prepared{}, err
		}
	}
	if pkg.Workspace == "" && head.State.Workspace == "" { // it joins like a submission
		if pkg.Workspace, err = c.b.workspaceOf(ctx, pkg.Context.WorkflowID); err != nil {
			return Prepared{}, err
		}
	}
	in, err := c.b.Prepare(ctx, pkg)
	if child.onChain && pkg.Context.Previous != nil && errors.Is(err, &protocol.Error{Code: protocol.CodeTooLarge, Field: "package"}) {
		pkg.Context.Previous = nil // it must not make finished work be refused
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
	recorded := c.appendReport(ctx, wantNothing, func(s protocol.State, q lifecycle.Query) (lifecycle.Step, error) {
		return lifecycle.RecordBar(s, c.Holder.ID, next, refused, q.Now)
	})
	if recorded != nil {
		c.b.log.Warn("refused hand-off not recorded", "ticket", c.Ticket, "code", refused.Code, "err", recorded)
	}
	return err
}

// excludedAgents returns the agents that a child is not offered to, because they refused this
// handoff, or have escalated it. The tasks are compared in their stored form.
func (c *Claim) excludedAgents(in Prepared) ([]string, error) {
	parent := c.State()
	if !lifecycle.Inherits(parent, in.summary) {
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

// sameTask reports whether two packages have the same task.
func sameTask(a, b protocol.Task) bool {
	return a.Type == b.Type && a.Description == b.Description && slices.Equal(a.Requirements, b.Requirements)
}

// handedOff is the event that records a child, and the further data that its submission needs.
type handedOff struct {
	next      lifecycle.Next
	pkg       protocol.Package
	when      handingOff
	directory *lifecycle.Directory // the directory of its check
}

// handingOff is when a child is handed off.
type handingOff int

const (
	atOnce     handingOff = iota // during the work
	awaited                      // by a result that waits for it
	withResult                   // by the result that closes this handoff
)

// prepareChild checks a child's package and returns the event that records it. If a result hands
// off a child that no agent can get, the child is recorded as undelivered, since the work for the
// result is done.
func (c *Claim) prepareChild(ctx context.Context, child keyed, when handingOff) (handedOff, error) {
	in, err := c.preparedChild(ctx, child)
	if err != nil {
		return handedOff{}, err
	}
	if when != atOnce { // announced with the result: it waits for a breaker, and is not refused
		in.summary.OnOpen = protocol.OnOpenWait
	}
	_, q, err := c.b.decideFirstAppend(ctx, in)
	directory, undelivered := q.Directory, ""
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
		source, _ := q.Agent(in.summary.Source)
		next.FailBarred = readsSource(in.summary) && source.RestrictsHandoffs() && source.OnBarred == protocol.BarredFail
	}
	next.Refused, next.Fence, next.After, next.Undelivered = barred, c.Fence(), when != withResult && !child.AtOnce && in.Package.Type == protocol.Sequential, undelivered
	next.Digest, next.Package, next.Blob, next.Trace = packed.digest, packed.body, packed.blob, childSpan(ctx, c.State(), in.summary.Trace)
	return handedOff{next: next, pkg: in.Package, when: when, directory: directory}, nil
}

// newNext returns a child in the form that the core decides about.
func newNext(in Prepared, child keyed, directory *lifecycle.Directory) lifecycle.Next {
	asks := lifecycle.AskedLimits(in.summary, directory)
	if child.onChain { // its limits repeat those of the previous package
		asks = nil
	}
	return lifecycle.Next{Asks: asks, Members: in.Package.GroupSize(), HandedOff: protocol.HandedOff{
		N: child.N, Goto: child.onChain, Returns: in.summary.Wait == protocol.WaitBlock, Waits: child.Waits, Ticket: in.Ticket, Type: in.Package.Type, Target: in.summary.TargetWords(),
		Key: child.key.Given, Cell: child.cell, Written: child.key.Written, Excluded: in.summary.Excluded, Hash: in.context}}
}

// withoutParties returns the text of an error without its source and target.
func withoutParties(e protocol.Error) string {
	e.Source, e.Target = "", ""
	return e.Error()
}

// childrenWithResult returns the children handed off with a result: those given, and those that its
// command names.
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
			return nil, protocol.Errorf(protocol.CodeConflict, "children", "two children have the ordinal %d", child.N)
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

// childrenOfCommand prepares the children that a result's command or a rule of the package names,
// with unused ordinals.
func (c *Claim) childrenOfCommand(ctx context.Context, result protocol.Result, taken protocol.Bits, others []keyed) ([]keyed, error) {
	if rules := result.Command == nil && protocol.MayHaveRules(c.Package); !rules && (result.Command == nil || len(result.Command.Goto) == 0) {
		return nil, nil
	}
	pkg, err := c.ownPackage()
	if err != nil {
		return nil, err
	}
	if len(result.Body) > protocol.PreviousBodyBytesMax { // the digest must be that of the redacted body, which readers see
		if result.Body, err = c.b.storedResultBody(ctx, result); err != nil {
			return nil, err
		}
	}
	pkg.Context.AddDecisions(c.LastState().Decisions)
	packages, err := protocol.Continue(pkg, c.Agent, c.Ticket, result)
	if err != nil {
		return nil, err
	}
	for _, child := range others {
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

// ownPackage returns the package of this handoff, with the variables of the answers.
func (c *Claim) ownPackage() (protocol.Package, error) {
	pkg, err := protocol.DecodePackage(c.packageAsGiven())
	if err != nil {
		return pkg, protocol.Errorf(protocol.CodeMalformed, "package", "%v", err)
	}
	pkg.Supplement(c.Answers)
	return pkg, nil
}

// HandedOffAtOnceMax is the most handoffs that one result may hand off; a group counts as one.
const HandedOffAtOnceMax = 64

// boundHandOffs keeps an append below the engine's limit for a message: packages that together are
// too large go into blobs.
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
		blob, err := b.engine.PutBlob(ctx, event.Package)
		if err != nil {
			return fmt.Errorf("store package: %w", err)
		}
		event.Package, event.Blob = nil, &blob
	}
	return nil
}

// submitChildren submits the children that an append has just recorded, and reports whether all
// were submitted. A supervisor submits the others.
func (c *Claim) submitChildren(ctx context.Context, all []handedOff) (whole bool) {
	whole = true
	made := c.lastHead().State.Children
	for _, child := range all {
		if made == nil || !made.Made.Has(child.next.N) { // refused
			continue
		}
		parent := c.State()
		parent.Closed = child.when == withResult // the state after the append that recorded it
		_, err := c.b.submitChild(ctx, childOf(parent, &child.next.HandedOff, child.pkg, child.directory))
		if err != nil {
			whole = false
			c.b.log.Warn("child not submitted; a supervisor will submit it", "ticket", c.Ticket, "child", child.next.Ticket, "err", err)
		}
	}
	return whole
}

// onlyChildren reports whether a closed handoff has no other open children than these.
func onlyChildren(s *protocol.State, these []handedOff) bool {
	return s.Closed && s.Children != nil && len(s.Children.Made.Without(s.Children.Closed).Numbers()) == len(these)
}

// followSource starts the children that awaited this handoff, which has completed. If that fails, a
// supervisor does it.
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
			c.b.log.Warn("child not started; a supervisor will start it", "ticket", c.Ticket, "child", n+1, "err", err)
		}
	}
}

// Suspend releases the handoff until its children have closed. It is then offered to this agent
// again, as the same attempt. Suspend reports false, and changes nothing, if the children are known
// to have closed already.
func (c *Claim) Suspend(ctx context.Context, children ...int) (suspended bool, err error) {
	err = c.reportWork(ctx, wantNothing, func(s protocol.State, q lifecycle.Query) (lifecycle.Step, error) {
		step, err := lifecycle.Suspend(s, c.Holder.ID, children, q.Now)
		suspended = len(step.Events) > 0
		return step, err
	})
	if err != nil || !suspended {
		return false, err
	}
	return true, c.finish(ctx, nil)
}

// Escalate passes the handoff up the chain of authority. The rationale is required; the assessment
// is the findings so far.
func (c *Claim) Escalate(ctx context.Context, rationale, assessment string) error {
	err := c.reportWork(ctx, wantAll, func(s protocol.State, q lifecycle.Query) (lifecycle.Step, error) {
		return lifecycle.Escalate(s, q, c.Holder.ID, cutReason(rationale), cutReason(assessment))
	})
	return c.finish(ctx, err)
}

// Answer is an authority's answer to a handoff that was escalated to it: the handoff returns to the
// agent that escalated it, with the answer.
func (c *Claim) Answer(ctx context.Context, answer protocol.Answer) error {
	answer.By = c.Agent
	if err := answer.Validate(); err != nil {
		return err
	}
	err := c.appendReport(ctx, wantAll, func(s protocol.State, q lifecycle.Query) (lifecycle.Step, error) {
		answer.Question = s.EscalationQuestion // the fence is that of this question
		return lifecycle.Answer(s, q, answer)
	})
	return c.finish(ctx, err)
}

// RollBack returns the handoff to its source: a rollback. partial is a partial result, or nil. If
// the lease is lost, it is kept in the history (LateResults).
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
	err := c.appendReport(ctx, wantSource, func(s protocol.State, q lifecycle.Query) (lifecycle.Step, error) {
		event := body
		event.By = c.Holder.ID
		return lifecycle.RollBackHeld(s, q, event)
	})
	if errors.Is(err, ErrLeaseLost) && partial != nil { // its end was forced meanwhile
		err = c.resultAfterLoss(ctx, parked(*partial, body.Result, body.Blob), err)
	}
	return c.finish(ctx, err)
}
