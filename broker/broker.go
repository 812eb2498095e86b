// Package broker is how agents, workers, supervisors and people reach the five
// stores of Handoff: the ledger, the queue, the timers, the directory and the
// blobs. A Broker applies the lifecycle to an Engine: it reads a head, appends
// what the core decides with a compare-and-set, and sees to it that an offer
// stands where one is called for. It decides nothing itself.
//
// JetStream is the engine that ships, and this package the only one that knows
// NATS. Guarantees: an append is applied whole or not at all, exactly one of
// two racing writers wins, and what a method reports as done stands in the ledger.
package broker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// Config configures a Broker. The zero value is the default.
type Config struct {
	// Redactor takes secrets out of packages before their first append; nil
	// is protocol.DefaultRedactions.
	Redactor *protocol.Redactor
	// Log receives one line for each append, at level debug; nil discards.
	Log *slog.Logger
	// Now is the local clock; nil is time.Now.
	Now func() time.Time
	// Observer is told of every append of this Broker; nil is nobody.
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
	Engine
	redactor *protocol.Redactor
	log      *slog.Logger
	clock    func() time.Time
	observer Observer // nil: nobody
}

// New returns a Broker over an engine, which the caller closes.
func New(engine Engine, cfg Config) (*Broker, error) {
	b := &Broker{Engine: engine, redactor: cfg.Redactor, log: cfg.Log, clock: cfg.Now, observer: cfg.Observer}
	if b.redactor == nil {
		var err error
		if b.redactor, err = protocol.NewRedactor(protocol.DefaultRedactions); err != nil {
			return nil, fmt.Errorf("default redactions: %w", err)
		}
	}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	if b.clock == nil {
		b.clock = time.Now
	}
	return b, nil
}

// Head is the last append of a handoff as a writer needs it: the state and
// what the next append must name.
type Head struct {
	Ticket string
	Seq    uint64
	At     time.Time // the engine's time stamp; zero for an append just made here
	Hash   string    // sha256 of the append, hex
	State  protocol.State
}

// HeadOf reads the head out of a ledger entry.
func HeadOf(e Entry) (Head, error) {
	_, state, err := protocol.DecodeState(e.Body, e.Seq)
	if err != nil {
		return Head{}, fmt.Errorf("ledger entry %d of %s: %w", e.Seq, e.Ticket, err)
	}
	return Head{Ticket: e.Ticket, Seq: e.Seq, At: e.At, Hash: hashOf(e.Body), State: state}, nil
}

func hashOf(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// now is the later of the local clock and everything the head says, so that
// time never runs backwards in a handoff, whatever the clocks of its writers.
func (b *Broker) now(h Head) time.Time {
	now := b.clock().UTC().Truncate(time.Microsecond)
	for _, at := range []time.Time{h.At, h.State.UpdatedAt} {
		if at.After(now) {
			now = at.UTC().Truncate(time.Microsecond)
		}
	}
	return now
}

// Head reads a handoff's head from the ledger's leader. An unknown ticket is
// ErrNotFound.
func (b *Broker) Head(ctx context.Context, ticket string, min uint64) (Head, error) {
	entry, err := b.Last(ctx, ticket, min)
	if err != nil {
		return Head{}, err
	}
	return HeadOf(entry)
}

// Decider says what to append to a head; no events is nothing to do.
type Decider func(h Head, d *lifecycle.Directory, now time.Time) ([]protocol.Event, error)

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
	return b.update(ctx, head, b.judge, decide)
}

// note is UpdateFrom for facts that do not depend on who is there: decide gets
// no directory, whose first use in a process starts a watch.
func (b *Broker) note(ctx context.Context, head Head, decide Decider) (Head, bool, error) {
	return b.update(ctx, head, b.nobody, decide)
}

// seeing reads of the directory what a decision about a handoff depends on.
type seeing func(ctx context.Context, s protocol.State) (*lifecycle.Directory, error)

func (b *Broker) update(ctx context.Context, head Head, see seeing, decide Decider) (Head, bool, error) {
	for {
		directory, err := see(ctx, head.State)
		if err != nil {
			return head, false, err
		}
		events, err := decide(head, directory, b.now(head))
		if err != nil || len(events) == 0 {
			return head, false, err
		}
		next, err := b.append(ctx, head, events)
		if !errors.Is(err, ErrConflict) {
			return next, err == nil, err
		}
		if head, err = b.successor(ctx, head); err != nil {
			return Head{}, false, err
		}
	}
}

// successorPatience is how long a leader that has just been elected may take to
// know what was acknowledged before it.
const successorPatience = 5 * time.Second

// successor reads the head after a conflict said that it has moved on. Should
// the leader have nothing newer in time, what it has counts: a ledger that was
// not synced may have lost its end in a power cut, and will never have it.
func (b *Broker) successor(ctx context.Context, old Head) (Head, error) {
	patient, cancel := context.WithTimeout(ctx, successorPatience)
	defer cancel()
	head, err := b.Head(patient, old.Ticket, old.Seq+1)
	if err != nil && ctx.Err() == nil && patient.Err() != nil {
		return b.Head(ctx, old.Ticket, 0)
	}
	return head, err
}

// judge returns the directory to decide by. A snapshot may lag behind a holder
// that has just begun: one that seems gone is asked for at the leader.
func (b *Broker) judge(ctx context.Context, s protocol.State) (*lifecycle.Directory, error) {
	directory, err := b.Directory(ctx)
	if err != nil {
		return nil, err
	}
	if s.Holder == "" || directory.Present(s.Holder) {
		return directory, nil
	}
	present, err := b.Holder(ctx, s.Holder)
	if errors.Is(err, ErrNotFound) {
		return directory, nil
	}
	if err != nil {
		return nil, err
	}
	return directory.With(present), nil
}

// append applies events to a head and stores the outcome as its successor.
// ErrConflict means that another append came first and nothing was written. An
// offer that the events made is put into its queue; should that fail, the
// supervisor's next look does it.
func (b *Broker) append(ctx context.Context, head Head, events []protocol.Event) (Head, error) {
	next, err := b.store(ctx, head, events)
	if err != nil {
		return Head{}, err
	}
	if makesOffer(events) && lifecycle.DutiesOf(next.State).Offer {
		if err := b.EnsureOffer(ctx, next); err != nil {
			b.log.Warn("offer not queued; a supervisor will", "ticket", next.Ticket, "seq", next.Seq, "err", err)
		}
	}
	return next, nil
}

// store is append without the duties.
func (b *Broker) store(ctx context.Context, head Head, events []protocol.Event) (Head, error) {
	state, err := lifecycle.ApplyAll(head.State, events)
	if err != nil {
		return Head{}, fmt.Errorf("handoff %s at %d: %w", head.Ticket, head.Seq, err)
	}
	state.PrevHash = head.Hash
	record := protocol.Record{ID: uuid.NewString(), Events: events, State: state}
	body, err := protocol.EncodeRecord(record)
	if err != nil {
		return Head{}, err
	}
	seq, err := b.Append(traced(ctx, state), head.Ticket, head.Seq, record.ID, body)
	if err != nil {
		if b.observer != nil && errors.Is(err, ErrConflict) {
			b.observer.Conflicted(ctx, head.Ticket)
		}
		return Head{}, fmt.Errorf("append %s after %d: %w", head.Ticket, head.Seq, err)
	}
	state.Bind(seq)
	b.logAppend(ctx, head, state, events, seq)
	next := Head{Ticket: head.Ticket, Seq: seq, Hash: hashOf(body), State: state}
	if b.observer != nil {
		b.observer.Appended(ctx, head.State, next, events)
	}
	return next, nil
}

func (b *Broker) logAppend(ctx context.Context, head Head, after protocol.State, events []protocol.Event, seq uint64) {
	if !b.log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	names := make([]string, len(events))
	for i, e := range events {
		names[i] = string(e.EventType())
	}
	b.log.LogAttrs(ctx, slog.LevelDebug, "append",
		slog.String("ticket", head.Ticket), slog.Int("attempt", after.Attempt), slog.Any("events", names),
		slog.String("from", string(head.State.Phase)), slog.String("to", string(after.Phase)), slog.Uint64("seq", seq))
}

func makesOffer(events []protocol.Event) bool {
	for _, e := range events {
		if e.EventType() == protocol.EventOffered {
			return true
		}
	}
	return false
}
