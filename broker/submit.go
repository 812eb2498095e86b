package broker

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
	"github.com/agenthandoff/handoff/protocol/schema"
)

// Prepared is a package that was checked, made complete and cleared of
// secrets, with the ticket it will have. Nothing was written yet.
type Prepared struct {
	Ticket  string
	Package protocol.Package
	Body    json.RawMessage // the package as it will be stored
	// Whole is Body with the conversation that goes by reference: what is sent to a gateway,
	// which stores it.
	Whole json.RawMessage
	// Redacted counts the secrets that were taken out.
	Redacted int
	summary  protocol.Summary
	context  string // of a child: the hash of its context
	// parts are the bodies that the package refers to.
	parts [][]byte
	// pastDeadline says that the deadline has passed: nothing is begun any more, but what
	// was submitted under its key before is found.
	pastDeadline error
}

// Prepare checks a package and gives it its ticket: derived from source and key
// if it has a key, else random. A *protocol.Error says what is wrong. A deadline
// that has passed is Submit's to refuse where there is a key: the same package may
// have been submitted while there was time.
func (b *Broker) Prepare(ctx context.Context, pkg protocol.Package) (Prepared, error) {
	now := b.now(Head{})
	given := pkg.CreatedAt
	pkg.Normalize(now)
	late := pkg.Validate(now)
	if late != nil && (pkg.Key == "" || !errors.Is(late, &protocol.Error{Code: protocol.CodePast})) {
		return Prepared{}, late
	}
	if len(pkg.Expectations.OutputSchema) > 0 {
		if err := schema.CheckSchema(pkg.Expectations.OutputSchema); err != nil {
			return Prepared{}, err
		}
	}
	trace := pkg.TakeTrace() // before the digest is made: from within another trace it is the same package
	var parts [][]byte
	var whole json.RawMessage
	referred := 0
	if pkg.GoesByReference() {
		var err error
		if pkg, parts, whole, referred, err = b.referContext(ctx, pkg); err != nil {
			return Prepared{}, err
		}
	}
	body, redacted, err := b.encodePackage(ctx, pkg)
	if err != nil {
		return Prepared{}, err
	}
	if len(body) > protocol.PackageBytesMax {
		return Prepared{}, protocol.Errorf(protocol.CodeTooLarge, "package", "%s; hand large files over as artifacts", protocol.OverSize(len(body), protocol.PackageBytesMax))
	}
	ticket, digested := protocol.NewTicket(), body
	if pkg.Key != "" {
		ticket = protocol.TicketForKey(pkg.Source, pkg.Key)
		if given.IsZero() { // the same package sent again has another time, and is the same
			again := pkg
			again.CreatedAt = given
			if digested, _, err = b.encodePackage(ctx, again); err != nil {
				return Prepared{}, err
			}
		}
	}
	if whole == nil {
		whole = body
	}
	summary := pkg.Summarize(RefOf(digested).Digest)
	summary.Trace = nilIfZero(trace)
	return Prepared{Ticket: ticket, Package: pkg, Body: body, Redacted: redacted + referred, pastDeadline: late, summary: summary, parts: parts, Whole: whole}, nil
}

func (b *Broker) encodePackage(ctx context.Context, pkg protocol.Package) (json.RawMessage, int, error) {
	body, err := protocol.EncodePackage(pkg)
	if err != nil {
		return nil, 0, err
	}
	return b.redact(ctx, body)
}

// Submit appends a prepared package to the ledger and puts its offer into the
// target's queue. Submitting the same key with the same package again returns
// the handoff that is there, at any later time, and makes up for what an
// interrupted submission may have left. Lost connections are tried again until ctx
// ends; then the submission may or may not have happened, which Status tells, or
// Submit again with the same Prepared.
//
// The trace that it is in is the package's own, else that of ctx (WithTrace).
func (b *Broker) Submit(ctx context.Context, in Prepared) (head Head, err error) {
	in.summary.Trace = summaryTrace(ctx, in.summary.Trace)
	for {
		// What goes before the append gives up after a while, and nothing has happened
		// then; the append itself does not.
		head, err = b.submit(ctx, in)
		if !errors.Is(err, ErrUnreachable) || errors.Is(err, ErrClosed) {
			return head, err
		}
		select {
		case <-ctx.Done():
			return head, err
		case <-time.After(submitAgain):
		}
	}
}

// submitAgain is the time from a try at a submission that did not reach the engine to
// the next one.
const submitAgain = 200 * time.Millisecond

func (b *Broker) submit(ctx context.Context, in Prepared) (Head, error) {
	if err := b.resolveWorkspace(ctx, &in.summary); err != nil {
		return b.resubmit(ctx, in, nameParties(err, in.Package))
	}
	step, _, err := b.decideFirstAppend(ctx, in)
	if err != nil {
		return b.resubmit(ctx, in, err)
	}
	packed, err := b.storePackage(ctx, in)
	if err != nil {
		return Head{}, err
	}
	meter(&step, in.Body, nil)
	submitted := step.Events[0].(*protocol.Submitted)
	submitted.Package, submitted.Blob = packed.body, packed.blob
	empty := &Head{Ticket: in.Ticket}
	head, err := b.storeDraft(ctx, empty, draftOf(empty, &step), 0)
	switch {
	case errors.Is(err, ErrConflict):
		return b.resubmit(ctx, in, err)
	case err != nil:
		return Head{}, err
	case head.State.Aggregate != nil:
		if err := b.submitMissingMembers(ctx, *head, head.State.Children.Made.Numbers()); err != nil {
			b.log.Warn("members not submitted; a supervisor will", "ticket", head.Ticket, "err", err)
		}
		return *head, nil
	}
	if !lifecycle.DutiesOf(head.State).Offer { // a gate or a breaker stands before it
		b.callForBids(ctx, *head)
		return b.joinSubmitted(ctx, *head)
	}
	if err := b.putOffer(ctx, head, packed.body, packed.blob, annotations{}); err != nil {
		b.log.Warn("offer not queued; a supervisor will", "ticket", head.Ticket, "seq", head.Seq, "err", err)
	}
	return *head, nil
}

// decideFirstAppend makes the first append, still without the package, and returns what it read of
// the directory: as little as the target needs.
func (b *Broker) decideFirstAppend(ctx context.Context, in Prepared) (lifecycle.Step, *lifecycle.Directory, error) {
	if in.pastDeadline != nil {
		return lifecycle.Step{}, nil, in.pastDeadline
	}
	err := b.followParent(ctx, &in)
	if err != nil {
		return lifecycle.Step{}, nil, nameParties(err, in.Package)
	}
	if in.summary.Aggregate == nil {
		step, directory, err := b.decideSubmission(ctx, in)
		return step, directory, nameParties(err, in.Package)
	}
	directory, err := b.Directory(ctx) // its source is in it, too
	if err != nil {
		return lifecycle.Step{}, nil, err
	}
	step, settings, err := b.decideGroup(ctx, in.Ticket, in.summary)
	if err == nil {
		err = b.checkMembers(ctx, in, directory)
	}
	return step, settings, nameParties(err, in.Package)
}

// decideGroup decides the first append of a group. What bars its source from handing it off is
// found before its members are looked at, since a result may hand off to some that are not there.
func (b *Broker) decideGroup(ctx context.Context, ticket string, s protocol.Summary) (lifecycle.Step, *lifecycle.Directory, error) {
	settings, err := b.withFleet(ctx, noAgents)
	if err != nil {
		return lifecycle.Step{}, nil, err
	}
	source, remembered, err := b.recentSource(ctx, s)
	if err != nil {
		return lifecycle.Step{}, nil, err
	}
	step, err := lifecycle.Submit(ticket, s, protocol.Submitted{}, settings.WithAgent(source), b.now(Head{}))
	if err != nil && source != nil && remembered {
		d, unread := b.onlyAgent(ctx, s.Source)
		if unread != nil {
			return lifecycle.Step{}, nil, unread
		}
		source = restricted(d, s.Source)
		step, err = lifecycle.Submit(ticket, s, protocol.Submitted{}, settings.WithAgent(source), b.now(Head{}))
	}
	return step, settings.WithAgent(source), err
}

// followParent takes the lineage of a submission from the handoff that it names as its parent, so
// that agents which submit beside their leases are seen to go in a circle too. A parent that is open
// and has limits refuses it.
func (b *Broker) followParent(ctx context.Context, in *Prepared) error {
	s := &in.summary
	if s.Parent == "" || in.context != "" { // handed off under a lease it has its lineage
		return nil
	}
	parent, err := b.Head(ctx, s.Parent, 0)
	if isAbsent(err) { // a ticket of another system, say
		return nil
	}
	if err == nil {
		err = lifecycle.CheckParent(parent.State)
	}
	if err == nil {
		s.Lineage = lifecycle.LineageOf(parent.State.Lineage, s.Type, s.Source, s.TargetWords(), in.Package.ContextHash())
	}
	return err
}

// CheckTarget validates a package's target as Submit does, and returns the agent that would
// get the offer. A group has no such agent. Nothing is written.
func (b *Broker) CheckTarget(ctx context.Context, in Prepared) (agent string, err error) {
	err = b.resolveWorkspace(ctx, &in.summary)
	var step lifecycle.Step
	if err == nil {
		step, _, err = b.decideFirstAppend(ctx, in)
	}
	if err != nil {
		head, err := b.submittedBefore(ctx, in, err)
		return head.State.Agent, err
	}
	if gate := step.State.Gate; gate != nil {
		return gate.Agent, nil
	}
	return step.State.Agent, nil
}

// resubmit is a submission that cannot be the first.
func (b *Broker) resubmit(ctx context.Context, in Prepared, why error) (Head, error) {
	head, err := b.submittedBefore(ctx, in, why)
	if err == nil {
		b.finishSubmission(ctx, head)
		b.callForBids(ctx, head)
		if lifecycle.AwaitsWorkspace(head.State) || wasTurnedAway(head.State) != nil {
			return b.joinSubmitted(ctx, head)
		}
	}
	return head, err
}

// callForBids submits the calls of a handoff that waits for bids.
func (b *Broker) callForBids(ctx context.Context, head Head) {
	if _, err := b.EnsureBids(ctx, head); err != nil {
		b.log.Warn("agents not asked for bids; a supervisor does", "ticket", head.Ticket, "err", err)
	}
}

// joinSubmitted gives a handoff that was submitted behind the gate of its workspace its place. One
// that has lost the race for the last place is refused, as it would have been a moment later.
func (b *Broker) joinSubmitted(ctx context.Context, head Head) (Head, error) {
	joined, err := b.EnsureWorkspace(ctx, head)
	if err != nil {
		b.log.Warn("no place in the workspace yet; a supervisor makes it", "ticket", head.Ticket, "err", err)
		return head, nil
	}
	if refused := wasTurnedAway(joined.State); refused != nil {
		return joined, refused
	}
	return joined, nil
}

// wasTurnedAway returns the refusal of a handoff that had no place in its workspace, or no locks.
func wasTurnedAway(s protocol.State) error {
	if !s.Closed || s.Workspace == "" || s.Joined || s.Outcome != protocol.OutcomeRejected {
		return nil
	}
	switch code := protocol.Code(s.Reason); code {
	case protocol.CodeLimitExceeded, protocol.CodeLockBusy, protocol.CodeClosed, protocol.CodeTooLarge:
		return protocol.Errorf(code, "workspace", "%s: %s", s.Ticket, s.Message)
	}
	return nil
}

// submittedBefore tells a repeated submission from a key used for something else,
// and from one that is refused, for the reason why, and always was. A submission
// that was accepted once is not refused later: its target may be gone by now.
func (b *Broker) submittedBefore(ctx context.Context, in Prepared, why error) (Head, error) {
	var refused *protocol.Error
	isThere := errors.Is(why, ErrConflict)
	if !isThere && (in.Package.Key == "" || !errors.As(why, &refused)) {
		return Head{}, why
	}
	head, err := b.Head(ctx, in.Ticket, 0)
	switch {
	case !isThere && errors.Is(err, ErrNotFound):
		return Head{}, why
	case err != nil:
		return Head{}, err
	case head.State.Digest != in.summary.Digest:
		return Head{}, nameParties(protocol.Errorf(protocol.CodeKeyReused, "key", "the key %q was used by %s for another package (ticket %s)", in.Package.Key, in.Package.Source, in.Ticket), in.Package)
	}
	return head, nil
}

// finishSubmission does what a submitter that died behind its append has left undone.
func (b *Broker) finishSubmission(ctx context.Context, head Head) {
	var err error
	switch {
	case head.State.Aggregate != nil && !head.State.Closed:
		_, err = b.EnsureChildren(ctx, head)
	case lifecycle.DutiesOf(head.State).Offer:
		err = b.EnsureOffer(ctx, head)
	}
	if err != nil {
		b.log.Warn("not made up for; a supervisor will", "ticket", head.Ticket, "seq", head.Seq, "err", err)
	}
}

// nameParties puts source and target of a package into an error about it.
func nameParties(err error, pkg protocol.Package) error {
	var e *protocol.Error
	if !errors.As(err, &e) {
		return err
	}
	with := *e
	with.Source, with.Target = pkg.Source, pkg.Target.String()
	return &with
}
