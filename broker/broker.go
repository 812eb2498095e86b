// Package broker is how agents, workers, supervisors and people reach the five
// stores of Handoff: the ledger, the queue, the timers, the directory and the
// blobs. A Broker applies the lifecycle to an Engine: it reads a head, appends
// what the core decides with a compare-and-set, and sees to it that an offer
// stands where one is called for. It decides nothing itself.
//
// Package broker/jetstream is the engine that ships; this package knows no NATS. Guarantees: an append is applied whole or not at all, exactly one of
// two racing writers wins, and what a method reports as done stands in the ledger.
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
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
	"github.com/agenthandoff/handoff/protocol/record"
	"github.com/agenthandoff/handoff/protocol/redact"
)

// Config configures a Broker. The zero value is the default.
type Config struct {
	// Redactor takes secrets out of packages, results and everything else that is
	// said in words, before it is appended; nil is redact.Default.
	Redactor *redact.Redactor
	// Log receives one line for each append, at level debug; nil discards.
	Log *slog.Logger
	// Now is the clock that decisions go by; nil is the engine's.
	Now func() time.Time
	// Observer is told of every append of this Broker; nil is none.
	Observer Observer
}

// Observer watches what a Broker appends, for figures and traces. It is called
// in the middle of an append, from any goroutine, and must neither block nor
// change what it is given; events may be kept, they are never changed again.
type Observer interface {
	// Appended: the events are in the ledger. before is the state that they
	// were applied to, the zero State for the first append of a handoff.
	Appended(ctx context.Context, before protocol.State, after Head, events []protocol.Event)
	// Conflicted: another append came first, and nothing was written.
	Conflicted(ctx context.Context, ticket string)
}

// Broker relays handoffs over an Engine. It is safe for concurrent use.
type Broker struct {
	// The parts of the engine. The Broker hands none of them out: an append that the core
	// has not decided would not be refused by the ledger.
	ledger    Ledger
	queue     Queue
	timers    Timers
	directory Directory
	settings  Settings
	shared    Workspaces
	health    Healths
	blobs     Blobs
	bus       Bus

	redaction func() (*redact.Redactor, error)
	log       *slog.Logger
	clock     func() time.Time
	observer  Observer // nil: none
	profiles  profiles
	fleet     fleetCache
	workflows knownWorkspaces
	slots     slotWatch
	healths   healthCache
	watching  atomic.Bool // this process watches the directory
}

// New returns a Broker over an engine, which the caller closes. Without an engine it
// prepares packages, and nothing else.
func New(engine Engine, cfg Config) (*Broker, error) {
	b := &Broker{redaction: redactionOf(cfg.Redactor), log: cfg.Log, clock: cfg.Now, observer: cfg.Observer}
	if engine != nil {
		b.ledger, b.queue, b.timers, b.directory, b.settings, b.health, b.shared, b.blobs, b.bus = engine, engine, engine, engine, engine, engine, engine, engine, engine
	}
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

// redactionOf returns a function that returns redactor, or the default where it is nil.
func redactionOf(redactor *redact.Redactor) func() (*redact.Redactor, error) {
	return func() (*redact.Redactor, error) {
		if redactor != nil {
			return redactor, nil
		}
		standard, err := redact.Default()
		if err != nil {
			return nil, fmt.Errorf("default redactions: %w", err)
		}
		return standard, nil
	}
}

// redact takes secrets out of a package, and tells how many.
func (b *Broker) redact(ctx context.Context, body []byte) ([]byte, int, error) {
	redactor, err := b.redaction()
	if err != nil {
		return nil, 0, err
	}
	return redactor.Package(ctx, body)
}

// storedResultBody is the body of a result as it is stored.
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

// Head is the last append of a handoff as a writer needs it: the state and
// what the next append must name.
type Head struct {
	Ticket string
	Seq    uint64
	At     time.Time // the engine's time stamp; zero for an append just made here
	Hash   string    // sha256 of the append, hex
	State  protocol.State

	// entry is the append where it was read, nil where it was made here: what it
	// holds besides the state need not be read again.
	entry []byte
}

// Bytes is how much memory the append holds that the head was read from.
func (h *Head) Bytes() int { return len(h.entry) }

// HeadOf reads the head out of a ledger entry, as StateOf reads its state.
func HeadOf(e Entry) (Head, error) {
	state, err := StateOf(e)
	if err != nil {
		return Head{}, err
	}
	return Head{Ticket: e.Ticket, Seq: e.Seq, At: e.At, Hash: HashOf(e.Body), State: state, entry: e.Body}, nil
}

// HashOf is the SHA-256 of a body, in hex: what the next append of a handoff names.
func HashOf(body []byte) string {
	sum := sha256.Sum256(body)
	var text [2 * sha256.Size]byte // one allocation, where hex.EncodeToString makes two
	hex.Encode(text[:], sum[:])
	return string(text[:])
}

// Now is the clock that decisions go by.
func (b *Broker) Now() time.Time { return b.clock() }

// now is the later of the clock and everything the head says, so that time never
// runs backwards in a handoff, whatever the clocks of its writers.
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

// Head reads a handoff's head from the ledger's leader. An unknown ticket is
// ErrNotFound.
func (b *Broker) Head(ctx context.Context, ticket string, min uint64) (Head, error) {
	entry, err := b.ledger.Last(ctx, ticket, min)
	if err != nil {
		return Head{}, err
	}
	return HeadOf(entry)
}

// Decider returns what to append to a head; a step without events is nothing to do.
type Decider func(h Head, d *lifecycle.Directory, now time.Time) (lifecycle.Step, error)

// Update reads the head of a ticket, appends what decide says, and begins
// again when another append came first. It returns the head after it, and
// whether it appended.
func (b *Broker) Update(ctx context.Context, ticket string, decide Decider) (Head, bool, error) {
	head, err := b.Head(ctx, ticket, 0)
	if err != nil {
		return Head{}, false, err
	}
	return b.UpdateFrom(ctx, head, decide)
}

// UpdateFrom is Update for a caller that has a head at hand. The head may be
// old: it is read anew when the append shows that it was.
func (b *Broker) UpdateFrom(ctx context.Context, head Head, decide Decider) (Head, bool, error) {
	return b.update(ctx, head, b.decisionDirectory, decide)
}

// updateWithoutDirectory is UpdateFrom for decisions that need no directory. The first use of
// the directory in a process starts a watch.
func (b *Broker) updateWithoutDirectory(ctx context.Context, head Head, decide Decider) (Head, bool, error) {
	return b.update(ctx, head, b.noDirectory, decide)
}

// directoryReader reads the part of the directory that a decision about a handoff depends on.
type directoryReader func(ctx context.Context, s protocol.State) (*lifecycle.Directory, error)

func (b *Broker) update(ctx context.Context, head Head, read directoryReader, decide Decider) (Head, bool, error) {
	for {
		directory, err := read(ctx, head.State)
		if err != nil {
			return head, false, err
		}
		draft, err := b.decideWith(ctx, head, directory, decide)
		if err == nil && closesGate(draft.events) { // who is asked depends on those above its source
			if directory, err = b.decisionDirectory(ctx, head.State); err == nil {
				draft, err = b.decideWith(ctx, head, directory, decide)
			}
		}
		if err != nil || len(draft.events) == 0 {
			return head, false, err
		}
		next, err := b.append(ctx, &head, draft)
		switch {
		case err == nil:
			return *next, true, nil
		case errors.Is(err, errProbeTaken): // what the leader has of it is remembered
			continue
		case !errors.Is(err, ErrConflict):
			return Head{}, false, err
		}
		if head, err = b.headAfterConflict(ctx, head); err != nil {
			return Head{}, false, err
		}
	}
}

// conflictReadTimeout bounds the read of a successor: a leader that was just elected may take a
// moment to have all that was acknowledged before it.
const conflictReadTimeout = 5 * time.Second

// headAfterConflict reads the head after a conflict said that it has moved on. Should
// the leader have nothing newer in time, what it has counts: a ledger that was
// not synced may have lost its end in a power cut, and will never have it.
func (b *Broker) headAfterConflict(ctx context.Context, old Head) (Head, error) {
	patient, cancel := context.WithTimeout(ctx, conflictReadTimeout)
	defer cancel()
	head, err := b.Head(patient, old.Ticket, old.Seq+1)
	if err != nil && ctx.Err() == nil && patient.Err() != nil {
		return b.Head(ctx, old.Ticket, 0)
	}
	return head, err
}

// decisionDirectory returns the directory to decide by. A snapshot may lag behind a holder
// that has just begun: one that seems gone is asked for at the leader.
func (b *Broker) decisionDirectory(ctx context.Context, s protocol.State) (*lifecycle.Directory, error) {
	directory, err := b.Directory(ctx)
	if err != nil {
		return nil, err
	}
	if s.Holder == "" || directory.Present(s.Holder) {
		return directory, nil
	}
	present, err := b.directory.Holder(ctx, s.Holder)
	if errors.Is(err, ErrNotFound) {
		return directory, nil
	}
	if err != nil {
		return nil, err
	}
	return directory.With(present), nil
}

// draft is an append that is not stored yet: its events, and the head that it makes,
// still without its sequence.
type draft struct {
	events []protocol.Event
	next   *Head
}

// draftOf makes the draft of a step from head. From here on the state is passed by
// pointer, so that what waits for an append needs no stack for it.
func draftOf(head *Head, step *lifecycle.Step) draft {
	if len(step.Events) == 0 {
		return draft{}
	}
	return draft{step.Events, &Head{Ticket: head.Ticket, State: step.State}}
}

// append stores a draft as the successor of the head that it was made from.
// ErrConflict means that another append came first and nothing was written. An
// offer that the events made is put into its queue; should that fail, the
// supervisor's next reconcile does it.
//
// Heads go by pointer here and below: each is 1.6 KB, and the goroutine of a
// handoff that passes them by value through these calls needs a stack of 64 KB.
func (b *Broker) append(ctx context.Context, head *Head, draft draft) (*Head, error) {
	return b.appendWithOffer(ctx, head, draft, 0)
}

// appendWithOffer is append for a caller that has the delivery of an offer: should the
// draft end that one, the caller takes it out of the queue.
func (b *Broker) appendWithOffer(ctx context.Context, head *Head, draft draft, offer uint64) (*Head, error) {
	next, err := b.storeDraft(ctx, head, draft, offer)
	if err != nil {
		return nil, err
	}
	if makesOffer(draft.events) && lifecycle.DutiesOf(next.State).Offer {
		if err := b.EnsureOffer(ctx, *next); err != nil {
			b.log.Warn("offer not queued; a supervisor will", "ticket", next.Ticket, "seq", next.Seq, "err", err)
		}
	}
	return next, nil
}

// storeDraft is append without the duties. An offer that the draft ends, other than the one
// in the caller's hands, is named to the supervisors, who take it out of its queue.
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
	if next.Seq, err = b.ledger.Append(withHandoffTrace(ctx, &next.State), head.Ticket, head.Seq, id, attention, body); err != nil {
		if b.observer != nil && errors.Is(err, ErrConflict) {
			b.observer.Conflicted(ctx, head.Ticket)
		}
		return nil, err // which names the append
	}
	next.State.Bind(next.Seq)
	b.logAppend(ctx, head, next, draft.events)
	if b.observer != nil {
		b.observer.Appended(ctx, head.State, *next, draft.events)
	}
	return next, nil
}

// newRecordID makes the id of a record (UUIDv4). It tells records apart and is no secret: no
// randomness of the system is asked for.
func newRecordID() string {
	var id uuid.UUID
	binary.LittleEndian.PutUint64(id[:8], rand.Uint64())
	binary.LittleEndian.PutUint64(id[8:], rand.Uint64())
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	return id.String()
}

// redactDraft takes secrets out of the events of a draft, and out of the state, which
// repeats what they say: where there were any it is made again.
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

// illegalEventError names the handoff in the refusal of an event by the core.
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
	for _, e := range events {
		if e.EventType() == protocol.EventOffered {
			return true
		}
	}
	return false
}
