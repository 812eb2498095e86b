package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// Broker is what a worker asks of the broker. *broker.Broker satisfies it.
type Broker interface {
	EnsureQueue(ctx context.Context, agent string) error
	Pull(ctx context.Context, agent string, most int, wait time.Duration) ([]*broker.Offer, error)
	Profile(ctx context.Context, agent string) (protocol.Profile, error)
	PutProfile(ctx context.Context, p protocol.Profile) error
	Directory(ctx context.Context) (*lifecycle.Directory, error)
	Beat(ctx context.Context, h protocol.Holder) error
	RemoveHolder(ctx context.Context, id string) error
	Reconnected(ctx context.Context) <-chan struct{}
}

// Defaults and limits of Config.
const (
	LeaseDefault        = time.Duration(protocol.LeaseDefaultMS) * time.Millisecond
	LeaseMin            = time.Duration(protocol.LeaseMinMS) * time.Millisecond
	LeaseMax            = time.Duration(protocol.LeaseMaxMS) * time.Millisecond
	DrainTimeoutDefault = 30 * time.Second
	ConcurrencyMax      = protocol.ConcurrencyMax
)

// Config configures a Worker. The zero value of each field is its default;
// only Agent must be set.
type Config struct {
	// Agent is whom the worker serves.
	Agent string
	// Concurrency is how many handoffs are worked on at a time. Default: the
	// profile's max_concurrency, else 1, because most agents are one program
	// with one place to work in. A profile's max_concurrency is never exceeded.
	Concurrency int
	// Lease is how long the handoffs stay this worker's without a word from it.
	// It beats every third of it, and at least every 10 s. Default 30 s; 1 s
	// to a day. Shorter ones find a dead worker sooner and forgive less.
	Lease time.Duration
	// DrainTimeout is how long handlers may go on once Run's context has ended.
	// Default 30 s; negative is not at all.
	DrainTimeout time.Duration
	// Profile registers the agent if the directory has none of that name; ID
	// need not be set. A profile that is there is left alone.
	Profile protocol.Profile
	// Log receives one line for each handoff (info) and what went wrong (warn,
	// error); nil discards.
	Log *slog.Logger
}

// Validate says what is wrong with a Config. New calls it.
func (c Config) Validate() error {
	if err := protocol.CheckID("agent", c.Agent); err != nil {
		return err
	}
	switch {
	case c.Concurrency < 0 || c.Concurrency > ConcurrencyMax:
		return protocol.Errorf(protocol.CodeInvalid, "concurrency", "is %d, must be 1 to %d, or 0 for the default", c.Concurrency, ConcurrencyMax)
	case c.Lease != 0 && (c.Lease < LeaseMin || c.Lease > LeaseMax):
		return protocol.Errorf(protocol.CodeInvalid, "lease", "is %v, must be %v to %v", c.Lease, LeaseMin, LeaseMax)
	case c.Profile.ID != "" && c.Profile.ID != c.Agent:
		return protocol.Errorf(protocol.CodeConflict, "profile.id", "is %s, and the worker serves %s", c.Profile.ID, c.Agent)
	}
	profile := c.Profile
	profile.ID = c.Agent
	return profile.Validate()
}

func (c Config) withDefaults() Config {
	if c.Lease == 0 {
		c.Lease = LeaseDefault
	}
	switch {
	case c.DrainTimeout == 0:
		c.DrainTimeout = DrainTimeoutDefault
	case c.DrainTimeout < 0:
		c.DrainTimeout = 0
	}
	c.Profile.ID = c.Agent
	c.Profile.RegisteredByWork = true
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// beatMax is the longest time between two beats: the queue keeps an offer
// from others for three of them (broker.AckWait), however long the lease is.
const beatMax = broker.AckWait / 3

// Worker serves one agent. Make it with New; it is used for one Run.
type Worker struct {
	b       Broker
	cfg     Config
	handler Handler
	acks    Acknowledger // nil: everything is accepted
	log     *slog.Logger
	counts  counters

	started   atomic.Bool
	holder    protocol.Holder // but Slots, Busy and Draining
	beatEvery time.Duration
	presence  *presence
	kick      chan struct{} // asks for a beat now

	slots     chan struct{} // a token for each handoff in hand, or pulled for
	slotCount atomic.Int32
	runs      runs
	wg        sync.WaitGroup // of the runs and their beats

	// open ends when the drain begins: nothing new is begun then.
	open context.Context
	stop context.CancelCauseFunc
	// reports ends one lease after the drain's time is over: by then nobody
	// waits for them any more.
	reports    context.Context
	endReports context.CancelFunc
	// life ends when everything was reported: the last to go.
	life context.Context
	end  context.CancelFunc
}

// New returns a worker. A *protocol.Error says what is wrong with the Config.
func New(b Broker, cfg Config, h Handler) (*Worker, error) {
	if b == nil || h == nil {
		return nil, errors.New("worker: a broker and a handler are needed")
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	host, _ := os.Hostname() // for people to read; empty will do
	w := &Worker{
		b: b, cfg: cfg, handler: h, log: cfg.Log.With("agent", cfg.Agent),
		beatEvery: min(cfg.Lease/3, beatMax),
		kick:      make(chan struct{}, 1),
		holder: protocol.Holder{ID: uuid.NewString(), Agent: cfg.Agent, LeaseMS: cfg.Lease.Milliseconds(),
			Host: host, PID: os.Getpid()},
	}
	w.acks, _ = h.(Acknowledger)
	return w, nil
}

// Holder is the id under which this worker holds handoffs: a UUID.
func (w *Worker) Holder() string { return w.holder.ID }

// Run serves the agent until ctx ends, then drains, and returns nil. It
// registers the agent if need be, and waits for an engine that does not answer.
// It returns an error early only if the agent cannot be registered, or if a
// handler returned Stop; it drains first then too.
//
// The drain: nothing is pulled any more; offers not acknowledged are given back;
// handlers have Config.DrainTimeout to finish before their context ends with
// ErrShutdown; what they give up is released; the worker's presence is removed.
// Run waits for every handler, however long it ignores its context, and leaves no
// goroutine behind.
func (w *Worker) Run(ctx context.Context) error {
	if w.started.Swap(true) {
		return errors.New("worker: a Worker runs once")
	}
	values := context.WithoutCancel(ctx)
	w.open, w.stop = context.WithCancelCause(ctx)
	w.life, w.end = context.WithCancel(values)
	w.reports, w.endReports = context.WithCancel(w.life)
	defer w.stop(nil)
	defer w.end()
	defer w.endReports()

	w.holder.StartedAt = time.Now().UTC().Truncate(time.Microsecond)
	w.presence = newPresence(w.cfg.Lease, w.lapse)
	defer w.presence.close()
	if err := w.begin(); err != nil {
		return w.ended(err)
	}
	w.log.Info("worker ready", "holder", w.holder.ID, "slots", cap(w.slots), "lease", w.cfg.Lease)

	var loops sync.WaitGroup
	loops.Go(w.beatLoop)
	loops.Go(w.reconnectLoop)
	w.pullLoop() // until open ends
	w.drain()
	w.end()
	loops.Wait()
	w.leave(values)
	return w.ended(nil)
}

// begin makes everything ready for the first pull.
func (w *Worker) begin() error {
	profile, err := w.register(w.open)
	if err != nil {
		return err
	}
	w.slots = make(chan struct{}, concurrency(w.cfg.Concurrency, profile.MaxConcurrency))
	w.slotCount.Store(int32(cap(w.slots)))
	// Whoever pulls must be known to be there: its claim would be judged lost.
	return w.persist(w.open, "first beat", w.beatPresence)
}

func concurrency(asked, most int) int {
	switch {
	case asked == 0:
		return max(1, min(most, ConcurrencyMax))
	case most > 0:
		return min(asked, most)
	}
	return asked
}

// ended is what Run returns: nothing for the end that the caller asked for.
func (w *Worker) ended(err error) error {
	var stop *stopError
	if errors.As(context.Cause(w.open), &stop) {
		return fmt.Errorf("worker of %s stopped: %w", w.cfg.Agent, stop.err)
	}
	if w.open.Err() != nil {
		return nil
	}
	return err
}

// drain lets the handlers finish, and ends those that do not.
func (w *Worker) drain() {
	w.log.Info("worker drains", "running", w.runs.len(), "timeout", w.cfg.DrainTimeout)
	w.beatNow() // so that nobody routes anything here
	done := make(chan struct{})
	go func() {
		w.wg.Wait()
		close(done)
	}()
	if !closedWithin(done, w.cfg.DrainTimeout) {
		w.runs.each(func(r *run) { r.cancel(ErrShutdown) })
	}
	if !closedWithin(done, w.cfg.Lease) {
		w.endReports()
	}
	<-done
}

func closedWithin(done <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// leaveTimeout is how long the removal of the presence may take; without it
// the entry expires by itself.
const leaveTimeout = 5 * time.Second

// leave ends the holder's presence, after everything it held was given back.
func (w *Worker) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	if err := w.b.RemoveHolder(ctx, w.holder.ID); err != nil {
		w.log.Warn("presence not removed; it expires by itself", "holder", w.holder.ID, "err", err)
	}
	stats := w.Stats()
	w.log.Info("worker ended", "holder", w.holder.ID, "claimed", stats.Claimed, "completed", stats.Completed,
		"failed", stats.Failed, "released", stats.Released, "lost", stats.Lost)
}
