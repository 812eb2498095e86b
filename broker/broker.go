// Package broker connects agents, workers, supervisors and people to the five stores of Handoff:
// the ledger, the queue, the timers, the directory and the blobs. A Broker applies the lifecycle to
// an Engine: it reads a head, appends the core's decision with a compare-and-set, and ensures that
// an offer is queued if one is due. It makes no decisions itself.
//
// Package internal/jetstream is the shipped engine; this package does not know NATS. Guarantees: an
// append is applied whole or not at all, exactly one of two racing writers wins, and everything
// that a method reports as done is in the ledger.
package broker

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/internal/record"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/redact"
)

// Config configures a Broker. The zero value is the default.
type Config struct {
	// Redactor removes secrets from packages, results and all other free text before it is appended;
	// nil is redact.Default.
	Redactor *redact.Redactor
	// Log receives one line for each append, at level debug; nil discards.
	Log *slog.Logger
	// Now is the clock that decisions go by; nil is the engine's.
	Now func() time.Time
	// Observer is called after every append of this Broker; nil is none.
	Observer Observer
}

// Observer watches the appends of a Broker, for figures and traces. It is called in the middle of
// an append, from any goroutine, and must neither block nor change its arguments. It may keep the
// events; they never change.
type Observer interface {
	// Appended reports that the events are in the ledger. before is the state that they were applied
	// to, the zero State for the first append of a handoff.
	Appended(ctx context.Context, before protocol.State, after Head, events []protocol.Event)
	// Conflicted reports that another append came first, and nothing was written.
	Conflicted(ctx context.Context, ticket string)
}

// parts are the methods of an Engine that a Broker has unchanged: reads of the ledger, the blobs and
// the queues, the presence of agents, the settings, and the bus. None of them appends.
type parts interface {
	LedgerReader
	Feed(ctx context.Context, ticket string) (hints <-chan uint64, stop func(), err error)
	Blob(ctx context.Context, ref protocol.BlobRef) ([]byte, error)
	EnsureQueue(ctx context.Context, agent string) error
	KeepOffers(ctx context.Context, agent string, wait time.Duration) error
	QueueDepth(ctx context.Context, agent string) (int, error)
	Queues(ctx context.Context) ([]QueueStatus, error)
	Holder(ctx context.Context, id string) (protocol.Holder, error)
	RemoveHolder(ctx context.Context, id string) error
	Fleet(ctx context.Context) (fleet protocol.Fleet, rev uint64, err error)
	Reconnected(ctx context.Context) <-chan struct{}
	Ask(ctx context.Context, verb string, question []byte) ([]byte, error)
}

// Broker relays handoffs over an Engine. It is safe for concurrent use.
type Broker struct {
	parts
	// The Broker does not hand it out: the ledger would take an append that the core has not decided.
	engine Engine // nil: it prepares packages, and nothing else

	redaction func() (*redact.Redactor, error)
	log       *slog.Logger
	clock     func() time.Time
	observer  Observer                 // nil: none
	profiles  cache[*protocol.Profile] // nil: the agent did not exist
	fleet     cache[*protocol.Fleet]   // nil: none
	workflows cache[string]            // the workspace of a workflow; empty: none
	healths   cache[lifecycle.AgentHealth]
	slots     slotWatch
	keys      entries[protocol.KeyUse] // of limits, by key
	watching  atomic.Bool              // this process watches the directory
}

// New returns a Broker over an engine, which the caller closes. Without an engine it
// prepares packages, and nothing else.
func New(engine Engine, cfg Config) (*Broker, error) {
	b := &Broker{parts: engine, engine: engine, redaction: redact.Default, log: cfg.Log, clock: cfg.Now, observer: cfg.Observer}
	if cfg.Redactor != nil {
		b.redaction = func() (*redact.Redactor, error) { return cfg.Redactor, nil }
	}
	b.profiles.early = true
	b.log = cmp.Or(b.log, slog.New(slog.DiscardHandler))
	switch {
	case b.clock != nil:
	case engine != nil:
		b.clock = engine.Now
	default:
		b.clock = time.Now
	}
	return b, nil
}

// redact removes secrets from a package, and returns their number.
func (b *Broker) redact(ctx context.Context, body []byte) ([]byte, int, error) {
	redactor, err := b.redaction()
	if err != nil {
		return nil, 0, err
	}
	return redactor.Package(ctx, body)
}

// storedResultBody returns the body of a result in its stored form.
func (b *Broker) storedResultBody(ctx context.Context, result protocol.Result) (json.RawMessage, error) {
	redactor, err := b.redaction()
	if err != nil {
		return nil, err
	}
	encoded, err := protocol.EncodeResult(protocol.Result{Body: result.Body})
	if err != nil {
		return nil, err
	}
	if encoded, err = redactor.Result(ctx, encoded); err != nil {
		return nil, err
	}
	var stored struct {
		Body json.RawMessage `json:"body"`
	}
	err = json.Unmarshal(encoded, &stored)
	return stored.Body, err
}

// Head is the last append of a handoff in the form that a writer needs: the state, and the sequence
// and hash that the next append must name.
type Head struct {
	Ticket string
	Seq    uint64
	At     time.Time // the engine's time stamp; zero for an append just made here
	Hash   string    // sha256 of the append, hex
	State  protocol.State
	// Repeated marks the head of a submission that was stored before.
	Repeated bool

	// entry is the append if the head was read, nil if it was made here. It saves reading the events
	// again.
	entry []byte
}

// Bytes returns the memory held by the append that the head was read from.
func (h *Head) Bytes() int { return len(h.entry) }

// HeadOf reads the head from a ledger entry; see StateOf.
func HeadOf(e Entry) (Head, error) {
	state, err := StateOf(e)
	if err != nil {
		return Head{}, err
	}
	return Head{Ticket: e.Ticket, Seq: e.Seq, At: e.At, Hash: HashOf(e.Body), State: state, entry: e.Body}, nil
}

// HashOf returns the SHA-256 of a body, in hex. The next append of a handoff names it.
func HashOf(body []byte) string {
	sum := sha256.Sum256(body)
	var text [2 * sha256.Size]byte // one allocation; hex.EncodeToString makes two
	hex.Encode(text[:], sum[:])
	return string(text[:])
}

// Now returns the time of the clock used for decisions.
func (b *Broker) Now() time.Time { return b.clock() }

// now returns the later of the clock and all times in the head, so that time never runs backwards
// in a handoff, even if the clocks of its writers differ.
func (b *Broker) now(h Head) time.Time { return b.decisionTime(&h) }

func (b *Broker) decisionTime(h *Head) time.Time {
	now := b.clock().UTC().Truncate(time.Microsecond)
	for _, at := range [...]time.Time{h.At, h.State.UpdatedAt} {
		if at.After(now) {
			now = at.UTC().Truncate(time.Microsecond)
		}
	}
	return now
}

// Head reads a handoff's head from the ledger's leader. It returns ErrNotFound for an unknown
// ticket.
func (b *Broker) Head(ctx context.Context, ticket string, min uint64) (Head, error) {
	entry, err := b.engine.Last(ctx, ticket, min)
	if err != nil {
		return Head{}, err
	}
	return HeadOf(entry)
}

// Decider returns the events to append to a head. A step without events means nothing to do.
type Decider func(h Head, q lifecycle.Query) (lifecycle.Step, error)

// Update appends the events that decide returns to a head. It starts over from the newer head if
// another append came first: the head may be outdated. It returns the resulting head, and whether it
// appended.
func (b *Broker) Update(ctx context.Context, head Head, decide Decider) (Head, bool, error) {
	return b.update(ctx, head, wantAll, decide)
}

func (b *Broker) update(ctx context.Context, head Head, want wanted, decide Decider) (Head, bool, error) {
	for {
		draft, err := b.decideWith(ctx, head, want(head.State), decide)
		if err == nil && closesGate(draft.events) { // the approver depends on the agents above the source
			draft, err = b.decideWith(ctx, head, wantAll(head.State), decide)
		}
		if err != nil || len(draft.events) == 0 {
			return head, false, err
		}
		next, err := b.append(ctx, &head, draft)
		switch {
		case err == nil:
			return *next, true, nil
		case errors.Is(err, errProbeTaken): // decide again: the leader's health of the agent is now cached
			continue
		case !errors.Is(err, ErrConflict):
			return Head{}, false, err
		}
		if head, err = b.headAfterConflict(ctx, head); err != nil {
			return Head{}, false, err
		}
	}
}

// conflictReadTimeout bounds the read of a successor: a newly elected leader may take a moment to
// have all appends that were acknowledged before its election.
const conflictReadTimeout = 5 * time.Second

// headAfterConflict reads the newer head after a conflict. If the leader has nothing newer within
// the timeout, its last append is used: a ledger that is not synced may have lost its end in a
// power cut.
func (b *Broker) headAfterConflict(ctx context.Context, old Head) (Head, error) {
	patient, cancel := context.WithTimeout(ctx, conflictReadTimeout)
	defer cancel()
	head, err := b.Head(patient, old.Ticket, old.Seq+1)
	if err != nil && ctx.Err() == nil && patient.Err() != nil {
		return b.Head(ctx, old.Ticket, 0)
	}
	return head, err
}

// draft is an append that is not stored yet: its events, and the resulting head without its
// sequence.
type draft struct {
	events []protocol.Event
	next   *Head
}

// draftOf returns the draft of a step from head. From here on the state is passed by pointer, so
// that goroutines waiting for an append need no stack for it.
func draftOf(head *Head, step *lifecycle.Step) draft {
	if len(step.Events) == 0 {
		return draft{}
	}
	return draft{step.Events, &Head{Ticket: head.Ticket, State: step.State}}
}

// append stores a draft as the successor of the head that it was made from. ErrConflict means that
// another append came first and nothing was written. If the events make an offer, append queues it;
// if queueing fails, the supervisor's next reconcile does it.
//
// Heads are passed by pointer here and below: each is 1.6 KB, and a goroutine that passes them by
// value through these calls needs a stack of 64 KB.
func (b *Broker) append(ctx context.Context, head *Head, draft draft) (*Head, error) {
	return b.appendWithOffer(ctx, head, draft, 0)
}

// appendWithOffer is append for a caller that has the delivery of an offer. If the draft ends that
// offer, the caller removes it from the queue.
func (b *Broker) appendWithOffer(ctx context.Context, head *Head, draft draft, offer uint64) (*Head, error) {
	next, err := b.storeDraft(ctx, head, draft, offer)
	if err != nil {
		return nil, err
	}
	if makesOffer(draft.events) && lifecycle.DutiesOf(next.State).Offer {
		if err := b.EnsureOffer(ctx, *next); err != nil {
			b.log.Warn("offer not queued; a supervisor will queue it", "ticket", next.Ticket, "seq", next.Seq, "err", err)
		}
	}
	return next, nil
}

// storeDraft is append without the duties that follow. If the draft ends an offer other than the
// caller's, the announcement names that offer, and a supervisor removes it from its queue.
func (b *Broker) storeDraft(ctx context.Context, head *Head, draft draft, inHand uint64) (*Head, error) {
	if err := b.redactDraft(ctx, head, draft); err != nil {
		return nil, err
	}
	if err := b.takeProbe(ctx, draft); err != nil {
		return nil, err
	}
	id, next := newRecordID(), draft.next
	next.State.PrevHash = head.Hash
	buf := newBuffer()
	defer buf.free()
	body, err := record.Append(buf.bytes, id, draft.events, &next.State)
	if err != nil {
		return nil, err
	}
	buf.bytes = body
	next.Hash = HashOf(body)
	attention := lifecycle.AttentionOf(next.State)
	if ended, ok := lifecycle.EndedBetween(head.State, next.State); ok && ended.Offer != inHand {
		attention = attention.WithEnded(ended)
	}
	if attempt, ok := lifecycle.AttemptEnded(&head.State, &next.State, draft.events); ok {
		attention = attention.WithAttempt(attempt)
	}
	if next.Seq, err = b.engine.Append(withHandoffTrace(ctx, &next.State), head.Ticket, head.Seq, id, attention, body); err != nil {
		if b.observer != nil && errors.Is(err, ErrConflict) {
			b.observer.Conflicted(ctx, head.Ticket)
		}
		return nil, err // err names the append
	}
	next.State.Bind(next.Seq)
	b.logAppend(ctx, head, next, draft.events)
	if b.observer != nil {
		b.observer.Appended(ctx, head.State, *next, draft.events)
	}
	return next, nil
}

// newRecordID returns the id of a record (UUIDv4). The id only distinguishes records and is no
// secret, so it does not use the system's randomness.
func newRecordID() string {
	var id uuid.UUID
	binary.LittleEndian.PutUint64(id[:8], rand.Uint64())
	binary.LittleEndian.PutUint64(id[8:], rand.Uint64())
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	return id.String()
}

// redactDraft removes secrets from the events of a draft. If there were any, it derives the state,
// which repeats text of the events, from the redacted ones.
func (b *Broker) redactDraft(ctx context.Context, head *Head, draft draft) error {
	changed, err := redact.Events(ctx, draft.events, b.redaction)
	if err != nil || !changed {
		return err
	}
	if draft.next.State, err = lifecycle.ApplyAll(head.State, draft.events); err != nil {
		return illegalEventError(head, err)
	}
	return nil
}

// illegalEventError adds the handoff to the core's refusal of an event.
func illegalEventError(head *Head, err error) error {
	if errors.Is(err, lifecycle.ErrStale) || errors.Is(err, lifecycle.ErrIllegal) {
		return fmt.Errorf("handoff %s at %d: %w", head.Ticket, head.Seq, err)
	}
	return err
}

func (b *Broker) logAppend(ctx context.Context, head, after *Head, events []protocol.Event) {
	if !b.log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	names := make([]string, len(events))
	for i, e := range events {
		names[i] = string(e.EventType())
	}
	b.log.LogAttrs(ctx, slog.LevelDebug, "append",
		slog.String("ticket", head.Ticket), slog.Int("attempt", after.State.Attempt), slog.Any("events", names),
		slog.String("from", string(head.State.Phase)), slog.String("to", string(after.State.Phase)), slog.Uint64("seq", after.Seq))
}

func closesGate(events []protocol.Event) bool { return lifecycle.Step{Events: events}.Gates() }

func makesOffer(events []protocol.Event) bool {
	return slices.ContainsFunc(events, func(e protocol.Event) bool { return e.EventType() == protocol.EventOffered })
}
