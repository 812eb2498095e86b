package broker

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/internal/record"
	"github.com/agenthandoff/handoff/protocol"
)

// ErrOfferGone: this offer is not available, because the handoff has closed, changed, or has
// another holder. This is normal; pull the next one.
var ErrOfferGone = errors.New("offer gone")

// Offer is a handoff that the queue has delivered to this process. Acknowledging it claims it;
// until then any worker may claim it. Only Extend is safe for concurrent use.
type Offer struct {
	*Head    // that it was made from, or a newer one
	Ticket   string
	Agent    string
	Sequence uint64 // the offer's id

	b               *Broker
	read            bool                // Head was read from the ledger
	profile         *protocol.Profile   // the agent's when it was pulled
	slot            bool                // one was taken for it
	limits          []protocol.KeyLimit // by keys, of the settings when it was claimed
	shared          bool                // another claim of the handoff has a place under one of them
	taken           []string            // the keys under which this offer took a place
	asked           bool                // an append that gives it to a holder got no answer; it may be stored
	again           bool                // its holder had it before
	delivery        Delivery
	pkg             json.RawMessage
	given           json.RawMessage // the stored package, if pkg is the agent's form of it
	blob            *protocol.BlobRef
	annotations     annotations
	annotationsBlob *protocol.BlobRef // the annotations, if they are too large for the queue
}

// Pull takes up to most offers from an agent's queue, the most urgent first. It waits up to wait
// for the first one. Reserve the slots before you call it. A malformed message is removed, and Pull
// continues after it, even past wait: the ledger has all data to recreate an offer. For an agent
// with max_concurrency, Pull takes only as many as the agent has capacity for, after the handoffs
// of all its holders, and waits for capacity first.
func (b *Broker) Pull(ctx context.Context, agent string, most int, wait time.Duration) ([]*Offer, error) {
	profile, err := b.ownProfile(ctx, agent)
	if err != nil {
		return nil, err
	}
	if wait, err = b.slots.awaitRest(ctx, agent, wait); err != nil {
		return nil, err
	}
	if limit := profile.MaxConcurrency; limit > 0 {
		if most, wait, err = b.awaitCapacity(ctx, agent, limit, most, wait); err != nil || most == 0 {
			return nil, err
		}
	}
	for until := time.Now().Add(wait); ; wait = max(time.Until(until), 0) {
		deliveries, err := b.engine.Pull(ctx, agent, most, wait)
		if err != nil {
			return nil, err
		}
		if offers := b.decodeOffers(deliveries, profile); len(offers) > 0 || len(deliveries) == 0 {
			return offers, nil
		}
	}
}

// decodeOffers returns the deliveries that are offers. The others are removed.
func (b *Broker) decodeOffers(deliveries []Delivery, profile *protocol.Profile) []*Offer {
	offers := make([]*Offer, 0, len(deliveries))
	for _, d := range deliveries {
		offer, err := b.decodeOffer(d)
		if err != nil {
			b.log.Warn("removed a malformed message from the queue", "agent", d.Key().Agent, "ticket", d.Key().Ticket, "err", err)
			_ = d.Remove() // otherwise it is redelivered; the next reconciliation offers the handoff
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
		return nil, errors.New("its subject is not the subject of an offer")
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

// checkOfferKey checks that an offer matches the handoff and the offer that its subject names, and
// was made from an append. An offer without these properties would put a wrong append into the
// ledger.
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

// Package returns the package in the form for the agent. It fetches a package and answers that are
// too large for the queue.
func (o *Offer) Package(ctx context.Context) (json.RawMessage, error) {
	if o.blob != nil && o.pkg == nil {
		pkg, err := o.b.engine.Blob(ctx, *o.blob)
		if err != nil {
			return nil, fmt.Errorf("package of %s: %w", o.Ticket, err)
		}
		o.pkg = pkg
	}
	if o.annotationsBlob != nil {
		body, err := o.b.engine.Blob(ctx, *o.annotationsBlob)
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

// Inline reports whether the offer contains everything, so that Package makes no request.
func (o *Offer) Inline() bool { return (o.blob == nil || o.pkg != nil) && o.annotationsBlob == nil }

// Release lets any worker have the offer at once. Nothing is appended.
func (o *Offer) Release() error { return o.delivery.Release() }

// Extend withholds the offer from others for another AckWait.
func (o *Offer) Extend() error { return o.delivery.Extend() }

// Acknowledge answers the offer for a holder: accepted, rejected or conditional. start makes the
// work begin with the acceptance. The claim is nil unless the answer was accepted. ErrOfferGone
// (wrapped) means that there is nothing to answer; the queue is up to date then. An offer that a
// polling holder accepts is removed from the queue: another process ends the claim.
//
// An acceptance may be stored although its answer was lost. Acknowledge then returns the claim that
// the ledger has. A worker's holder gets it for a redelivered offer, too: so a worker acknowledges
// an offer only while it does not work on it.
func (o *Offer) Acknowledge(ctx context.Context, holder protocol.Holder, ack protocol.Ack, start bool) (*Claim, error) {
	if err := ack.Validate(); err != nil {
		return nil, err
	}
	if ack.Status == protocol.AckAccepted {
		if err := o.prepare(ctx); err != nil { // before the append: no worker may hold an unreadable package
			return nil, err
		}
	}
	claimant := o.claimant(holder)
	claim, err := o.appendAnswer(ctx, holder, func(s protocol.State, now time.Time) (lifecycle.Step, error) {
		return lifecycle.Acknowledge(s, claimant, ack, start, now)
	})
	if claim != nil && holder.Polling {
		claim.removeOffer()
	}
	return claim, err
}

// Claim takes the offer for a holder that polls and will acknowledge later, perhaps from another
// process: the ledger records the holder, and the offer leaves the queue. A claim that is not
// acknowledged within ackWithin lapses, at most protocol.AckWithinMaxMS; 0 is the handoff's
// acknowledge timeout (an hour for a person).
func (o *Offer) Claim(ctx context.Context, holder protocol.Holder, ackWithin time.Duration) (*Claim, error) {
	within := ackWithin.Milliseconds()
	if err := protocol.CheckAckWithin(within); err != nil {
		return nil, err
	}
	if err := o.prepare(ctx); err != nil {
		return nil, err
	}
	claim, err := o.appendAnswer(ctx, holder, func(s protocol.State, now time.Time) (lifecycle.Step, error) {
		return lifecycle.ClaimOnly(s, o.claimant(holder), within, now)
	})
	if err != nil {
		return nil, err
	}
	claim.removeOffer()
	return claim, nil
}

// prepare reads the package, and the limits by key that bound it.
func (o *Offer) prepare(ctx context.Context) error {
	if _, err := o.Package(ctx); err != nil {
		return err
	}
	fleet, err := o.b.recentFleet(ctx)
	if err != nil {
		return err
	}
	pkg := o.pkg
	if o.given != nil {
		pkg = o.given
	}
	o.limits = protocol.KeyLimitsOf(fleet, o.profile, pkg)
	return nil
}

func (o *Offer) claimant(h protocol.Holder) lifecycle.Claimant {
	claimant := lifecycle.Claimant{Agent: o.Agent, Holder: h.ID, LeaseMS: h.LeaseMS, Offer: o.Sequence}
	for _, limit := range o.limits {
		claimant.LimitKeys = append(claimant.LimitKeys, limit.Key)
	}
	return claimant
}

// appendAnswer appends the events of answer to the head, once the core lets this claimant have it.
// The offer's own state serves as the head until a conflict or a refusal shows that it is outdated;
// then the leader is read.
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
			return nil, cmp.Or(o.delivery.Release(), o.goneFor(err))
		case errors.Is(err, errKeyFull):
			o.releaseSlot(ctx, holder)
			o.b.slots.rest(o.Agent, keyFullPause)
			return nil, cmp.Or(o.delivery.Release(), o.goneFor(err))
		case errors.Is(err, errSlotTaken): // it is redelivered, in case the other is never accepted
			return nil, o.goneFor(err)
		case errors.Is(err, ErrOfferGone):
			o.releaseSlot(ctx, holder)
			o.b.freeKeyPlaces(ctx, o.taken, o.Ticket, o.b.slotOf(holder, o.Sequence), true)
			return nil, err
		case err != nil: // it may be stored all the same, so its slot counts
			return nil, err
		case next.State.Gate != nil: // it waits for its limit
			o.releaseSlot(ctx, holder)
			return nil, cmp.Or(o.delivery.Remove(), o.goneFor(errAwaitsKey))
		case next.State.Holder == "": // refused or conditional
			return nil, o.delivery.Remove()
		}
		claim := o.claimOf(holder, next)
		if o.shared {
			return claim, claim.ensureKeyPlaces(ctx)
		}
		return claim, nil
	}
}

// goneFor is the ErrOfferGone with a reason.
func (o *Offer) goneFor(why error) error {
	return fmt.Errorf("offer %d of %s: %w: %w", o.Sequence, o.Ticket, why, ErrOfferGone)
}

func (o *Offer) claimOf(holder protocol.Holder, head *Head) *Claim {
	return &Claim{Ticket: o.Ticket, Agent: o.Agent, Holder: holder, Offer: o.Sequence, Package: o.pkg,
		Answers: o.annotations.Answers, Trail: o.annotations.Trail, b: o.b, locked: make(chan struct{}, 1), delivery: o.delivery, head: head,
		fence: head.State.Fence, limited: o.profile.MaxConcurrency > 0, keys: head.State.LimitKeys, suited: suits(o.profile), given: o.given, Again: o.again}
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
			o.again = !o.asked
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
	if len(o.limits) > 0 && assignsHolder(draft.events) {
		key, err := o.takeKeyPlaces(ctx, holder)
		if errors.Is(err, errAwaitsKey) {
			return o.awaitKey(ctx, holder, key)
		}
		if err != nil {
			return nil, err
		}
	}
	next, err := o.b.appendWithOffer(ctx, o.Head, draft, o.Sequence)
	if err != nil && !errors.Is(err, ErrConflict) && assignsHolder(draft.events) {
		o.asked = true
	}
	return next, err
}

// awaitKey puts the handoff behind a gate, because it has no place under a key.
func (o *Offer) awaitKey(ctx context.Context, holder protocol.Holder, key string) (*Head, error) {
	verdict, draft, err := o.judge(ctx, holder, func(s protocol.State, now time.Time) (lifecycle.Step, error) {
		return lifecycle.AwaitKey(s, key, lifecycle.By, now)
	})
	switch {
	case err != nil:
		return nil, err
	case verdict != lifecycle.Take: // time has passed since it was judged before
		return nil, o.removeEnded(ctx, draft)
	}
	return o.b.appendWithOffer(ctx, o.Head, draft, o.Sequence)
}

// noAgents is the directory of a decision that depends on no agent.
var noAgents = &lifecycle.Directory{}

// judge decides the outcome of the answer. It reads the directory only if the decision depends on
// it: if a holder may be gone, or if the offer has ended and the handoff moves to another agent.
func (o *Offer) judge(ctx context.Context, holder protocol.Holder, answer func(protocol.State, time.Time) (lifecycle.Step, error)) (lifecycle.Verdict, draft, error) {
	if o.State.Holder == "" {
		verdict, made, err := o.decideAnswer(holder, noAgents, answer)
		if err != nil || verdict != lifecycle.Drop || len(made.events) == 0 {
			return verdict, made, err
		}
	}
	directory, _, err := o.b.read(ctx, wantAll(o.State))
	if err != nil {
		return 0, draft{}, err
	}
	return o.decideAnswer(holder, directory, answer)
}

// isOfferInvalid reports whether an error is caused by the offer's own state.
func isOfferInvalid(err error) bool {
	return errors.Is(err, lifecycle.ErrIllegal) || errors.Is(err, lifecycle.ErrStale) || errors.As(err, new(*protocol.Error))
}

// assignsHolder reports whether the handoff has a holder after the events.
func assignsHolder(events []protocol.Event) bool {
	switch events[len(events)-1].(type) {
	case *protocol.Claimed, *protocol.Accepted, *protocol.Started:
		return true
	}
	return false
}

// releaseSlot frees the slot taken for an answer that was not stored.
func (o *Offer) releaseSlot(ctx context.Context, holder protocol.Holder) {
	if o.slot {
		claim := Claim{Ticket: o.Ticket, Agent: o.Agent, Holder: holder, Offer: o.Sequence, b: o.b, limited: true}
		claim.releaseSlot(ctx)
	}
}

// decideAnswer judges the offer. If it may be taken, decideAnswer adds the answer to the events
// that come before it.
func (o *Offer) decideAnswer(holder protocol.Holder, d *lifecycle.Directory, answer func(protocol.State, time.Time) (lifecycle.Step, error)) (lifecycle.Verdict, draft, error) {
	now := o.b.decisionTime(o.Head)
	verdict, step, err := lifecycle.Claim(o.State, o.claimant(holder), d.At(now))
	if err != nil {
		return verdict, draft{}, illegalEventError(o.Head, err)
	}
	if verdict == lifecycle.Take {
		next, err := answer(step.State, now)
		if err != nil {
			return verdict, draft{}, illegalEventError(o.Head, err)
		}
		step = step.Then(next)
	}
	return verdict, draftOf(o.Head, &step), nil
}

// removeEnded removes an ended offer from the queue, after appending the events that its end
// requires.
func (o *Offer) removeEnded(ctx context.Context, draft draft) error {
	if len(draft.events) > 0 && len(lifecycle.NewMembers(o.State, draft.events)) == 0 { // otherwise a supervisor decides
		if _, err := o.b.appendWithOffer(ctx, o.Head, draft, o.Sequence); err != nil {
			return err
		}
	}
	return cmp.Or(o.delivery.Remove(), fmt.Errorf("offer %d of %s is over: %w", o.Sequence, o.Ticket, ErrOfferGone))
}

// refresh reads the head from the leader. If the leader does not know the handoff, or only an older
// head, the offer is kept in the queue: the leader may be behind, the ledger may be another one, or
// may have lost its end.
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

// Size returns how many bytes Package still has to fetch; 0 if the offer is inline or was fetched.
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
