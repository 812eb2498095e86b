// Package supervisor reconciles handoffs: it retries, reroutes, escalates and fires timeouts. To
// reconcile a handoff is to read its head, ask the lifecycle for the next events, append them, and
// put the offer and the wake-up of the state in place. An announced append, a timer, a departed
// worker and a sweep over all heads are only reasons to reconcile.
//
// A Supervisor has no state that matters: any number of them share the work, any of them may die at
// any time, and the next sweep reconciles the handoffs that one forgot.
package supervisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// Broker has the methods of *broker.Broker that a supervisor needs.
type Broker interface {
	Now() time.Time
	Head(ctx context.Context, ticket string, min uint64) (broker.Head, error)
	Update(ctx context.Context, head broker.Head, decide broker.Decider) (broker.Head, bool, error)
	EnsureOffer(ctx context.Context, head broker.Head) error
	CheckPackage(ctx context.Context, head broker.Head) error
	EnsureChildren(ctx context.Context, head broker.Head) (ended []protocol.ChildClosed, err error)
	EnsureReturn(ctx context.Context, head broker.Head) error
	CountAttempts(ctx context.Context, agent string, ended []lifecycle.Attempt) (opened bool, err error)
	EnsureSource(ctx context.Context, head broker.Head) error
	EnsureWorkspace(ctx context.Context, head broker.Head) (broker.Head, error)
	EnsureBids(ctx context.Context, head broker.Head) (broker.Head, error)
	SweepWorkspaces(ctx context.Context) error
	CancelChildren(ctx context.Context, head broker.Head, by, reason string) error
	PublishOutbox(ctx context.Context, all []broker.Outbox) []error
	Directory(ctx context.Context) (*lifecycle.Directory, error)
	Schedules() broker.Schedules
	Rules() broker.Rules
	KeyLimits() broker.KeyLimits
}

// Engine has the methods of broker.Engine that a supervisor needs: its share of announcements, the
// heads to sweep, and the offers and wake-ups to put in place.
type Engine interface {
	broker.Timers
	Heads(ctx context.Context, fn func(broker.Entry) error) error
	Entries(ctx context.Context, from broker.Cursor, fn func(broker.Entry) error) error
	// Follow is only called if the Config has a Watch.
	Follow(ctx context.Context, fn func(e broker.Entry, done func())) error
	OffersBetween(ctx context.Context, from, until time.Time, fn func(key broker.OfferKey, at time.Time) error) error
	RemoveOffer(ctx context.Context, key broker.OfferKey) error
	Offers(ctx context.Context, agent string, fn func(broker.OfferKey) error) error
	Departures(ctx context.Context) (<-chan protocol.Holder, error)
	PullSignals(ctx context.Context, most int, wait time.Duration) ([]broker.SignalDelivery, error)
	Reconnected(ctx context.Context) <-chan struct{}
}

// Config configures a Supervisor. The zero value is the default.
type Config struct {
	// Log receives decisions (info) and problems (warn, error); nil discards them.
	Log *slog.Logger
	// SweepInterval is the time between two incremental sweeps. At the latest every 13th sweep is
	// full: it reads the heads of all handoffs. Default 5 min.
	SweepInterval time.Duration
	// Concurrency is the number of handoffs that are reconciled in parallel. Default 32.
	Concurrency int
	// Watch receives the supervisor's figures; nil is none. With a Watch the supervisor also
	// follows the ledger, which costs the delivery and the decoding of every entry.
	Watch Watch
	// Swept, if not nil, receives the duration of each completed sweep. It must not block. A Watch
	// has that figure too.
	Swept func(took time.Duration)
	// Check, if not nil, checks the ledger for damage each second, and before a sweep that follows
	// a new connection. Its error ends Run.
	Check func(ctx context.Context) error

	unfinishedMax int // of a sweepState; 0 is the constant
}

func (c Config) withDefaults() (Config, error) {
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	c.SweepInterval = cmp.Or(c.SweepInterval, 5*time.Minute)
	c.Concurrency = cmp.Or(c.Concurrency, 32)
	if c.Watch == nil {
		c.Watch = noWatch{}
	}
	c.unfinishedMax = cmp.Or(c.unfinishedMax, unfinishedMax)
	if c.Swept == nil {
		c.Swept = func(time.Duration) {}
	}
	if c.Check == nil {
		c.Check = func(context.Context) error { return nil }
	}
	if c.SweepInterval < time.Second || c.Concurrency < 1 {
		return c, fmt.Errorf("supervisor config: sweep every %v, concurrency %d: must be positive, and a sweep at most each second", c.SweepInterval, c.Concurrency)
	}
	return c, nil
}

// Supervisor reconciles handoffs. New creates it.
type Supervisor struct {
	b          Broker
	engine     Engine
	cfg        Config
	log        *slog.Logger
	requests   chan request
	childCache *childCache
	notifier   *notifier
	absences   absences
	breakers   *breakers
	keys       waitingKeys
	suspects   chan struct{} // signals a possible deadlock
	lastSweep  *sweepState   // the previous sweep; nil makes the next one full
	sweptTo    broker.Cursor // the place up to which a sweep has reconciled

	unreadable unreadable
	// attempts has the start of each loop's present try.
	attempts []startedAt
}

// New returns a supervisor over a broker and the engine of that broker.
func New(b Broker, engine Engine, cfg Config) (*Supervisor, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Supervisor{b: b, engine: engine, cfg: cfg, log: cfg.Log, requests: make(chan request), suspects: make(chan struct{}, 1), childCache: newChildCache(), attempts: make([]startedAt, cfg.Concurrency)}
	s.notifier, s.breakers = newNotifier(s), newBreakers(s)
	return s, nil
}

// Run reconciles handoffs until ctx ends, and then returns nil. Unfinished work is delivered to
// another supervisor, or found by the next sweep.
func (s *Supervisor) Run(ctx context.Context) error {
	if _, err := s.b.Directory(ctx); err != nil { // the directory must be watched before anything is judged by it
		return ignoreEnd(ctx, fmt.Errorf("watch the directory: %w", err))
	}
	departures, err := s.engine.Departures(ctx)
	if err != nil {
		return ignoreEnd(ctx, fmt.Errorf("watch departures: %w", err))
	}
	group, ctx := errgroup.WithContext(ctx)
	for i := range s.attempts {
		group.Go(func() error { return s.reconcileLoop(ctx, &s.attempts[i]) })
	}
	if s.cfg.Watch != (noWatch{}) {
		group.Go(func() error { return s.engine.Follow(ctx, s.watchEntry) })
	}
	group.Go(func() error { return s.notifier.run(ctx) })
	group.Go(func() error { return s.breakers.run(ctx) })
	group.Go(func() error { return s.standingLoop(ctx) })
	group.Go(func() error { return s.scheduleLoop(ctx) })
	group.Go(func() error { return s.signalLoop(ctx) })
	group.Go(func() error { return s.keyLoop(ctx) })
	group.Go(func() error { return s.arrivalLoop(ctx) })
	group.Go(func() error {
		return s.engine.Due(ctx, func(w broker.WakeUp, done func()) { s.handleDue(ctx, w, done) })
	})
	group.Go(func() error { return s.sweepLoop(ctx, departures) })
	return ignoreEnd(ctx, group.Wait())
}

// ignoreEnd returns nil if the caller ended ctx.
func ignoreEnd(ctx context.Context, err error) error {
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return nil
	}
	return err
}
