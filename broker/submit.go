package broker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/internal/schema"
	"github.com/agenthandoff/handoff/protocol"
)

// Prepared is a validated, completed and redacted package, with its ticket. Nothing is written yet.
type Prepared struct {
	Ticket  string
	Package protocol.Package
	Body    json.RawMessage // the package in its stored form
	// Whole is Body with a conversation that is passed by reference: the form for a gateway, which
	// stores it.
	Whole json.RawMessage
	// Redacted counts the secrets that were removed.
	Redacted int
	summary  protocol.Summary
	context  string // for a child: the hash of its context
	// parts are the bodies that the package refers to.
	parts [][]byte
	// pastDeadline is the error for a deadline that has passed: Submit starts nothing, but finds an
	// earlier submission with the same key.
	pastDeadline error
}

// Prepare checks a package and assigns its ticket: derived from source and key if it has a key,
// otherwise random. A *protocol.Error has the fault. If there is a key, a deadline that has passed
// is left to Submit: the same package may have been submitted in time.
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
	trace := pkg.TakeTrace() // before the digest, which must not depend on the trace
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
		if given.IsZero() { // a resubmission has another time, but is the same package
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

// Submit appends a prepared package to the ledger and puts its offer into the target's queue.
// Repeating a submission with the same key and package returns the existing handoff, at any later
// time, and completes an interrupted submission. Submit retries lost connections until ctx ends;
// then the submission may or may not be stored: call Status, or Submit again with the same
// Prepared.
//
// Its trace is the package's own, otherwise that of ctx (WithTrace).
func (b *Broker) Submit(ctx context.Context, in Prepared) (head Head, err error) {
	in.summary.Trace = summaryTrace(ctx, in.summary.Trace)
	for {
		// The steps before the append time out without any effect; the append itself does not time out.
		head, err = b.submit(ctx, in)
		if !errors.Is(err, ErrUnreachable) || errors.Is(err, ErrClosed) {
			return head, err
		}
		if pauseFor(ctx, submitAgain) != nil {
			return head, err
		}
	}
}

// submitAgain is the pause after a submission that did not reach the engine.
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
			b.log.Warn("members not submitted; a supervisor will submit them", "ticket", head.Ticket, "err", err)
		}
		return *head, nil
	}
	if !lifecycle.DutiesOf(head.State).Offer { // it waits for a gate or a breaker
		b.callForBids(ctx, *head)
		return b.joinSubmitted(ctx, *head)
	}
	if err := b.putOffer(ctx, head, packed.body, packed.blob, annotations{}); err != nil {
		b.log.Warn("offer not queued; a supervisor will queue it", "ticket", head.Ticket, "seq", head.Seq, "err", err)
	}
	return *head, nil
}

// decideFirstAppend decides the first append, without the package, and returns the arguments of the
// decision: its directory is the part that the target needs. The restrictions of the source of
// a group are checked before its members, since a result may hand off to missing members.
func (b *Broker) decideFirstAppend(ctx context.Context, in Prepared) (step lifecycle.Step, q lifecycle.Query, err error) {
	if in.pastDeadline != nil {
		return step, q, in.pastDeadline
	}
	err = b.followParent(ctx, &in)
	if err == nil {
		step, q, err = b.decideSubmission(ctx, in)
	}
	if err == nil && in.summary.Aggregate != nil {
		err = b.checkMembers(ctx, in)
	}
	return step, q, nameParties(err, in.Package)
}

// followParent takes the lineage of a submission from the handoff that it names as its parent, so
// that loops of agents that submit without their leases are detected, too. An open parent with
// limits refuses the submission.
func (b *Broker) followParent(ctx context.Context, in *Prepared) error {
	s := &in.summary
	if s.Parent == "" || in.context != "" { // a child handed off under a lease already has its lineage
		return nil
	}
	parent, err := b.Head(ctx, s.Parent, 0)
	if isAbsent(err) { // for example a ticket of another system
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

// resubmit handles a submission that is not the first.
func (b *Broker) resubmit(ctx context.Context, in Prepared, why error) (Head, error) {
	head, err := b.submittedBefore(ctx, in, why)
	if err == nil {
		head.Repeated = true
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
		b.log.Warn("agents not asked for bids; a supervisor will ask them", "ticket", head.Ticket, "err", err)
	}
}

// joinSubmitted gives a handoff that waits at the gate of its workspace its place. If it has lost
// the race for the last place, it is refused, as it would have been a moment later.
func (b *Broker) joinSubmitted(ctx context.Context, head Head) (Head, error) {
	joined, err := b.EnsureWorkspace(ctx, head)
	joined.Repeated = head.Repeated
	if err != nil {
		b.log.Warn("no place in the workspace yet; a supervisor will reserve it", "ticket", head.Ticket, "err", err)
		return head, nil
	}
	if refused := wasTurnedAway(joined.State); refused != nil {
		return joined, refused
	}
	return joined, nil
}

// wasTurnedAway returns the refusal of a handoff that got no place in its workspace, or no locks.
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

// submittedBefore finds the earlier submission of a repeated one. It returns an error if the key
// was used for another package, or why if there is none. A submission that was accepted once is not
// refused later, even if its target no longer exists.
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

// finishSubmission completes the work of a submitter that died after its append.
func (b *Broker) finishSubmission(ctx context.Context, head Head) {
	var err error
	switch {
	case head.State.Aggregate != nil && !head.State.Closed:
		_, err = b.EnsureChildren(ctx, head)
	case lifecycle.DutiesOf(head.State).Offer:
		err = b.EnsureOffer(ctx, head)
	}
	if err != nil {
		b.log.Warn("interrupted submission not completed; a supervisor will complete it", "ticket", head.Ticket, "seq", head.Seq, "err", err)
	}
}

// nameParties adds the source and target of a package to an error.
func nameParties(err error, pkg protocol.Package) error {
	e, ok := errors.AsType[*protocol.Error](err)
	if !ok {
		return err
	}
	with := *e
	with.Source, with.Target = pkg.Source, pkg.Target.String()
	return &with
}

// checkMembers refuses a group if one recipient cannot get an offer. A recipient that a rule bars
// is reported before a missing one: hand-offs to missing recipients are recorded all the same.
func (b *Broker) checkMembers(ctx context.Context, in Prepared) error {
	directory, err := b.Directory(ctx)
	if err != nil {
		return err
	}
	group := protocol.State{Ticket: in.Ticket, Summary: in.summary}
	var first error
	for n := range in.summary.Aggregate.Size {
		member, err := in.Package.MemberAt(in.Ticket, n)
		if err != nil {
			return err
		}
		summary, body := lifecycle.MemberOf(group, member, "", nil), in.Body
		if !member.Shared && directory.HasContracts() {
			if body, _, err = b.encodePackage(ctx, member.Package); err != nil {
				return err
			}
		}
		q := lifecycle.Query{Directory: directory, Contract: contractOf(body, member.Package.Context.Transfer())}
		if first != nil && !isBarred(summary, q) {
			continue
		}
		why, err := b.refusal(ctx, summary, q)
		if err == nil {
			err = why
		}
		var refused *protocol.Error
		if errors.As(err, &refused) {
			with := *refused
			with.Field = fmt.Sprintf("members[%d].%s", n, refused.Field)
			switch {
			case member.Shared && refused.Code == protocol.CodeContract: // the shared context breaks the contract
				with.Field = refused.Field
			case member.Shared:
				with.Field = fmt.Sprintf("target.agents[%d]", n)
			}
			if lifecycle.Bars(refused.Code) {
				return &with
			}
			first = cmp.Or(first, error(&with))
			continue
		}
		if err != nil {
			return err
		}
	}
	return first
}

// isBarred reports whether a rule bars a handoff, judged by a snapshot.
func isBarred(s protocol.Summary, q lifecycle.Query) bool {
	var refused *protocol.Error
	_, err := lifecycle.Admit(s, q)
	return errors.As(err, &refused) && lifecycle.Bars(refused.Code)
}

// respell replaces the names in a package that a result hands off by the agents that they denote
// (Directory.Spelled). A name that denotes no agent is kept if it could be the id of a future
// agent; field is that of the command. It makes only reads that the submission of the package makes
// next.
func (c *Claim) respell(ctx context.Context, field string, pkg *protocol.Package) error {
	names := []*string{&pkg.Target.Agent}
	for i := range pkg.Target.Agents {
		names = append(names, &pkg.Target.Agents[i])
	}
	for i := range pkg.Members {
		names = append(names, &pkg.Members[i].Target.Agent)
	}
	for _, name := range names {
		isID := protocol.CheckAgent(field, *name)
		if *name == "" || *name == protocol.Human {
			continue
		}
		if isID == nil && len(names) == 1 {
			if profile, _, err := c.b.recentProfile(ctx, *name, profileFresh); err != nil || profile != nil {
				return err
			}
		}
		d, err := c.b.Directory(ctx)
		if err != nil {
			return err
		}
		if agent, ok := d.Spelled(*name); ok {
			*name = agent
		} else if alike := d.Alike(*name); len(alike) > 1 && isID != nil {
			return protocol.Errorf(protocol.CodeInvalid, field, "%q may be any of %s; use one of these names", *name, strings.Join(alike, ", "))
		} else if isID != nil {
			return isID
		}
	}
	return nil
}
