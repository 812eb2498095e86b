package broker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// pendingChild is a handoff that the ledger announces before it exists: a child that was handed
// off, a member of a group, or a return. A supervisor that finds it missing submits it; several may
// do so.
type pendingChild struct {
	ticket    string
	summary   protocol.Summary
	body      json.RawMessage // the package; nil if it is in blob
	blob      *protocol.BlobRef
	directory *lifecycle.Directory // a possibly outdated snapshot; nil is none
	reserved  lifecycle.Reserved   // of the other members of its group
	// undelivered is why no agent could get it when it was handed off. If none can get it now either,
	// it goes to an authority.
	undelivered string
}

// parallelMost is how many handoffs are read or submitted concurrently.
const parallelMost = 16

// submitChild submits an announced handoff. A handoff that exists already is no error.
func (b *Broker) submitChild(ctx context.Context, p pendingChild) (Head, error) {
	empty := &Head{Ticket: p.ticket}
	body := protocol.Submitted{Package: p.body, Blob: p.blob}
	settings, _, err := b.read(ctx, part{fleet: true})
	if err != nil {
		return Head{}, err
	}
	// submit decides by a part of the directory; anyway begins the handoff even without an agent.
	submit := func(d *lifecycle.Directory, anyway bool) (lifecycle.Step, error) {
		q := d.At(b.decisionTime(empty))
		q.Reserved = p.reserved
		return knowingPackage(q, func() (lifecycle.Contract, error) { return b.storedContract(ctx, p.body, p.blob) }, func(q lifecycle.Query) (lifecycle.Step, error) {
			switch {
			case !anyway:
				return lifecycle.Submit(p.ticket, p.summary, body, q)
			case p.undelivered == "":
				return lifecycle.SubmitAnyway(p.ticket, p.summary, body, q)
			}
			step, err := lifecycle.Submit(p.ticket, p.summary, body, q)
			if err == nil {
				return step, nil
			}
			if q.Directory, err = b.Directory(ctx); err != nil {
				return lifecycle.Step{}, err
			}
			return lifecycle.SubmitUndelivered(p.ticket, p.summary, body, q, p.undelivered)
		})
	}
	step, err := submit(cmp.Or(p.directory, settings), false)
	if err != nil { // the leader may have newer data
		directory := settings // a member's agent is first assigned to it at its group
		if p.summary.Group == "" || p.summary.Target.Agent != "" && len(p.summary.Excluded) == 0 {
			want := partFor(p.summary, readsSource(p.summary))
			want.fresh = true
			if directory, _, err = b.read(ctx, want); err != nil {
				return Head{}, err
			}
		}
		step, err = submit(directory, true)
	}
	if err == nil && step.Gates() && p.directory == nil { // the approver depends on the agents above the source
		var all *lifecycle.Directory
		if all, err = b.Directory(ctx); err == nil {
			step, err = submit(all, true)
		}
	}
	if err != nil {
		return Head{}, err
	}
	meter(&step, p.body, p.blob)
	draft := draftOf(empty, &step)
	if err := checkAnnounced(draft); err != nil {
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
			b.log.Warn("no place in the workspace yet; a supervisor will reserve it", "ticket", head.Ticket, "err", err)
			return head, nil
		}
		return joined, nil
	case lifecycle.DutiesOf(head.State).Offer:
		said, err := b.readAnnotations(ctx, &head)
		if err == nil {
			err = b.putOffer(ctx, next, p.body, p.blob, said)
		}
		if err != nil {
			b.log.Warn("offer not queued; a supervisor will queue it", "ticket", head.Ticket, "seq", head.Seq, "err", err)
		}
	}
	return head, nil
}

// checkAnnounced refuses a submission that could not be read back: the announcing event was checked
// when it was read, but its package was not.
func checkAnnounced(d draft) error {
	state := d.next.State
	state.Bind(1)
	return lifecycle.CheckRead(d.next.Ticket, 1, &state)
}

// exists reports whether the ledger has a handoff.
func (b *Broker) exists(ctx context.Context, ticket string) (bool, error) {
	_, err := b.engine.Last(ctx, ticket, 0)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// storedBody is a package as stored in the ledger: inline, or in a blob.
type storedBody struct {
	body   json.RawMessage
	blob   *protocol.BlobRef
	digest string
}

// storeBody stores a body inline or in a blob, depending on its size and on copies, the number of
// entries that contain it.
func (b *Broker) storeBody(ctx context.Context, body json.RawMessage, copies int) (storedBody, error) {
	s := storedBody{body: body, digest: RefOf(body).Digest}
	if len(body) <= protocol.InlineBytesMax && len(body)*copies <= 4*protocol.InlineBytesMax {
		return s, nil
	}
	// The blob is stored first: an append never names a missing blob.
	blob, err := b.engine.PutBlob(ctx, body)
	if err != nil {
		return s, fmt.Errorf("store package: %w", err)
	}
	s.body, s.blob = nil, &blob
	return s, nil
}

// storeOwnBody is storeBody for a package that Handoff itself generates.
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

// EnsureChildren submits the missing children of a handoff and returns those that have ended, with
// their chains, without its knowledge. The members of a group are its children. A child that awaits
// its source is started or dropped, depending on how the source ended. The ends of children that
// return to the handoff are settled if a worker got them, or once the handoff has closed.
// EnsureChildren takes one read for each of those, and for each child that the handoff does not
// know to be closed. It is idempotent.
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

// closedChild is a child that has closed, and its ordinal.
type closedChild struct {
	n    int
	head Head
}

// readChildren returns which children do not exist, and which have closed. A child that cannot be
// read is neither. Children that await their source are updated.
func (b *Broker) readChildren(ctx context.Context, parent Head, ordinals []int) (missing []int, closed []closedChild, err error) {
	there, unmade := make([]Head, len(ordinals)), make([]bool, len(ordinals))
	err = forEachParallel(ctx, len(ordinals), func(ctx context.Context, i int) error {
		child, err := b.Head(ctx, parent.State.ChildTicket(ordinals[i]), 0)
		unmade[i] = errors.Is(err, ErrNotFound)
		if isAbsent(err) { // a stuck child exists, and is open
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

// EnsureSource starts or drops a handoff that awaits its source, depending on how the source ended.
// It is idempotent.
func (b *Broker) EnsureSource(ctx context.Context, head Head) error {
	parent, err := b.Head(ctx, head.State.Parent, 0)
	if Unreadable(err) { // it may have completed, which is unknown until it is repaired
		return nil
	}
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	_, err = b.followSource(ctx, head, parent.State) // a source that is gone changes nothing
	return err
}

func (b *Broker) followSource(ctx context.Context, child Head, parent protocol.State) (Head, error) {
	want := func(s protocol.State) part {
		want := partFor(s.Summary, readsSource(s.Summary))
		want.fresh = true
		return want
	}
	head, appended, err := b.update(ctx, child, want, func(h Head, q lifecycle.Query) (lifecycle.Step, error) {
		if _, err := lifecycle.Admit(h.State.Summary, q); err != nil { // another agent may be chosen, or one above its source
			if q.Directory, err = b.Directory(ctx); err != nil {
				return lifecycle.Step{}, err
			}
		}
		return lifecycle.FollowSource(h.State, parent, q)
	})
	if err != nil || !appended || !lifecycle.DutiesOf(head.State).Offer {
		return head, err
	}
	if err := b.EnsureOffer(ctx, head); err != nil {
		b.log.Warn("offer not queued; a supervisor will queue it", "ticket", head.Ticket, "seq", head.Seq, "err", err)
	}
	return head, nil
}

// forEachParallel calls fn with 0 to n-1, at most parallelMost at a time. A failed call does not stop the
// others, unless the engine is unreachable. It returns the first error and the number of others.
func forEachParallel(ctx context.Context, n int, fn func(ctx context.Context, i int) error) error {
	failed := make([]error, n)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelMost)
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

// submitMissingChildren submits children from the events that recorded them. A child whose record
// the ledger has dropped did exist, and is not submitted again.
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

// submitRecordedChild submits a child; parent is its parent's state when it was handed off.
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

// childOf returns the child that an event of its parent records. parent is the state after that
// append.
func childOf(parent protocol.State, e *protocol.HandedOff, pkg protocol.Package, directory *lifecycle.Directory) pendingChild {
	return pendingChild{ticket: e.Ticket, summary: lifecycle.ChildOf(parent, e, pkg), body: e.Package, blob: e.Blob,
		directory: directory, undelivered: e.Undelivered}
}

// submitMissingMembers submits members of a group from the group's own package.
func (b *Broker) submitMissingMembers(ctx context.Context, head Head, ordinals []int) error {
	submitted, err := b.readSubmitted(ctx, &head)
	if errors.Is(err, ErrNotFound) {
		return nil // the ledger has dropped the package, and the members that had closed
	}
	if err != nil {
		return err
	}
	pkg, _, err := b.decodeSubmitted(ctx, &head, submitted)
	if err != nil {
		return err
	}
	directory, err := b.Directory(ctx)
	if err != nil {
		return err
	}
	if a := head.State.Aggregate; a == nil || pkg.GroupSize() != a.Size {
		return fmt.Errorf("package of %s: it has %d members, and the group has another size", head.Ticket, pkg.GroupSize())
	}
	named := pkg.Recipients()
	chosen := slices.DeleteFunc(slices.Clone(ordinals), func(n int) bool { return named[n] != "" })
	ordinals = slices.DeleteFunc(slices.Clone(ordinals), func(n int) bool { return named[n] == "" })
	err = forEachParallel(ctx, len(ordinals), func(ctx context.Context, i int) error {
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
	child := pendingChild{ticket: member.Ticket, summary: summary, body: s.body, blob: s.blob, directory: directory}
	q := lifecycle.Query{Directory: directory}
	if q.WantsContract() {
		if q.Contract, err = b.storedContract(ctx, s.body, s.blob); err != nil {
			return err
		}
	}
	if member.Target.Capability != "" || len(summary.Excluded) > 0 {
		if child.reserved, err = b.reserveAgent(ctx, head, pkg.Recipients(), member, summary, q); err != nil {
			return err
		}
	}
	if head.State.N > 0 { // handed off as a whole, even if its agents are missing
		if child.undelivered, err = b.undeliverable(ctx, summary, q); err == nil && child.undelivered != "" {
			child.reserved, err = b.reserveAbove(ctx, head, pkg.Recipients(), n, child)
		}
		if err != nil {
			return err
		}
	}
	_, err = b.submitChild(ctx, child)
	return err
}

// undeliverable returns why no agent can get a member that names one; empty if one can. The snapshot
// may lag behind a new agent, so the leader is read, too.
func (b *Broker) undeliverable(ctx context.Context, summary protocol.Summary, q lifecycle.Query) (string, error) {
	if summary.Target.Agent == "" || slices.Contains(summary.Excluded, summary.Target.Agent) {
		return "", nil
	}
	why, err := b.refusal(ctx, summary, q)
	if err != nil || why == nil {
		return "", err
	}
	return protocol.CutText(why.Error(), protocol.FailureBytesMax), nil
}

// refusal returns why a handoff to a named agent is not admitted; nil if it is. A refusal by a
// snapshot that may lag is decided again by the leader.
func (b *Broker) refusal(ctx context.Context, s protocol.Summary, q lifecycle.Query) (why, err error) {
	if _, why = lifecycle.Admit(s, q); why == nil || s.Target.Agent == "" {
		return why, nil
	}
	want := partFor(s, readsSource(s))
	want.fresh = true
	if q.Directory, _, err = b.read(ctx, want); err != nil {
		return nil, err
	}
	_, why = lifecycle.Admit(s, q)
	return why, nil
}

// excludedMember returns the agents that a member is not offered to: those that refused the origin
// of its group and, in a group that was redriven, those that refused the member that it replaces.
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

// HandedOff is a handoff that another one has handed off.
type HandedOff struct {
	Ticket string        `json:"ticket"`
	Key    string        `json:"key,omitempty"` // of its package
	Type   protocol.Type `json:"type"`
	Target string        `json:"to"` // in words
	By     string        `json:"by"` // the agent that had the parent then
	// Asked: the current attempt has asked for it.
	Asked   bool             `json:"asked,omitempty"`
	Phase   protocol.Phase   `json:"phase,omitempty"`
	Closed  bool             `json:"closed"`
	Outcome protocol.Outcome `json:"outcome,omitempty"`

	N       int `json:"-"` // its ordinal
	written string
}

// HandedOff reads the children of this handoff, of all agents that had it, in the order of their
// hand-offs.
func (c *Claim) HandedOff(ctx context.Context) ([]HandedOff, error) {
	return c.b.handedOff(ctx, c.State())
}

func (b *Broker) handedOff(ctx context.Context, s protocol.State) ([]HandedOff, error) {
	var all []HandedOff
	by := ""
	err := b.eachChange(ctx, s.Ticket, func(change protocol.Change) error {
		for _, e := range change.Record.Events {
			switch e := e.(type) {
			case *protocol.Accepted:
				by = e.Agent
			case *protocol.Taken:
				by = e.Agent
			case *protocol.HandedOff:
				all = append(all, HandedOff{Ticket: e.Ticket, Key: e.Key, Type: e.Type, Target: e.Target, By: by, N: e.N, written: e.Written,
					Asked: s.Children != nil && s.Children.Asked.Has(e.N)})
			}
		}
		return nil
	})
	return all, err
}

// Children reads the children of a handoff, with their phases. It takes one read for each.
func (b *Broker) Children(ctx context.Context, s protocol.State) ([]HandedOff, error) {
	if s.Children == nil || s.Children.Made == "" {
		return nil, nil
	}
	all, err := b.handedOff(ctx, s)
	if err != nil {
		return nil, err
	}
	err = forEachParallel(ctx, len(all), func(ctx context.Context, i int) error {
		head, err := b.Head(ctx, all[i].Ticket, 0)
		if isAbsent(err) {
			return nil
		}
		all[i].Phase, all[i].Closed, all[i].Outcome = head.State.Phase, head.State.Closed, head.State.Outcome
		return err
	})
	return all, err
}
