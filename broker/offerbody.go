package broker

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/agenthandoff/handoff/protocol"
)

// offerBody is what an offer carries in the queue: enough to accept it without
// reading anything else.
type offerBody struct {
	Seq     uint64            `json:"seq"`  // of the head it was made from
	Hash    string            `json:"hash"` // of that head
	State   protocol.State    `json:"state"`
	Package json.RawMessage   `json:"package,omitempty"`
	Blob    *protocol.BlobRef `json:"package_blob,omitempty"`
	Answers []protocol.Answer `json:"answers,omitempty"`
	// Trail is what happened to the handoff before it came here.
	Trail []protocol.TrailEntry `json:"trail,omitempty"`
	// AnswersBlob is where answers and trail lie that are too large to be here.
	AnswersBlob *protocol.BlobRef `json:"answers_blob,omitempty"`
}

// notes are what was said of a handoff since it was submitted: the answers given
// so far, oldest first, and the trail.
type notes struct {
	Answers []protocol.Answer     `json:"answers,omitempty"`
	Trail   []protocol.TrailEntry `json:"trail,omitempty"`
}

// notesInlineMax bounds the notes in an offer. With a package at its inline
// limit and a state at its own the offer stays far under the megabyte that the
// engine takes in a message: 20 answers of 256 KiB each would not.
const notesInlineMax = 128 << 10

// EnsureOffer makes sure that the head's current offer stands in its agent's
// queue. Doing it twice is harmless.
func (b *Broker) EnsureOffer(ctx context.Context, head Head) error {
	submitted, err := b.submitted(ctx, head)
	if err != nil {
		return err
	}
	notes, err := b.notes(ctx, head)
	if err != nil {
		return err
	}
	return b.putOffer(ctx, head, submitted.Package, submitted.Blob, notes)
}

func (b *Broker) putOffer(ctx context.Context, head Head, pkg json.RawMessage, blob *protocol.BlobRef, n notes) error {
	offer := offerBody{Seq: head.Seq, Hash: head.Hash, State: head.State, Package: pkg, Blob: blob, Answers: n.Answers, Trail: n.Trail}
	if len(n.Answers)+len(n.Trail) > 0 {
		body, err := encode(n)
		if err != nil {
			return fmt.Errorf("encode answers of %s: %w", head.Ticket, err)
		}
		if len(body) > notesInlineMax {
			ref, err := b.PutBlob(ctx, body)
			if err != nil {
				return fmt.Errorf("store answers of %s: %w", head.Ticket, err)
			}
			offer.Answers, offer.Trail, offer.AnswersBlob = nil, nil, &ref
		}
	}
	body, err := encode(offer)
	if err != nil {
		return fmt.Errorf("encode offer of %s: %w", head.Ticket, err)
	}
	return b.PutOffer(traced(ctx, head.State), offerKey(head.State), body)
}

// encode is json.Marshal without the escapes for HTML: they make six bytes of
// one, and of a package full of markup more than the engine takes in a message.
func encode(v any) ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(v)
	return out.Bytes(), err
}

func offerKey(s protocol.State) OfferKey {
	return OfferKey{Agent: s.Agent, Lane: s.Priority, Ticket: s.Ticket, Sequence: s.Offer}
}

// submitted reads the event that carries the package.
func (b *Broker) submitted(ctx context.Context, head Head) (*protocol.Submitted, error) {
	change, err := b.change(ctx, head.Ticket, head.State.PackageSeq)
	if err != nil {
		return nil, fmt.Errorf("package of %s: %w", head.Ticket, err)
	}
	for _, e := range change.Record.Events {
		if s, ok := e.(*protocol.Submitted); ok {
			return s, nil
		}
	}
	return nil, fmt.Errorf("package of %s: entry %d holds none", head.Ticket, change.Seq)
}

// notes collects what was said of a handoff. Most handoffs have none and cost no
// read.
func (b *Broker) notes(ctx context.Context, head Head) (notes, error) {
	s := head.State
	if s.Supplements == 0 && len(s.Tried) < 2 && s.AttemptsTotal == 0 && s.Origin == "" && s.ConditionRounds == 0 {
		return notes{}, nil
	}
	before, err := b.origins(ctx, s.Origin)
	if err != nil {
		return notes{}, err
	}
	var n notes
	err = b.changes(ctx, head.Ticket, func(c protocol.Change) error {
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

// origins reads what happened to the handoff that one redrives, and to the one
// that that redrives, oldest first. What has aged out is left out.
func (b *Broker) origins(ctx context.Context, origin string) ([]protocol.Change, error) {
	var all []protocol.Change
	for n := 0; origin != "" && n < originsMax; n++ {
		var own []protocol.Change
		if err := b.changes(ctx, origin, func(c protocol.Change) error {
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

// change reads the entry of a ticket at exactly seq.
func (b *Broker) change(ctx context.Context, ticket string, seq uint64) (protocol.Change, error) {
	if seq == 0 {
		return protocol.Change{}, fmt.Errorf("no sequence: %w", ErrNotFound)
	}
	entry, err := b.Next(ctx, ticket, seq-1)
	if err != nil {
		return protocol.Change{}, err
	}
	if entry.Seq != seq {
		return protocol.Change{}, fmt.Errorf("entry %d: %w", seq, ErrNotFound)
	}
	return DecodeChange(entry)
}

// DecodeChange reads a ledger entry whole.
func DecodeChange(e Entry) (protocol.Change, error) {
	record, err := protocol.DecodeRecord(e.Body, e.Seq)
	if err != nil {
		return protocol.Change{}, fmt.Errorf("ledger entry %d of %s: %w", e.Seq, e.Ticket, err)
	}
	return protocol.Change{Seq: e.Seq, At: e.At, Hash: hashOf(e.Body), Record: record}, nil
}

// packageBody returns the package's bytes, from the blobs if they lie there.
func (b *Broker) packageBody(ctx context.Context, inline json.RawMessage, blob *protocol.BlobRef) (json.RawMessage, error) {
	if blob == nil {
		return inline, nil
	}
	return b.Blob(ctx, *blob)
}
