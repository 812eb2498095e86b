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
	// AnswersBlob is where the answers lie that are too large to be here.
	AnswersBlob *protocol.BlobRef `json:"answers_blob,omitempty"`
}

// answersInlineMax bounds the answers in an offer. With a package at its inline
// limit and a state at its own the offer stays far under the megabyte that the
// engine takes in a message: 20 answers of 256 KiB each would not.
const answersInlineMax = 128 << 10

// EnsureOffer makes sure that the head's current offer stands in its agent's
// queue. Doing it twice is harmless.
func (b *Broker) EnsureOffer(ctx context.Context, head Head) error {
	submitted, err := b.submitted(ctx, head)
	if err != nil {
		return err
	}
	answers, err := b.answers(ctx, head)
	if err != nil {
		return err
	}
	return b.putOffer(ctx, head, submitted.Package, submitted.Blob, answers)
}

func (b *Broker) putOffer(ctx context.Context, head Head, pkg json.RawMessage, blob *protocol.BlobRef, answers []protocol.Answer) error {
	offer := offerBody{Seq: head.Seq, Hash: head.Hash, State: head.State, Package: pkg, Blob: blob, Answers: answers}
	if len(answers) > 0 {
		list, err := encode(answers)
		if err != nil {
			return fmt.Errorf("encode answers of %s: %w", head.Ticket, err)
		}
		if len(list) > answersInlineMax {
			ref, err := b.PutBlob(ctx, list)
			if err != nil {
				return fmt.Errorf("store answers of %s: %w", head.Ticket, err)
			}
			offer.Answers, offer.AnswersBlob = nil, &ref
		}
	}
	body, err := encode(offer)
	if err != nil {
		return fmt.Errorf("encode offer of %s: %w", head.Ticket, err)
	}
	return b.PutOffer(ctx, offerKey(head.State), body)
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

// answers collects the supplements given so far, oldest first. Most handoffs
// have none and cost no read.
func (b *Broker) answers(ctx context.Context, head Head) ([]protocol.Answer, error) {
	if head.State.Supplements == 0 {
		return nil, nil
	}
	var answers []protocol.Answer
	err := b.changes(ctx, head.Ticket, func(c protocol.Change) error {
		for _, e := range c.Record.Events {
			if a, ok := e.(*protocol.Answered); ok && !a.Answer.Deny {
				answers = append(answers, a.Answer)
			}
		}
		return nil
	})
	return answers, err
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
