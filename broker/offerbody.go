package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/internal/record"
	"github.com/agenthandoff/handoff/protocol"
)

// annotations are added to a handoff after its submission: the answers given so far, oldest first,
// and the trail.
type annotations struct {
	Answers []protocol.Answer     `json:"answers,omitempty"`
	Trail   []protocol.TrailEntry `json:"trail,omitempty"`
}

// annotationsInlineMax bounds the annotations in an offer. With a package and a state at their
// limits, the offer stays far below the engine's limit of a megabyte for a message: 20 answers of
// 256 KiB each would not.
const annotationsInlineMax = 128 << 10

// EnsureOffer ensures that the head's current offer is in its agent's queue. It is idempotent.
func (b *Broker) EnsureOffer(ctx context.Context, head Head) error {
	body, err := b.offerOf(ctx, &head)
	if err != nil {
		return err
	}
	return b.storeOffer(ctx, &head, body)
}

// storeOffer puts the head's offer into its queue. A supervisor notices an offer that stays in the
// queue for long, so the append needs no announcement.
func (b *Broker) storeOffer(ctx context.Context, head *Head, body []byte) error {
	err := b.engine.PutOffer(withHandoffTrace(ctx, &head.State), offerKey(&head.State), body)
	if err == nil {
		b.engine.Settled(head.Ticket, head.Seq)
	}
	return err
}

// Outbox lists the entries outside of the ledger that the last append of a handoff requires.
type Outbox struct {
	Head  Head
	Offer bool      // its current offer is required in its agent's queue
	Seq   uint64    // the sequence for its wake-up
	At    time.Time // when the wake-up fires
}

// PublishOutbox is EnsureOffer and Arm for many handoffs, without waiting for each entry. It
// returns an error for each handoff, nil if its entries are stored. The wake-up does not depend on
// the offer: a handoff that cannot be offered has a deadline all the same.
func (b *Broker) PublishOutbox(ctx context.Context, all []Outbox) []error {
	entries := make([]OutboxEntry, 0, 2*len(all))
	errs := make([]error, len(all))
	of := make([]int, 0, 2*len(all)) // the handoff of each entry
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
	for n, err := range b.engine.PublishOutbox(ctx, entries) {
		if err != nil {
			errs[of[n]] = errors.Join(errs[of[n]], err)
		}
	}
	return errs
}

// offerOf returns the head's current offer in its form in the queue.
func (b *Broker) offerOf(ctx context.Context, head *Head) ([]byte, error) {
	submitted, err := b.readSubmitted(ctx, head)
	if err == nil {
		err = b.checkBody(ctx, head.Ticket, submitted.Blob)
	}
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
			ref, err := b.engine.PutBlob(ctx, body)
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

// submittedOnly decodes only the submission of an entry.
var submittedOnly = record.NewProjection(nil, protocol.EventSubmitted)

// readSubmitted reads the package, or its reference, from the event that has it. The event's
// summary and policy stay empty.
func (b *Broker) readSubmitted(ctx context.Context, head *Head) (*protocol.Submitted, error) {
	body := head.entry // usually has the package while no worker has claimed the handoff
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

// readPackage reads the package of a handoff, and returns its bytes, too.
func (b *Broker) readPackage(ctx context.Context, head *Head) (pkg protocol.Package, body json.RawMessage, err error) {
	submitted, err := b.readSubmitted(ctx, head)
	if err != nil {
		return pkg, nil, err
	}
	return b.decodeSubmitted(ctx, head, submitted)
}

// decodeSubmitted decodes the package of a submission, and returns its bytes, too.
func (b *Broker) decodeSubmitted(ctx context.Context, head *Head, submitted *protocol.Submitted) (pkg protocol.Package, body json.RawMessage, err error) {
	if body, err = b.packageBody(ctx, submitted.Package, submitted.Blob); err == nil {
		pkg, err = protocol.DecodePackage(body)
	}
	if err != nil {
		err = fmt.Errorf("package of %s: %w", head.Ticket, err)
	}
	return pkg, body, err
}

// readAnnotations collects the annotations of a handoff. Most handoffs have none and need no read.
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

// originsMax is how many redrives of redrives are traced back.
const originsMax = 16

// redriveOrigins reads the changes of the handoff that a handoff redrives, and of that one's
// origin, and so on, oldest first. It skips changes that the ledger has dropped.
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

// withoutBodies drops the packages and results from a change: a long history would hold many. The
// caller must own the change.
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
	entry, err := b.engine.Next(ctx, ticket, seq-1)
	if err == nil && entry.Seq != seq {
		err = fmt.Errorf("entry %d: %w", seq, ErrNotFound)
	}
	return entry, err
}

// DecodeChange decodes a whole ledger entry, for reports of its events: it does not check them, and
// nothing may be decided by them.
func DecodeChange(e Entry) (protocol.Change, error) {
	read, err := record.Decode(e.Body, e.Seq)
	if err != nil {
		return protocol.Change{}, unreadable(e, err)
	}
	return protocol.Change{Seq: e.Seq, At: e.At, Hash: HashOf(e.Body), Record: read}, nil
}

// packageBody returns the package's bytes, from the blobs if stored there.
func (b *Broker) packageBody(ctx context.Context, inline json.RawMessage, blob *protocol.BlobRef) (json.RawMessage, error) {
	if blob == nil {
		return inline, nil
	}
	return b.engine.Blob(ctx, *blob)
}

// RefOf returns the reference under which a body is stored: its digest and size.
func RefOf(body []byte) protocol.BlobRef {
	return protocol.BlobRef{Digest: protocol.Digest(body), Size: int64(len(body))}
}

// PresenceTTL returns how long a holder's entry outlives a beat: its lease, rounded up to whole
// seconds, the engine's unit.
func PresenceTTL(h protocol.Holder) time.Duration {
	lease := time.Duration(h.LeaseMS) * time.Millisecond
	return max(time.Second, (lease + time.Second - 1).Truncate(time.Second))
}

// BodyLostError reports that a package stored outside the ledger is missing. Its handoff cannot
// continue until the package is restored from a backup, or the same package is resubmitted.
type BodyLostError struct {
	Ticket string
	Ref    protocol.BlobRef
}

// BodyLost is the prefix of each BodyLostError's text, and so of the reason of a handoff stuck with
// it.
const BodyLost = "body_lost"

// Error implements error.
func (e *BodyLostError) Error() string {
	return fmt.Sprintf(BodyLost+": the package of %s (%d bytes, %.19s) is no longer in the object store", e.Ticket, e.Ref.Size, e.Ref.Digest)
}

// Unwrap implements errors.Is.
func (e *BodyLostError) Unwrap() error { return ErrNotFound }

// CheckPackage checks that the package of an open handoff can be read. It returns a *BodyLostError
// if not.
func (b *Broker) CheckPackage(ctx context.Context, head Head) error {
	submitted, err := b.readSubmitted(ctx, &head)
	if err != nil {
		return err
	}
	return b.checkBody(ctx, head.Ticket, submitted.Blob)
}

// checkBody checks that a package stored outside the ledger exists. A nil reference is an inline
// package.
func (b *Broker) checkBody(ctx context.Context, ticket string, ref *protocol.BlobRef) error {
	if ref == nil {
		return nil
	}
	err := b.engine.HasBlob(ctx, *ref)
	if errors.Is(err, ErrNotFound) {
		return &BodyLostError{Ticket: ticket, Ref: *ref}
	}
	return err
}

// buffer is memory for an encoded body. Buffers are reused: a handoff writes three appends and an
// offer, and the engine keeps none of them.
type buffer struct{ bytes []byte }

// bufferBytesMax is the largest buffer that is reused.
const bufferBytesMax = 1 << 20

var buffers = sync.Pool{New: func() any { return new(buffer) }}

// newBuffer returns an empty buffer.
func newBuffer() *buffer { return buffers.Get().(*buffer) }

// free releases the buffer; its content must no longer be used.
func (b *buffer) free() {
	if b.bytes = b.bytes[:0]; cap(b.bytes) <= bufferBytesMax {
		buffers.Put(b)
	}
}

// readsOfContext is the most bodies of one context that are read: a million messages need 15,626.
const readsOfContext = 20_000

// referContext replaces a conversation that is passed by reference with its reference. It returns
// that package, the bodies that Submit stores, and the original package. It redacts secrets first.
func (b *Broker) referContext(ctx context.Context, pkg protocol.Package) (small protocol.Package, bodies [][]byte, whole json.RawMessage, redacted int, err error) {
	if whole, redacted, err = b.encodePackage(ctx, pkg); err != nil {
		return pkg, nil, nil, 0, err
	}
	if small, err = protocol.DecodePackage(whole); err != nil {
		return pkg, nil, nil, 0, err
	}
	bodies, err = small.StoreContext()
	return small, bodies, whole, redacted, err
}

// storePackage stores a package, after the bodies that it refers to.
func (b *Broker) storePackage(ctx context.Context, in Prepared) (storedBody, error) {
	if parts := in.parts; len(parts) > 0 {
		err := forEachParallel(ctx, len(parts), func(ctx context.Context, i int) error {
			_, err := b.engine.PutBlob(ctx, parts[i])
			return err
		})
		if err != nil {
			return storedBody{}, err
		}
	}
	return b.storeBody(ctx, in.Body, in.Package.GroupSize())
}

// Context returns the whole context of a handoff: the one that its package refers to, or the
// package's own. A context in another system is not fetched; the package's own is returned. It
// takes a read per 64 messages. The error is ErrNotFound if the handoff does not exist, and a
// *protocol.Error with CodeNotFound if a part of the context is missing.
func (b *Broker) Context(ctx context.Context, ticket string) (protocol.Context, error) {
	body, err := b.Package(ctx, ticket)
	if err != nil {
		return protocol.Context{}, err
	}
	pkg, err := protocol.DecodePackage(body)
	if err != nil {
		return protocol.Context{}, err
	}
	ref, ours := protocol.ParseContextURL(pkg.Context.ContextURL)
	if !ours {
		return pkg.Context, nil
	}
	reads := 0
	return protocol.ReadContext(ref, func(ref protocol.BlobRef) ([]byte, error) {
		if reads++; reads > readsOfContext {
			return nil, protocol.Errorf(protocol.CodeTooLarge, "context.context_url", "has more than %d pieces", readsOfContext)
		}
		body, err := b.engine.Blob(ctx, ref)
		if isAbsent(err) {
			err = protocol.Errorf(protocol.CodeNotFound, "context.context_url", "refers to a body that does not exist or no longer exists: %v", err)
		}
		return body, err
	})
}
