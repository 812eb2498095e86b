package broker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// pendingChild is a handoff that the ledger announces before it exists: a child that
// was handed off, a member of a group, a return. A supervisor that finds it missing
// submits it, and any number may.
type pendingChild struct {
	ticket    string
	summary   protocol.Summary
	body      json.RawMessage // the package; nil where blob has it
	blob      *protocol.BlobRef
	directory *lifecycle.Directory // a snapshot that may be old; nil is none
	// undelivered says why no agent could be given it when it was handed off; where none
	// can be even now, it goes to an authority of above, or of the whole directory.
	undelivered string
	above       *lifecycle.Directory
}

const (
	// submitsAtOnce is how many promised handoffs are submitted side by side.
	submitsAtOnce = 16
	// readsAtOnce is how many of a handoff's children are read side by side.
	readsAtOnce = 16
)

// submitChild submits an announced handoff. A handoff that exists already is no error.
func (b *Broker) submitChild(ctx context.Context, p pendingChild) (Head, error) {
	empty := &Head{Ticket: p.ticket}
	body := protocol.Submitted{Package: p.body, Blob: p.blob}
	settings, err := b.withFleet(ctx, noAgents)
	if err != nil {
		return Head{}, err
	}
	directory, err := b.suiting(ctx, cmp.Or(p.directory, settings), p.body, p.blob)
	if err != nil {
		return Head{}, err
	}
	step, err := lifecycle.Submit(p.ticket, p.summary, body, directory, b.decisionTime(empty))
	if err != nil { // the leader may know better
		directory = settings // a member's agent is assigned to it at its group first
		if p.summary.Group == "" || p.summary.Target.Agent != "" && len(p.summary.Excluded) == 0 {
			if directory, err = b.directoryFor(ctx, p.summary); err != nil {
				return Head{}, err
			}
		}
		if step, err = b.submitAnyway(ctx, p, body, directory); err != nil {
			return Head{}, err
		}
	}
	if step.Gates() && p.directory == nil { // who is asked depends on those above its source
		directory, err := b.Directory(ctx)
		if err != nil {
			return Head{}, err
		}
		if step, err = b.submitAnyway(ctx, p, body, directory); err != nil {
			return Head{}, err
		}
	}
	meter(&step, p.body, p.blob)
	draft := draftOf(empty, &step)
	if err == nil {
		err = checkAnnounced(draft)
	}
	if err != nil {
		return Head{}, fmt.Errorf("submit %s: %w", p.ticket, err)
	}
	next, err := b.storeDraft(ctx, empty, draft, 0)
	switch {
	case errors.Is(err, ErrConflict):
		return b.Head(ctx, p.ticket, 0)
	case err != nil:
		return Head{}, fmt.Errorf("submit %s: %w", p.ticket, err)
	}
	head := *next
	b.warnDeep(&head.State)
	switch {
	case head.State.Aggregate != nil:
		return head, b.submitMissingMembers(ctx, head, head.State.Children.Made.Numbers())
	case lifecycle.AwaitsWorkspace(head.State):
		joined, err := b.EnsureWorkspace(ctx, head)
		if err != nil {
			b.log.Warn("no place in the workspace yet; a supervisor makes it", "ticket", head.Ticket, "err", err)
			return head, nil
		}
		return joined, nil
	case lifecycle.DutiesOf(head.State).Offer:
		said, err := b.readAnnotations(ctx, &head)
		if err == nil {
			err = b.putOffer(ctx, next, p.body, p.blob, said)
		}
		if err != nil {
			b.log.Warn("offer not queued; a supervisor will", "ticket", head.Ticket, "seq", head.Seq, "err", err)
		}
	}
	return head, nil
}

// submitAnyway decides the first append of a handoff that was announced, whether there is an
// agent for it or not.
func (b *Broker) submitAnyway(ctx context.Context, p pendingChild, body protocol.Submitted, directory *lifecycle.Directory) (lifecycle.Step, error) {
	now := b.decisionTime(&Head{Ticket: p.ticket})
	directory, err := b.suiting(ctx, directory, p.body, p.blob)
	if err != nil {
		return lifecycle.Step{}, err
	}
	if p.undelivered == "" {
		return lifecycle.SubmitAnyway(p.ticket, p.summary, body, directory, now)
	}
	if step, err := lifecycle.Submit(p.ticket, p.summary, body, directory, now); err == nil {
		return step, nil
	}
	above := p.above
	if above == nil {
		if above, err = b.Directory(ctx); err != nil {
			return lifecycle.Step{}, err
		}
	}
	return lifecycle.SubmitUndelivered(p.ticket, p.summary, body, above, p.undelivered, now)
}

// checkAnnounced refuses a submission that could not be read again: what promised it was
// read, and its package was not checked.
func checkAnnounced(d draft) error {
	state := d.next.State
	state.Bind(1)
	return lifecycle.CheckRead(d.next.Ticket, 1, &state)
}

// exists tells whether the ledger has a handoff.
func (b *Broker) exists(ctx context.Context, ticket string) (bool, error) {
	_, err := b.ledger.Last(ctx, ticket, 0)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// storedBody is a package as the ledger has it: inline, or in a blob.
type storedBody struct {
	body   json.RawMessage
	blob   *protocol.BlobRef
	digest string
}

// storeBody stores a body inline or in a blob; so many entries will name it as copies says.
func (b *Broker) storeBody(ctx context.Context, body json.RawMessage, copies int) (storedBody, error) {
	s := storedBody{body: body, digest: RefOf(body).Digest}
	if len(body) <= protocol.InlineBytesMax && len(body)*copies <= 4*protocol.InlineBytesMax {
		return s, nil
	}
	// The blob goes first: an append never names what is not there.
	blob, err := b.blobs.PutBlob(ctx, body)
	if err != nil {
		return s, fmt.Errorf("store package: %w", err)
	}
	s.body, s.blob = nil, &blob
	return s, nil
}

// storeOwnBody is storeBody for a package that Handoff itself makes.
func (b *Broker) storeOwnBody(ctx context.Context, pkg protocol.Package) (storedBody, error) {
	if err := pkg.ValidateOwn(b.now(Head{})); err != nil {
		return storedBody{}, err
	}
	body, _, err := b.encodePackage(ctx, pkg)
	if err != nil {
		return storedBody{}, err
	}
	if len(body) > protocol.PackageBytesMax {
		return storedBody{}, protocol.Errorf(protocol.CodeTooLarge, "package", "%s", protocol.OverSize(len(body), protocol.PackageBytesMax))
	}
	return b.storeBody(ctx, body, pkg.GroupSize())
}

// EnsureChildren submits the missing children of a handoff and returns those that have ended,
// with their chains, without its knowledge. The members of a group are its children. A child that awaits its
// source begins, or is dropped, as that went. The ends of children that come back to the handoff
// are settled, if a worker of it got them, or once it has closed without that. It takes one read for
// each of those, and for each child that the handoff does not know to be closed. Doing it twice is
// harmless.
func (b *Broker) EnsureChildren(ctx context.Context, head Head) (ended []protocol.ChildClosed, err error) {
	c := head.State.Children
	if c == nil {
		return nil, nil
	}
	unsettled := c.Received.And(c.Returning)
	if head.State.Closed {
		unsettled = c.Returning
	}
	missing, closed, err := b.readChildren(ctx, head, c.Made.Without(c.Closed.Without(unsettled)).Numbers())
	for _, child := range closed {
		s := child.head.State
		if !c.Closed.Has(child.n) {
			ended = append(ended, lifecycle.ChildEnd(s))
		}
		if unsettled.Has(child.n) && s.ReturnTicket == "" && lifecycle.DutiesOf(s).Return {
			err = errors.Join(err, b.settleChild(ctx, child.head, head.State))
		}
	}
	switch {
	case len(missing) == 0:
		return ended, err
	case head.State.Aggregate != nil:
		return ended, errors.Join(err, b.submitMissingMembers(ctx, head, missing))
	}
	return ended, errors.Join(err, b.submitMissingChildren(ctx, head, missing))
}

// closedChild is one that has closed, and its ordinal.
type closedChild struct {
	n    int
	head Head
}

// readChildren tells which children are not there, and which have closed. One
// that cannot be read is neither. Those that await their source follow it.
func (b *Broker) readChildren(ctx context.Context, parent Head, ordinals []int) (missing []int, closed []closedChild, err error) {
	there, unmade := make([]Head, len(ordinals)), make([]bool, len(ordinals))
	err = forEachParallel(ctx, readsAtOnce, len(ordinals), func(ctx context.Context, i int) error {
		child, err := b.Head(ctx, parent.State.ChildTicket(ordinals[i]), 0)
		unmade[i] = errors.Is(err, ErrNotFound)
		if isAbsent(err) { // one that is stuck is there, and open
			return nil
		}
		if err == nil && lifecycle.DutiesOf(child.State).Source {
			child, err = b.followSource(ctx, child, parent.State)
		}
		there[i] = child
		return err
	})
	for i, n := range ordinals {
		switch {
		case unmade[i]:
			missing = append(missing, n)
		case lifecycle.HasEnded(there[i].State):
			closed = append(closed, closedChild{n, there[i]})
		}
	}
	return missing, closed, err
}

// EnsureSource begins or drops a handoff that awaits its source, as that went.
// Doing it twice is harmless.
func (b *Broker) EnsureSource(ctx context.Context, head Head) error {
	parent, err := b.Head(ctx, head.State.Parent, 0)
	if Unreadable(err) { // it may have completed: that is not known before it is mended
		return nil
	}
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	_, err = b.followSource(ctx, head, parent.State) // of one that is gone nothing follows
	return err
}

func (b *Broker) followSource(ctx context.Context, child Head, parent protocol.State) (Head, error) {
	read := func(ctx context.Context, s protocol.State) (*lifecycle.Directory, error) {
		d, err := b.directoryFor(ctx, s.Summary)
		if err != nil {
			return nil, err
		}
		if _, err = lifecycle.Admit(s.Summary, d); err == nil && !d.WantsContract() {
			return d, nil
		}
		return b.Directory(ctx) // who is above its source
	}
	head, appended, err := b.update(ctx, child, read, func(h Head, d *lifecycle.Directory, now time.Time) (lifecycle.Step, error) {
		return lifecycle.FollowSource(h.State, parent, d, now)
	})
	if err != nil || !appended || !lifecycle.DutiesOf(head.State).Offer {
		return head, err
	}
	if err := b.EnsureOffer(ctx, head); err != nil {
		b.log.Warn("offer not queued; a supervisor will", "ticket", head.Ticket, "seq", head.Seq, "err", err)
	}
	return head, nil
}

// forEachParallel calls fn with 0 to n-1, so many at once. A call that fails for a reason of
// its own does not hold up the others; an engine that does not answer ends it. The
// error is the first of those there were.
func forEachParallel(ctx context.Context, atOnce, n int, fn func(ctx context.Context, i int) error) error {
	failed := make([]error, n)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i := range n {
		group.Go(func() error {
			if failed[i] = fn(ctx, i); errors.Is(failed[i], ErrUnreachable) || ctx.Err() != nil {
				return failed[i]
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	var first error
	others := -1
	for _, err := range failed {
		if err != nil {
			if others++; first == nil {
				first = err
			}
		}
	}
	if others > 0 {
		return fmt.Errorf("%w (and %d more)", first, others)
	}
	return first
}

// submitMissingChildren submits children from the events that recorded them. What is so
// old that the ledger has let go of the record was there once, and is not begun again.
func (b *Broker) submitMissingChildren(ctx context.Context, head Head, missing []int) error {
	want := protocol.Bits("").With(missing...)
	var failed []error
	err := b.eachChange(ctx, head.Ticket, func(c protocol.Change) error {
		for _, e := range c.Record.Events {
			if child, ok := e.(*protocol.HandedOff); ok && want.Has(child.N) {
				failed = append(failed, b.submitRecordedChild(ctx, c.Record.State, *child))
			}
		}
		return ctx.Err()
	})
	return errors.Join(append(failed, err)...)
}

// submitRecordedChild submits a child; parent is as it was when it handed it off.
func (b *Broker) submitRecordedChild(ctx context.Context, parent protocol.State, child protocol.HandedOff) error {
	if _, err := protocol.ParseTicket(child.Ticket); err != nil {
		return fmt.Errorf("child %d of %s: %w", child.N, parent.Ticket, err)
	}
	body, err := b.packageBody(ctx, child.Package, child.Blob)
	if err != nil {
		return fmt.Errorf("package of child %d of %s: %w", child.N, parent.Ticket, err)
	}
	var pkg protocol.Package
	if pkg, err = protocol.DecodePackage(body); err != nil {
		return fmt.Errorf("package of child %d of %s: %w", child.N, parent.Ticket, err)
	}
	_, err = b.submitChild(ctx, childOf(parent, &child, pkg, nil))
	return err
}

// childOf is a child as the event of its parent records it. parent is as that append left it.
func childOf(parent protocol.State, e *protocol.HandedOff, pkg protocol.Package, directory *lifecycle.Directory) pendingChild {
	return pendingChild{ticket: e.Ticket, summary: lifecycle.ChildOf(parent, e, pkg), body: e.Package, blob: e.Blob,
		directory: directory, undelivered: e.Undelivered}
}

// submitMissingMembers submits members of a group from the group's own package.
func (b *Broker) submitMissingMembers(ctx context.Context, head Head, ordinals []int) error {
	submitted, err := b.readSubmitted(ctx, &head)
	if errors.Is(err, ErrNotFound) {
		return nil // so old that the ledger has let go of it, and of members that had closed
	}
	if err != nil {
		return err
	}
	body, err := b.packageBody(ctx, submitted.Package, submitted.Blob)
	if err != nil {
		return fmt.Errorf("package of %s: %w", head.Ticket, err)
	}
	pkg, err := protocol.DecodePackage(body)
	if err != nil {
		return fmt.Errorf("package of %s: %w", head.Ticket, err)
	}
	directory, err := b.Directory(ctx)
	if err != nil {
		return err
	}
	if a := head.State.Aggregate; a == nil || pkg.GroupSize() != a.Size {
		return fmt.Errorf("package of %s: it is of %d members, and the group is of another size", head.Ticket, pkg.GroupSize())
	}
	named := pkg.Recipients()
	chosen := slices.DeleteFunc(slices.Clone(ordinals), func(n int) bool { return named[n] != "" })
	ordinals = slices.DeleteFunc(slices.Clone(ordinals), func(n int) bool { return named[n] == "" })
	err = forEachParallel(ctx, submitsAtOnce, len(ordinals), func(ctx context.Context, i int) error {
		return b.submitMember(ctx, pkg, *submitted, head, ordinals[i], directory)
	})
	for _, n := range chosen { // one after the other: each is assigned an agent at the group
		if err == nil {
			err = b.submitMember(ctx, pkg, *submitted, head, n, directory)
		}
	}
	return err
}

func (b *Broker) submitMember(ctx context.Context, pkg protocol.Package, submitted protocol.Submitted, head Head, n int, directory *lifecycle.Directory) error {
	member, err := pkg.MemberAt(head.Ticket, n)
	if err != nil {
		return err
	}
	s := storedBody{body: submitted.Package, blob: submitted.Blob, digest: head.State.Digest}
	if !member.Shared {
		if s, err = b.storeOwnBody(ctx, member.Package); err != nil {
			return fmt.Errorf("member %d of %s: %w", n, head.Ticket, err)
		}
	}
	excluded, err := b.excludedMember(ctx, pkg, head, member)
	if err != nil {
		return err
	}
	summary := lifecycle.MemberOf(head.State, member, s.digest, excluded)
	if directory, err = b.suiting(ctx, directory, s.body, s.blob); err != nil {
		return err
	}
	if member.Target.Capability != "" || len(summary.Excluded) > 0 {
		if directory, err = b.directoryOfMember(ctx, head, pkg.Recipients(), member, summary, directory); err != nil {
			return err
		}
	}
	child := pendingChild{ticket: member.Ticket, summary: summary, body: s.body, blob: s.blob, directory: directory}
	if head.State.N > 0 { // handed off, as a whole, whether its agents are there or not
		if child.undelivered, err = b.undeliverable(ctx, summary, s, directory); err == nil && child.undelivered != "" {
			child.above, err = b.directoryAbove(ctx, head, pkg.Recipients(), n, child)
		}
		if err != nil {
			return err
		}
	}
	_, err = b.submitChild(ctx, child)
	return err
}

// undeliverable says why no agent can be given a member that names one; empty is that one can.
// directory may lag behind an agent that was just registered: the leader is asked, too.
func (b *Broker) undeliverable(ctx context.Context, summary protocol.Summary, s storedBody, directory *lifecycle.Directory) (string, error) {
	if summary.Target.Agent == "" || slices.Contains(summary.Excluded, summary.Target.Agent) {
		return "", nil
	}
	_, why := lifecycle.Admit(summary, directory)
	if why == nil {
		return "", nil
	}
	directory, err := b.directoryFor(ctx, summary)
	if err == nil {
		directory, err = b.suiting(ctx, directory, s.body, s.blob)
	}
	if err == nil {
		_, why = lifecycle.Admit(summary, directory)
	}
	if err != nil || why == nil {
		return "", err
	}
	return protocol.CutText(why.Error(), protocol.FailureBytesMax), nil
}

// excludedMember are the agents that a member is not offered to: those that refused
// what its group follows from, and the member that it stands for in a group that was
// redriven.
func (b *Broker) excludedMember(ctx context.Context, pkg protocol.Package, group Head, m protocol.MemberHandoff) ([]string, error) {
	if s := group.State; s.Origin == "" || s.Again {
		return lifecycle.Inherit(s, protocol.Summary{}, sameTask(pkg.Task, m.Package.Task)), nil
	}
	origin, err := b.Head(ctx, protocol.ChildTicketN(group.State.Origin, m.N), 0)
	if isAbsent(err) {
		return nil, nil
	}
	return lifecycle.Refusers(origin.State), err
}
