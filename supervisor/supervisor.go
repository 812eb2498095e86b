// Package supervisor looks after handoffs: it retries, reroutes, escalates and
// fires timeouts, by looking. To look at a handoff is to read its head, ask the
// lifecycle what happens next, append that, and make sure that what the state
// calls for stands outside: its offer and its next wake-up. A ledger event, a
// timer, a departed worker and a pass over all heads are nothing but reasons to look.
//
// A Supervisor has no state that matters: any number of them share the work,
// any of them may die at any time, and whatever one forgot the next pass finds.
package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// Broker is what a supervisor asks of the broker. *broker.Broker satisfies it.
type Broker interface {
	Now() time.Time
	Head(ctx context.Context, ticket string, min uint64) (broker.Head, error)
	UpdateFrom(ctx context.Context, head broker.Head, decide broker.Decider) (broker.Head, bool, error)
	EnsureOffer(ctx context.Context, head broker.Head) error
	RemoveOffer(ctx context.Context, key broker.OfferKey) error
	Offers(ctx context.Context, fn func(broker.OfferKey) error) error
	EnsureChildren(ctx context.Context, head broker.Head) (ended []protocol.ChildClosed, err error)
	EnsureReturn(ctx context.Context, head broker.Head) error
	EnsureSource(ctx context.Context, head broker.Head) error
	CancelChildren(ctx context.Context, head broker.Head, by, reason string) error
	Arm(ctx context.Context, ticket string, seq uint64, at time.Time) error
	PutHints(ctx context.Context, all []broker.Hints) []error
	Heads(ctx context.Context, fn func(broker.Entry) error) error
	Entries(ctx context.Context, from uint64, fn func(broker.Entry) error) error
	Follow(ctx context.Context, fn func(e broker.Entry, done func())) error
	Due(ctx context.Context, fn func(w broker.WakeUp, done func())) error
	Directory(ctx context.Context) (*lifecycle.Directory, error)
	Departures(ctx context.Context) (<-chan protocol.Holder, error)
	Reconnected(ctx context.Context) <-chan struct{}
}

// Config configures a Supervisor. The zero value is the default.
type Config struct {
	// Log receives what was decided (info) and what went wrong (warn, error);
	// nil discards.
	Log *slog.Logger
	// Hold is how long the follower keeps an event that calls for nothing
	// before it looks: a handoff that closes meanwhile costs no timer and no
	// second offer. Default 1 s.
	Hold time.Duration
	// PassEvery is the time between two passes over what is open and what has
	// come since. Every 13th at the latest is over the heads of all handoffs. Default 5 min.
	PassEvery time.Duration
	// Looks is how many handoffs are looked at side by side. Default 32.
	Looks int
	// Watch is told of what is done, for figures; nil is nobody.
	Watch Watch
	// Passed, if not nil, is told of each pass that came to its end,
	// and how long it took. It must not block. For those who want to know no more: a
	// Watch is told of it too, but has every entry of the ledger decoded whole.
	Passed func(took time.Duration)

	recall int // how many handoffs a pass keeps in mind; 0 is recallMost
}

func (c Config) withDefaults() (Config, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Hold == 0 {
		c.Hold = time.Second
	}
	if c.PassEvery == 0 {
		c.PassEvery = 5 * time.Minute
	}
	if c.Looks == 0 {
		c.Looks = 32
	}
	if c.Watch == nil {
		c.Watch = unwatched{}
	}
	if c.recall == 0 {
		c.recall = recallMost
	}
	if c.Passed == nil {
		c.Passed = func(time.Duration) {}
	}
	if c.Hold < 0 || c.PassEvery < time.Second || c.Looks < 1 {
		return c, fmt.Errorf("supervisor config: hold %v, pass every %v, looks %d: must be positive, a pass at most each second", c.Hold, c.PassEvery, c.Looks)
	}
	return c, nil
}

// Supervisor looks after handoffs. Make it with New.
type Supervisor struct {
	b      Broker
	cfg    Config
	log    *slog.Logger
	looks  chan look
	kept   *kept
	recall *recall // of the pass before, if it left something; the passes' own

	unreadable unreadable
	// trying is since when each loop has been at its present try.
	trying []since
}

// New returns a supervisor over a broker.
func New(b Broker, cfg Config) (*Supervisor, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Supervisor{b: b, cfg: cfg, log: cfg.Log, looks: make(chan look), kept: newKept(), trying: make([]since, cfg.Looks)}, nil
}

// Run looks after handoffs until ctx ends, and then returns nil. What it had not
// finished is delivered to another supervisor, or found by the next pass.
func (s *Supervisor) Run(ctx context.Context) error {
	if _, err := s.b.Directory(ctx); err != nil { // the judge must be watching before it judges
		return ignoreEnd(ctx, fmt.Errorf("watch the directory: %w", err))
	}
	departures, err := s.b.Departures(ctx)
	if err != nil {
		return ignoreEnd(ctx, fmt.Errorf("watch departures: %w", err))
	}
	group, ctx := errgroup.WithContext(ctx)
	for i := range s.trying {
		group.Go(func() error { return s.lookLoop(ctx, &s.trying[i]) })
	}
	follower := newFollower(s)
	group.Go(func() error {
		return s.b.Follow(ctx, func(e broker.Entry, done func()) { follower.take(ctx, e, done) })
	})
	group.Go(func() error { return follower.release(ctx) })
	group.Go(func() error { return follower.tell(ctx) })
	group.Go(func() error {
		return s.b.Due(ctx, func(w broker.WakeUp, done func()) {
			s.cfg.Watch.Due(w.At)
			s.enqueue(ctx, look{ticket: w.Ticket, done: done})
		})
	})
	group.Go(func() error { return s.passes(ctx, departures) })
	return ignoreEnd(ctx, group.Wait())
}

// ignoreEnd makes the end that the caller asked for no error.
func ignoreEnd(ctx context.Context, err error) error {
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return nil
	}
	return err
}
