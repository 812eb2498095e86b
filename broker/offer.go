package broker

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
	"github.com/agenthandoff/handoff/protocol/record"
)

// ErrOfferGone: this offer is not to be had, because the handoff closed, moved
// on, or is another holder's. Normal; pull the next one.
var ErrOfferGone = errors.New("offer gone")

// Offer is a handoff that the queue has put into this process's hands. It is
// claimed by acknowledging it; until then it is anybody's. Not safe for
// concurrent use, but for Extend, which may go on beside everything else.
type Offer struct {
	*Head    // that it was made from, or that was read since
	Ticket   string
	Agent    string
	Sequence uint64 // the offer's id

	b               *Broker
	read            bool              // Head was read from the ledger
	profile         *protocol.Profile // the agent's when it was pulled
	slot            bool              // one was taken for it
	asked           bool              // an append that gives it to a holder had no answer; it may be stored
	delivery        Delivery
	pkg             json.RawMessage
	given           json.RawMessage // the package as it is stored, where pkg is as the agent gets it
	blob            *protocol.BlobRef
	annotations     annotations
	annotationsBlob *protocol.BlobRef // the annotations, where they are too large for the queue
}

// Pull takes up to most offers from an agent's queue, the most urgent first. It waits up to
// wait for the first one. Reserve the slots before you call it. A message that is not an offer
// is removed, and Pull goes on after it, even past wait: the ledger has what it takes to make
// an offer again. Of an agent with max_concurrency, Pull takes only as many as the agent has
// capacity for beside the handoffs of all its holders, and waits for capacity first.
func (b *Broker) Pull(ctx context.Context, agent string, most int, wait time.Duration) ([]*Offer, error) {
	profile, err := b.profileOf(ctx, agent)
	if err != nil {
		return nil, err
	}
	if limit := profile.MaxConcurrency; limit > 0 {
		if most, wait, err = b.awaitCapacity(ctx, agent, limit, most, wait); err != nil || most == 0 {
			return nil, err
		}
	}
	for until := time.Now().Add(wait); ; wait = max(time.Until(until), 0) {
		deliveries, err := b.queue.Pull(ctx, agent, most, wait)
		if err != nil {
			return nil, err
		}
		if offers := b.decodeOffers(deliveries, &profile); len(offers) > 0 || len(deliveries) == 0 {
			return offers, nil
		}
	}
}

// decodeOffers are the deliveries that are offers. The others are removed.
func (b *Broker) decodeOffers(deliveries []Delivery, profile *protocol.Profile) []*Offer {
	offers := make([]*Offer, 0, len(deliveries))
	for _, d := range deliveries {
		offer, err := b.decodeOffer(d)
		if err != nil {
			b.log.Warn("removed a message from the queue that is no offer", "agent", d.Key().Agent, "ticket", d.Key().Ticket, "err", err)
			_ = d.Remove() // else it comes again; the next reconciliation offers the handoff
			continue
		}
		offer.profile = profile
		offers = append(offers, offer)
	}
	return offers
}

func (b *Broker) decodeOffer(d Delivery) (*Offer, error) {
	key := d.Key()
	if _, err := protocol.ParseTicket(key.Ticket); err != nil || key.Sequence == 0 {
		return nil, errors.New("its subject is not that of an offer")
	}
	head := &Head{Ticket: key.Ticket}
	body, err := record.DecodeOffer(d.Body(), &head.State)
	if err == nil {
		err = checkOfferKey(key, &body)
	}
	if err != nil {
		return nil, fmt.Errorf("offer of %s: %w", key.Ticket, err)
	}
	head.Seq, head.Hash = body.Seq, body.Hash
	return &Offer{
		Head:   head,
		Ticket: key.Ticket, Agent: key.Agent, Sequence: key.Sequence,
		b: b, delivery: d, pkg: body.Package, blob: body.Blob, annotations: annotations{body.Answers, body.Trail}, annotationsBlob: body.AnswersBlob,
	}, nil
}

// checkOfferKey checks that an offer is of the handoff, and is the offer, that its subject names,
// and was made from an append. One that begins a handoff, or is another's, would be
// appended to the ledger.
func checkOfferKey(key OfferKey, o *record.Offer) error {
	switch s := o.State; {
	case s.Ticket != key.Ticket || s.Agent != key.Agent || s.Offer != key.Sequence:
		return fmt.Errorf("it holds offer %d of %q to %q", s.Offer, s.Ticket, s.Agent)
	case o.Seq < key.Sequence:
		return fmt.Errorf("it was made from entry %d, before there was an offer %d", o.Seq, key.Sequence)
	case len(o.Hash) != 2*sha256.Size:
		return fmt.Errorf("it names no entry: its hash is %q", o.Hash[:min(len(o.Hash), 16)])
	}
	return nil
}

// Package returns what is handed off, as the agent gets it. It is fetched where it is large, and so
// are the answers.
func (o *Offer) Package(ctx context.Context) (json.RawMessage, error) {
	if o.blob != nil && o.pkg == nil {
		pkg, err := o.b.blobs.Blob(ctx, *o.blob)
		if err != nil {
			return nil, fmt.Errorf("package of %s: %w", o.Ticket, err)
		}
		o.pkg = pkg
	}
	if o.annotationsBlob != nil {
		body, err := o.b.blobs.Blob(ctx, *o.annotationsBlob)
		if err == nil {
			err = json.Unmarshal(body, &o.annotations)
		}
		if err != nil {
			return nil, fmt.Errorf("answers to %s: %w", o.Ticket, err)
		}
		o.annotationsBlob = nil
	}
	if o.given == nil && suits(o.profile) {
		o.given, o.pkg = o.pkg, suited(o.pkg, o.profile)
	}
	return o.pkg, nil
}

// Inline tells whether all of it came with the offer, so that Package asks nothing.
func (o *Offer) Inline() bool { return (o.blob == nil || o.pkg != nil) && o.annotationsBlob == nil }

// Answers are the supplements given so far, oldest first; large ones are there
// once Package has returned.
func (o *Offer) Answers() []protocol.Answer { return o.annotations.Answers }

// Trail is what happened to the handoff before: refusals, escalations, failed
// attempts; there once Package has returned.
func (o *Offer) Trail() []protocol.TrailEntry { return o.annotations.Trail }

// Release lets anybody have the offer at once. Nothing was appended.
func (o *Offer) Release() error { return o.delivery.Release() }

// Extend keeps the offer from being delivered to others for another AckWait.
func (o *Offer) Extend() error { return o.delivery.Extend() }

// Acknowledge answers the offer for a holder: accepted, rejected or
// conditional. start says that the work begins with the acceptance. The claim is nil
// unless the answer was accepted. ErrOfferGone (wrapped) means that there is
// nothing to answer; what the queue needed for it was done. The queue is done with an
// offer that a polling holder accepts: the end comes from another process.
//
// An acceptance may be stored although its answer was lost. Acknowledge then returns the claim
// that the ledger has. A worker's holder gets it for an offer that is delivered again, too: so a
// worker acknowledges an offer only while it does not work on it.
func (o *Offer) Acknowledge(ctx context.Context, holder protocol.Holder, ack protocol.Ack, start bool) (*Claim, error) {
	if err := ack.Validate(); err != nil {
		return nil, err
	}
	claimant := o.claimant(holder)
	if ack.Status == protocol.AckAccepted {
		if _, err := o.Package(ctx); err != nil { // before the append: no worker may hold what it cannot read
			return nil, err
		}
	}
	claim, err := o.appendAnswer(ctx, holder, func(s protocol.State, now time.Time) (lifecycle.Step, error) {
		return lifecycle.Acknowledge(s, claimant, ack, start, now)
	})
	if claim != nil && holder.Polling {
		return claim, claim.removeOffer()
	}
	return claim, err
}

// Claim takes the offer for a holder that polls and will acknowledge later,
// from another process perhaps: the ledger records who has it, and the queue
// is done with it. A claim that is not acknowledged within ackWithin lapses, at most
// protocol.AckWithinMaxMS; 0 is the handoff's acknowledge timeout (an hour for a person).
func (o *Offer) Claim(ctx context.Context, holder protocol.Holder, ackWithin time.Duration) (*Claim, error) {
	within := ackWithin.Milliseconds()
	if err := protocol.CheckAckWithin(within); err != nil {
		return nil, err
	}
	if _, err := o.Package(ctx); err != nil {
		return nil, err
	}
	claim, err := o.appendAnswer(ctx, holder, func(s protocol.State, now time.Time) (lifecycle.Step, error) {
		return lifecycle.ClaimOnly(s, o.claimant(holder), within, now)
	})
	if err != nil {
		return nil, err
	}
	return claim, claim.removeOffer()
}

func (o *Offer) claimant(h protocol.Holder) lifecycle.Claimant {
	return lifecycle.Claimant{Agent: o.Agent, Holder: h.ID, LeaseMS: h.LeaseMS, Offer: o.Sequence}
}

// appendAnswer appends what answer says to the head, as soon as the core lets this
// claimant have it. The offer's own state serves as the head until a conflict
// shows that it is old, or nothing can follow from it; then the leader is asked.
func (o *Offer) appendAnswer(ctx context.Context, holder protocol.Holder, answer func(protocol.State, time.Time) (lifecycle.Step, error)) (*Claim, error) {
	for {
		next, err := o.tryAnswer(ctx, holder, answer)
		if errors.Is(err, ErrConflict) || !o.read && isOfferInvalid(err) {
			if err = o.refresh(ctx); err == nil {
				continue
			}
		}
		switch {
		case errors.Is(err, errAtCapacity):
			if err := o.delivery.Release(); err != nil {
				return nil, err
			}
			return nil, fmt.Errorf("offer %d of %s: %w: %w", o.Sequence, o.Ticket, err, ErrOfferGone)
		case errors.Is(err, errSlotTaken): // it comes again, should that one never accept it
			return nil, fmt.Errorf("offer %d of %s: %w: %w", o.Sequence, o.Ticket, err, ErrOfferGone)
		case errors.Is(err, ErrOfferGone):
			o.releaseSlot(ctx, holder)
			return nil, err
		case err != nil: // it may be stored all the same, so that its slot counts
			return nil, err
		case next.State.Holder == "": // refused or conditional
			return nil, o.delivery.Remove()
		}
		return o.claimOf(holder, next), nil
	}
}

func (o *Offer) claimOf(holder protocol.Holder, head *Head) *Claim {
	return &Claim{Ticket: o.Ticket, Agent: o.Agent, Holder: holder, Offer: o.Sequence, Package: o.pkg,
		Answers: o.annotations.Answers, Trail: o.annotations.Trail, b: o.b, locked: make(chan struct{}, 1), delivery: o.delivery, head: head,
		fence: head.State.Fence, limited: o.profile.MaxConcurrency > 0, suited: suits(o.profile), given: o.given}
}

func (o *Offer) tryAnswer(ctx context.Context, holder protocol.Holder, answer func(protocol.State, time.Time) (lifecycle.Step, error)) (*Head, error) {
	verdict, draft, err := o.judge(ctx, holder, answer)
	if err != nil {
		return nil, err
	}
	switch verdict {
	case lifecycle.Drop:
		return nil, o.removeEnded(ctx, draft)
	case lifecycle.Mine:
		if o.asked || !holder.Polling {
			return o.Head, nil
		}
		return nil, fmt.Errorf("offer %d of %s is held by this holder: %w", o.Sequence, o.Ticket, ErrOfferGone)
	case lifecycle.LetGo:
		return nil, fmt.Errorf("offer %d of %s is held: %w", o.Sequence, o.Ticket, ErrOfferGone)
	}
	if limit := o.profile.MaxConcurrency; limit > 0 && assignsHolder(draft.events) {
		taken, err := o.b.takeSlot(ctx, o.Agent, limit, o.Ticket, o.b.slotOf(holder, o.Sequence))
		if err != nil {
			return nil, err
		}
		o.slot = o.slot || taken
	}
	next, err := o.b.appendWithOffer(ctx, o.Head, draft, o.Sequence)
	if err != nil && !errors.Is(err, ErrConflict) && assignsHolder(draft.events) {
		o.asked = true
	}
	return next, err
}

// judge decides what becomes of the answer. It reads the directory only where the decision depends
// on it: where a holder may be gone, and where the offer has ended and the handoff goes elsewhere.
func (o *Offer) judge(ctx context.Context, holder protocol.Holder, answer func(protocol.State, time.Time) (lifecycle.Step, error)) (lifecycle.Verdict, draft, error) {
	if o.State.Holder == "" {
		verdict, made, err := o.decideAnswer(holder, &lifecycle.Directory{}, answer)
		if err != nil || verdict != lifecycle.Drop || len(made.events) == 0 {
			return verdict, made, err
		}
	}
	directory, err := o.b.decisionDirectory(ctx, o.State)
	if err != nil {
		return 0, draft{}, err
	}
	return o.decideAnswer(holder, directory, answer)
}

// isOfferInvalid tells whether an offer's own state is what is wrong.
func isOfferInvalid(err error) bool {
	return errors.Is(err, lifecycle.ErrIllegal) || errors.Is(err, lifecycle.ErrStale) || errors.As(err, new(*protocol.Error))
}

// assignsHolder tells whether the handoff is in a holder's hands after the events.
func assignsHolder(events []protocol.Event) bool {
	switch events[len(events)-1].(type) {
	case *protocol.Claimed, *protocol.Accepted, *protocol.Started:
		return true
	}
	return false
}

// releaseSlot frees what was taken for an answer that came to nothing.
func (o *Offer) releaseSlot(ctx context.Context, holder protocol.Holder) {
	if o.slot {
		claim := Claim{Ticket: o.Ticket, Agent: o.Agent, Holder: holder, Offer: o.Sequence, b: o.b, limited: true}
		claim.releaseSlot(ctx)
	}
}

// decideAnswer judges the offer, and adds the answer to what goes before it where it
// may be taken.
func (o *Offer) decideAnswer(holder protocol.Holder, d *lifecycle.Directory, answer func(protocol.State, time.Time) (lifecycle.Step, error)) (verdict lifecycle.Verdict, made draft, err error) {
	defer func() { // the core panics rather than append what does not apply
		if broken := recover(); broken != nil {
			err = fmt.Errorf("claim %s at %d: %v: %w", o.Ticket, o.Head.Seq, broken, lifecycle.ErrIllegal)
		}
	}()
	now := o.b.decisionTime(o.Head)
	verdict, step := lifecycle.Claim(o.State, o.claimant(holder), d, now)
	if verdict == lifecycle.Take {
		next, err := answer(step.State, now)
		if err != nil {
			return verdict, draft{}, illegalEventError(o.Head, err)
		}
		step = step.Then(next)
	}
	return verdict, draftOf(o.Head, &step), nil
}

// removeEnded takes an offer that is over out of the queue, after appending what its
// end calls for.
func (o *Offer) removeEnded(ctx context.Context, draft draft) error {
	if len(draft.events) > 0 && len(lifecycle.NewMembers(o.State, draft.events)) == 0 { // else it is a supervisor's to decide
		if _, err := o.b.appendWithOffer(ctx, o.Head, draft, o.Sequence); err != nil {
			return err
		}
	}
	if err := o.delivery.Remove(); err != nil {
		return err
	}
	return fmt.Errorf("offer %d of %s is over: %w", o.Sequence, o.Ticket, ErrOfferGone)
}

// refresh reads the head from the leader. An offer whose handoff the leader
// does not know, or not so far, is let go and never removed: the leader may be
// behind, the ledger may be another one, or have lost its end.
func (o *Offer) refresh(ctx context.Context) error {
	head, err := o.b.Head(ctx, o.Ticket, 0)
	if errors.Is(err, ErrNotFound) || err == nil && head.Seq < o.Seq {
		return fmt.Errorf("offer %d of %s is of a handoff that the ledger does not have: %w", o.Sequence, o.Ticket, ErrOfferGone)
	}
	if err != nil {
		return err
	}
	o.Head, o.read = &head, true
	return nil
}

// Size returns how many bytes Package has yet to fetch; 0 where the offer is inline or was
// fetched.
func (o *Offer) Size() int64 {
	var size int64
	if o.blob != nil && o.pkg == nil {
		size += o.blob.Size
	}
	if o.annotationsBlob != nil {
		size += o.annotationsBlob.Size
	}
	return size
}
