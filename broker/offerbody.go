package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/record"
)

// annotations are what was said of a handoff since it was submitted: the answers given
// so far, oldest first, and the trail.
type annotations struct {
	Answers []protocol.Answer     `json:"answers,omitempty"`
	Trail   []protocol.TrailEntry `json:"trail,omitempty"`
}

// annotationsInlineMax bounds the annotations in an offer. With a package at its inline
// limit and a state at its own the offer stays far under the megabyte that the
// engine takes in a message: 20 answers of 256 KiB each would not.
const annotationsInlineMax = 128 << 10

// EnsureOffer makes sure that the head's current offer stands in its agent's
// queue. Doing it twice is harmless.
func (b *Broker) EnsureOffer(ctx context.Context, head Head) error {
	body, err := b.offerOf(ctx, &head)
	if err != nil {
		return err
	}
	return b.storeOffer(ctx, &head, body)
}

// storeOffer puts the head's offer into its queue. A supervisor sees an offer that stands for long, so
// that the append needs no announcement.
func (b *Broker) storeOffer(ctx context.Context, head *Head, body []byte) error {
	err := b.queue.PutOffer(withHandoffTrace(ctx, &head.State), offerKey(&head.State), body)
	if err == nil {
		b.timers.Settled(head.Ticket, head.Seq)
	}
	return err
}

// Outbox is what the last append of a handoff calls for outside of the ledger.
type Outbox struct {
	Head  Head
	Offer bool      // its current offer, in its agent's queue
	Seq   uint64    // under which its wake-up is armed
	At    time.Time // when that fires
}

// PublishOutbox is EnsureOffer and Arm for many handoffs, whose entries are not waited for
// one by one. It returns an error for each handoff, nil where its entries stand. The
// wake-up does not depend on the offer: what cannot be offered has a deadline all
// the same.
func (b *Broker) PublishOutbox(ctx context.Context, all []Outbox) []error {
	entries := make([]OutboxEntry, 0, 2*len(all))
	errs := make([]error, len(all))
	of := make([]int, 0, 2*len(all)) // whose each entry is
	for i := range all {
		head := &all[i].Head
		if all[i].Offer {
			body, err := b.offerOf(ctx, head)
			if errs[i] = err; err == nil {
				entries, of = append(entries, OutboxEntry{Offer: offerKey(&head.State), Body: body, Trace: TraceFrom(withHandoffTrace(ctx, &head.State))}), append(of, i)
			}
		}
		entries, of = append(entries, OutboxEntry{WakeUp: WakeUp{Ticket: head.Ticket, Seq: all[i].Seq, At: all[i].At}}), append(of, i)
	}
	for n, err := range b.queue.PublishOutbox(ctx, entries) {
		if err != nil {
			errs[of[n]] = errors.Join(errs[of[n]], err)
		}
	}
	return errs
}

// offerOf is the head's current offer as it stands in the queue.
func (b *Broker) offerOf(ctx context.Context, head *Head) ([]byte, error) {
	submitted, err := b.readSubmitted(ctx, head)
	if err != nil {
		return nil, err
	}
	notes, err := b.readAnnotations(ctx, head)
	if err != nil {
		return nil, err
	}
	return b.offerBody(ctx, nil, head, submitted.Package, submitted.Blob, notes)
}

func (b *Broker) putOffer(ctx context.Context, head *Head, pkg json.RawMessage, blob *protocol.BlobRef, n annotations) error {
	buf := newBuffer()
	defer buf.free()
	body, err := b.offerBody(ctx, buf.bytes, head, pkg, blob, n)
	if err != nil {
		return err
	}
	buf.bytes = body
	return b.storeOffer(ctx, head, body)
}

// offerBody appends the head's offer to buf.
func (b *Broker) offerBody(ctx context.Context, buf []byte, head *Head, pkg json.RawMessage, blob *protocol.BlobRef, n annotations) ([]byte, error) {
	offer := &record.Offer{Seq: head.Seq, Hash: head.Hash, State: &head.State, Package: pkg}
	offer.Blob, offer.Answers, offer.Trail = blob, n.Answers, n.Trail
	if len(n.Answers)+len(n.Trail) > 0 {
		body, err := protocol.Marshal(n)
		if err != nil {
			return nil, fmt.Errorf("encode answers of %s: %w", head.Ticket, err)
		}
		if len(body) > annotationsInlineMax {
			ref, err := b.blobs.PutBlob(ctx, body)
			if err != nil {
				return nil, fmt.Errorf("store answers of %s: %w", head.Ticket, err)
			}
			offer.Answers, offer.Trail, offer.AnswersBlob = nil, nil, &ref
		}
	}
	body, err := record.AppendOffer(buf, offer)
	if err != nil {
		return nil, fmt.Errorf("encode offer of %s: %w", head.Ticket, err)
	}
	return body, nil
}

func offerKey(s *protocol.State) OfferKey {
	return OfferKey{Agent: s.Agent, Lane: s.Priority, Ticket: s.Ticket, Sequence: s.Offer}
}

// submittedOnly is what submitted wants of an entry.
var submittedOnly = record.NewProjection(nil, protocol.EventSubmitted)

// readSubmitted reads the package, or where it lies, out of the event that carries it.
// The event's summary and policy stay empty.
func (b *Broker) readSubmitted(ctx context.Context, head *Head) (*protocol.Submitted, error) {
	body := head.entry // holds the package with most that no worker has claimed
	if body == nil || head.Seq != head.State.PackageSeq {
		entry, err := b.readEntry(ctx, head.Ticket, head.State.PackageSeq)
		if err != nil {
			return nil, fmt.Errorf("package of %s: %w", head.Ticket, err)
		}
		body = entry.Body
	}
	read, err := submittedOnly.Decode(body, head.State.PackageSeq)
	if err != nil {
		return nil, fmt.Errorf("package of %s: ledger entry %d: %w", head.Ticket, head.State.PackageSeq, err)
	}
	for _, e := range read.Events {
		if s, ok := e.(*protocol.Submitted); ok {
			return s, nil
		}
	}
	return nil, fmt.Errorf("package of %s: entry %d holds none", head.Ticket, head.State.PackageSeq)
}

// readAnnotations collects what was said of a handoff. Most handoffs have none and cost no
// read.
func (b *Broker) readAnnotations(ctx context.Context, head *Head) (annotations, error) {
	s := &head.State
	if s.Supplements == 0 && len(s.Tried) < 2 && s.AttemptsTotal == 0 && s.Origin == "" && s.ConditionRounds == 0 && s.QueuedSince.IsZero() {
		return annotations{}, nil
	}
	before, err := b.redriveOrigins(ctx, s.Origin)
	if err != nil {
		return annotations{}, err
	}
	var n annotations
	err = b.eachChange(ctx, head.Ticket, func(c protocol.Change) error {
		for _, e := range c.Record.Events {
			if a, ok := e.(*protocol.Answered); ok && !a.Answer.Deny {
				n.Answers = append(n.Answers, a.Answer)
			}
		}
		before = append(before, withoutBodies(c))
		return nil
	})
	n.Trail = protocol.TrailOf(before)
	return n, err
}

// originsMax is how many redrives of redrives are followed back.
const originsMax = 16

// redriveOrigins reads what happened to the handoff that one redrives, and to the one
// that that redrives, oldest first. What has aged out is left out.
func (b *Broker) redriveOrigins(ctx context.Context, origin string) ([]protocol.Change, error) {
	var all []protocol.Change
	for n := 0; origin != "" && n < originsMax; n++ {
		var own []protocol.Change
		if err := b.eachChange(ctx, origin, func(c protocol.Change) error {
			own = append(own, withoutBodies(c))
			return nil
		}); err != nil {
			return nil, err
		}
		if len(own) == 0 {
			break
		}
		origin, all = own[len(own)-1].Record.State.Origin, append(own, all...)
	}
	return all, nil
}

// withoutBodies lets go of the packages and results in a change, of which a
// long history would hold many. The change has to be the caller's own.
func withoutBodies(c protocol.Change) protocol.Change {
	for _, e := range c.Record.Events {
		if inline, _ := protocol.BodyOf(e); inline != nil {
			*inline = nil
		}
	}
	return c
}

// readChange reads the entry of a ticket at exactly seq, and decodes it.
func (b *Broker) readChange(ctx context.Context, ticket string, seq uint64) (protocol.Change, error) {
	entry, err := b.readEntry(ctx, ticket, seq)
	if err != nil {
		return protocol.Change{}, err
	}
	return DecodeChange(entry)
}

// readEntry reads the entry of a ticket at exactly seq.
func (b *Broker) readEntry(ctx context.Context, ticket string, seq uint64) (Entry, error) {
	if seq == 0 {
		return Entry{}, fmt.Errorf("no sequence: %w", ErrNotFound)
	}
	entry, err := b.ledger.Next(ctx, ticket, seq-1)
	if err == nil && entry.Seq != seq {
		err = fmt.Errorf("entry %d: %w", seq, ErrNotFound)
	}
	return entry, err
}

// DecodeChange reads a ledger entry whole, for those who tell what happened: what the
// entry says is not checked, and nothing may be decided by it.
func DecodeChange(e Entry) (protocol.Change, error) {
	read, err := record.Decode(e.Body, e.Seq)
	if err != nil {
		return protocol.Change{}, unreadable(e, err)
	}
	return protocol.Change{Seq: e.Seq, At: e.At, Hash: HashOf(e.Body), Record: read}, nil
}

// packageBody returns the package's bytes, from the blobs if they lie there.
func (b *Broker) packageBody(ctx context.Context, inline json.RawMessage, blob *protocol.BlobRef) (json.RawMessage, error) {
	if blob == nil {
		return inline, nil
	}
	return b.blobs.Blob(ctx, *blob)
}
