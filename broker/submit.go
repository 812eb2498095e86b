package broker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

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
	// Redacted counts the secrets that were taken out.
	Redacted int
	summary  protocol.Summary
}

// Prepare checks a package and gives it its ticket: derived from source and
// key if it has a key, else from parent and key, else random. A *protocol.Error says what is wrong.
func (b *Broker) Prepare(pkg protocol.Package) (Prepared, error) {
	now := b.now(Head{})
	given := pkg.CreatedAt
	pkg.Normalize(now)
	if err := pkg.Validate(now); err != nil {
		return Prepared{}, err
	}
	if len(pkg.Expectations.OutputSchema) > 0 {
		if err := schema.CheckSchema(pkg.Expectations.OutputSchema); err != nil {
			return Prepared{}, err
		}
	}
	body, redacted, err := b.encode(pkg)
	if err != nil {
		return Prepared{}, err
	}
	if len(body) > protocol.PackageBytesMax {
		return Prepared{}, protocol.Errorf(protocol.CodeTooLarge, "package", "is %d bytes, at most %d are allowed; hand large files over as artifacts", len(body), protocol.PackageBytesMax)
	}
	ticket, digested := protocol.NewTicket(), body
	if pkg.Key != "" {
		ticket = protocol.TicketForKey(pkg.Source, pkg.Key)
		if given.IsZero() { // the same package sent again has another time, and is the same
			again := pkg
			again.CreatedAt = given
			if digested, _, err = b.encode(again); err != nil {
				return Prepared{}, err
			}
		}
	}
	sum := sha256.Sum256(digested)
	return Prepared{Ticket: ticket, Package: pkg, Body: body, Redacted: redacted,
		summary: pkg.Summarize("sha256:" + hex.EncodeToString(sum[:]))}, nil
}

func (b *Broker) encode(pkg protocol.Package) (json.RawMessage, int, error) {
	body, err := protocol.EncodePackage(pkg)
	if err != nil {
		return nil, 0, err
	}
	body, redacted := b.redactor.Redact(body)
	return body, redacted, nil
}

// Submit appends a prepared package to the ledger and puts its offer into the
// target's queue. Submitting the same key with the same package again returns
// the handoff that is there. Lost connections are tried again until ctx ends;
// then the submission may or may not have happened, which Status tells, or
// Submit again with the same Prepared.
func (b *Broker) Submit(ctx context.Context, in Prepared) (Head, error) {
	directory, err := b.directoryFor(ctx, in.summary)
	if err != nil {
		return Head{}, err
	}
	var body protocol.Submitted
	if len(in.Body) > protocol.InlineBytesMax {
		// The blob goes first: an append never names what is not there.
		blob, err := b.PutBlob(ctx, in.Body)
		if err != nil {
			return Head{}, fmt.Errorf("store package: %w", err)
		}
		body.Blob = &blob
	} else {
		body.Package = in.Body
	}
	empty := Head{Ticket: in.Ticket}
	events, err := lifecycle.Submit(in.Ticket, in.summary, body, directory, b.now(empty))
	if err != nil {
		return Head{}, named(err, in.Package)
	}
	head, err := b.store(ctx, empty, events)
	switch {
	case errors.Is(err, ErrConflict):
		return b.submittedBefore(ctx, in)
	case err != nil:
		return Head{}, err
	}
	if err := b.putOffer(ctx, head, body.Package, body.Blob, nil); err != nil {
		b.log.Warn("offer not queued; a supervisor will", "ticket", head.Ticket, "seq", head.Seq, "err", err)
	}
	return head, nil
}

// CheckTarget says what Submit would say of the package's target, and which
// agent would get the offer. Nothing is written.
func (b *Broker) CheckTarget(ctx context.Context, in Prepared) (agent string, err error) {
	directory, err := b.directoryFor(ctx, in.summary)
	if err != nil {
		return "", err
	}
	events, err := lifecycle.Submit(in.Ticket, in.summary, protocol.Submitted{}, directory, b.now(Head{}))
	if err != nil {
		return "", named(err, in.Package)
	}
	return events[len(events)-1].(*protocol.Offered).Agent, nil
}

// submittedBefore tells a repeated submission from a key used for something else.
func (b *Broker) submittedBefore(ctx context.Context, in Prepared) (Head, error) {
	head, err := b.Head(ctx, in.Ticket, 0)
	if err != nil {
		return Head{}, err
	}
	if head.State.Digest != in.summary.Digest {
		return Head{}, named(protocol.Errorf(protocol.CodeKeyReused, "key", "the key %q was used by %s for another package (ticket %s)", in.Package.Key, in.Package.Source, in.Ticket), in.Package)
	}
	return head, nil
}

// directoryFor reads as little of the directory as the target needs: one agent
// by name, all of it for a capability.
func (b *Broker) directoryFor(ctx context.Context, s protocol.Summary) (*lifecycle.Directory, error) {
	if s.Target.Agent == "" {
		return b.Directory(ctx)
	}
	directory := &lifecycle.Directory{Agents: map[string]protocol.Profile{}}
	profile, err := b.Profile(ctx, s.Target.Agent)
	switch {
	case errors.Is(err, ErrNotFound):
	case err != nil:
		return nil, err
	default:
		directory.Agents[profile.ID] = profile
	}
	return directory, nil
}

// named puts source and target of a package into an error about it.
func named(err error, pkg protocol.Package) error {
	var e *protocol.Error
	if !errors.As(err, &e) {
		return err
	}
	with := *e
	with.Source, with.Target = pkg.Source, pkg.Target.String()
	return &with
}
