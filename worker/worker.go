package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// Defaults and limits of Config.
const (
	DrainTimeoutDefault = 30 * time.Second
	// CleanupTimeoutDefault is the default of cancel_grace_ms, too.
	CleanupTimeoutDefault = 30 * time.Second
	CleanupTimeoutMax     = time.Hour
	// AbandonTimeoutDefault lets a program be killed (5 s), and reports outlast most of
	// an election.
	AbandonTimeoutDefault = 10 * time.Second
	ConcurrencyMax        = protocol.ConcurrencyMax
)

// Config configures a Worker. The zero value of each field is its default;
// only Agent must be set.
type Config struct {
	// Agent is the agent that the worker serves.
	Agent string
	// Concurrency is how many handoffs this worker works on at a time. Default: the
	// profile's max_concurrency, else 1, because most agents are one program with one
	// place to work in. It is the worker's share of max_concurrency, which the broker
	// keeps for all holders of the agent together.
	Concurrency int
	// Lease is how long the handoffs stay this worker's without a word from it,
	// 1 s to a day. Shorter ones find a dead worker sooner and forgive less.
	// Default 30 s; where Beat is given, Misses beats and one BeatTimeout more, so
	// that the last may still be on its way. The interval of 60 s, the timeout of
	// 10 s and the 3 misses of the handoff protocol specification make a lease of 190 s.
	Lease time.Duration
	// Beat is the time between two beats, at least 100 ms. Default: the Lease
	// divided by Misses, at most 10 s. A slow beat is no reason to hear of a cancel
	// late: each handoff in hand is looked after every 10 s in any case, which keeps
	// its offer in the queue from others, too.
	Beat time.Duration
	// BeatTimeout is how long one beat may take before it counts as missed, at
	// most Beat. Default: Beat, or what the Lease leaves room for.
	BeatTimeout time.Duration
	// Misses is how many beats may be missed before the lease is over, 1 to 100. A
	// Lease that is shorter than so many beats is refused. Default 3, or as many
	// as Lease and Beat leave room for.
	Misses int
	// DrainTimeout is how long handlers may go on once Run's context has ended.
	// Default 30 s; negative is not at all.
	DrainTimeout time.Duration
	// AbandonTimeout is how long after DrainTimeout Run waits for handlers that ignore
	// their context, and for reports. Then it waits 5 s more and returns ErrAbandoned.
	// Default 10 s; negative waits as long as they take.
	AbandonTimeout time.Duration
	// CleanupTimeout is how long a Cleaner's Cleanup may take. Default 30 s; at
	// most an hour.
	CleanupTimeout time.Duration
	// Profile registers the agent if the directory has none of that name; ID
	// need not be set. A profile that is there is left alone.
	Profile protocol.Profile
	// Trace says which span the work on a handoff is: what Handoff.Trace and the
	// environment of a program have. Nil is protocol.State.WorkTrace.
	Trace func(protocol.State) protocol.TraceContext
	// Log receives one line for each handoff (info) and what went wrong (warn,
	// error); nil discards.
	Log *slog.Logger
}

// Validate says what is wrong with a Config. New calls it.
func (c Config) Validate() error {
	if err := protocol.CheckAgent("agent", c.Agent); err != nil {
		return err
	}
	switch {
	case c.Concurrency < 0 || c.Concurrency > ConcurrencyMax:
		return protocol.Errorf(protocol.CodeInvalid, "concurrency", "is %d, must be 1 to %d, or 0 for the default", c.Concurrency, ConcurrencyMax)
	case c.CleanupTimeout < 0 || c.CleanupTimeout > CleanupTimeoutMax:
		return protocol.Errorf(protocol.CodeInvalid, "cleanup_timeout", "is %v, must be positive and at most %v, or 0 for the default", c.CleanupTimeout, CleanupTimeoutMax)
	case c.Profile.ID != "" && c.Profile.ID != c.Agent:
		return protocol.Errorf(protocol.CodeConflict, "profile.id", "is %s, and the worker serves %s", c.Profile.ID, c.Agent)
	}
	if err := c.timing().validate(); err != nil {
		return err
	}
	profile := c.Profile
	profile.ID = c.Agent
	return profile.Validate()
}

func (c Config) withDefaults() Config {
	h := c.timing().withDefaults()
	c.Lease, c.Beat, c.BeatTimeout, c.Misses = h.lease, h.beat, h.beatTimeout, h.misses
	switch {
	case c.DrainTimeout == 0:
		c.DrainTimeout = DrainTimeoutDefault
	case c.DrainTimeout < 0:
		c.DrainTimeout = 0
	}
	c.AbandonTimeout = cmp.Or(c.AbandonTimeout, AbandonTimeoutDefault)
	c.CleanupTimeout = cmp.Or(c.CleanupTimeout, CleanupTimeoutDefault)
	c.Profile.ID = c.Agent
	c.Profile.RegisteredByWork = true
	if c.Trace == nil {
		c.Trace = protocol.State.WorkTrace
	}
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	return c
}

// Worker serves one agent. Make it with New; it is used for one Run.
type Worker struct {
	transport Transport
	cfg       Config
	handler   Handler
	acks      Acknowledger // nil: everything is accepted
	cleaner   Cleaner      // nil: there is nothing to put away
	log       *slog.Logger
	counts    counters
	worked    workTime
	profile   atomic.Pointer[protocol.Profile] // as it was when the worker began; nil before

	started           atomic.Bool
	holder            protocol.Holder // but Slots, Busy and Draining
	heartbeatInterval time.Duration   // between two looks after a handoff in hand
	presence          *presence
	heartbeat         heartbeat
	beatNow           chan struct{} // asks for a beat now

	slots     chan struct{} // a token for each handoff in hand, or pulled for
	slotCount atomic.Int32
	runs      runs
	sentBusy  atomic.Int64   // how many are in hand, as the last beat said
	wg        sync.WaitGroup // of the runs and their beats
	runQueue  chan *run      // to a goroutine that has nothing to serve
	runners   sync.WaitGroup // of those goroutines

	draining atomic.Bool
	stop     context.CancelCauseFunc // begins the drain
	hurry    chan struct{}           // ends the handlers' time to drain
	hurried  sync.Once
}

// contexts bound what one Run does. They end in this order.
type contexts struct {
	accepting context.Context // until the drain begins: nothing new starts after it
	reporting context.Context // until one lease after the handlers' time to drain is over
	running   context.Context // until everything is reported
}

// New returns a worker. A *protocol.Error says what is wrong with the Config.
func New(b Broker, cfg Config, h Handler) (*Worker, error) {
	if b == nil {
		return nil, errNothingToServe
	}
	return NewOver(direct{b}, cfg, h)
}

var errNothingToServe = errors.New("worker: a broker and a handler are needed")

// NewOver is New for a worker that does not reach the broker itself.
func NewOver(transport Transport, cfg Config, h Handler) (*Worker, error) {
	if transport == nil || h == nil {
		return nil, errNothingToServe
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	host, _ := os.Hostname() // for people to read; empty will do
	w := &Worker{
		transport: transport, cfg: cfg, handler: h, log: cfg.Log.With("agent", cfg.Agent),
		heartbeatInterval: min(cfg.Beat, heartbeatIntervalMax),
		beatNow:           make(chan struct{}, 1),
		hurry:             make(chan struct{}),
		runQueue:          make(chan *run),
		holder: protocol.Holder{ID: transport.NewHolder(cfg.Agent), Agent: cfg.Agent, LeaseMS: cfg.Lease.Milliseconds(),
			Host: host, PID: os.Getpid()},
	}
	w.acks, _ = h.(Acknowledger)
	w.cleaner, _ = h.(Cleaner)
	return w, nil
}

// Holder is the id under which this worker holds handoffs: a UUID.
func (w *Worker) Holder() string { return w.holder.ID }

// Run serves the agent until ctx ends, then drains, and returns nil. It
// registers the agent if need be, and waits for an engine that does not answer.
// It returns an error early only if the agent cannot be registered, or if a
// handler returned Stop; it drains first then too.
//
// The drain: nothing is pulled any more; offers not acknowledged are released;
// handlers have Config.DrainTimeout to finish before their context ends with
// ErrShutdown; what they give up is released; the worker's presence is removed.
// Run leaves no goroutine behind but those of handlers that ignore the end of their
// context for Config.AbandonTimeout and 5 s more; its error wraps ErrAbandoned then.
func (w *Worker) Run(ctx context.Context) error {
	if w.started.Swap(true) {
		return errors.New("worker: a Worker runs once")
	}
	values := context.WithoutCancel(ctx)
	accepting, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	running, endRunning := context.WithCancel(values)
	defer endRunning()
	reporting, endReporting := context.WithCancel(running)
	defer endReporting()
	w.stop = stop

	w.holder.StartedAt = time.Now().UTC().Truncate(time.Microsecond)
	w.presence = newPresence(w.cfg.Lease, w.loseLease)
	w.heartbeat.presence.Store(w.presence)
	defer w.presence.close()
	if err := w.prepare(accepting); err != nil {
		return w.runError(accepting, err)
	}
	w.log.Info("worker ready", "holder", w.holder.ID, "slots", cap(w.slots), "lease", w.cfg.Lease)

	var loops sync.WaitGroup
	loops.Go(func() { w.beatLoop(running) })
	loops.Go(func() { w.claimBeatLoop(running) })
	loops.Go(func() { w.loadLoop(running) })
	loops.Go(func() { w.reconnectLoop(accepting, running) })
	w.pullLoop(contexts{accepting: accepting, reporting: reporting, running: running})
	w.draining.Store(true)
	abandoned := w.drain(endReporting)
	endRunning()
	loops.Wait()
	w.removePresence(values)
	return errors.Join(w.runError(accepting, nil), abandoned)
}

// prepare makes everything ready for the first pull.
func (w *Worker) prepare(ctx context.Context) error {
	profile, err := w.register(ctx)
	if err != nil {
		return err
	}
	w.profile.Store(&profile)
	w.slots = make(chan struct{}, concurrency(w.cfg.Concurrency, profile.MaxConcurrency))
	w.slotCount.Store(int32(cap(w.slots)))
	// A worker that pulls must be present first: its claim would be judged lost.
	return w.retry(ctx, "first beat", w.beatPresence)
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

// runError is what Run returns: nothing for the end that the caller asked for.
func (w *Worker) runError(accepting context.Context, err error) error {
	var stop *stopError
	if errors.As(context.Cause(accepting), &stop) {
		return fmt.Errorf("worker of %s stopped: %w", w.cfg.Agent, stop.err)
	}
	if accepting.Err() != nil {
		return nil
	}
	return err
}

// ErrAbandoned: handlers ignored the end of their context, and were left behind.
var ErrAbandoned = errors.New("handlers did not end with their context and were left behind")

// drain lets the handlers finish, and ends those that do not.
func (w *Worker) drain(endReporting context.CancelFunc) error {
	w.log.Info("worker drains", "running", w.runs.len(), "timeout", w.cfg.DrainTimeout)
	w.requestBeat() // so that nothing is routed here
	done := make(chan struct{})
	go func() {
		w.wg.Wait()
		close(done)
	}()
	if !w.closedUnhurried(done, w.cfg.DrainTimeout) {
		w.runs.each(func(r *run) { r.cancel(ErrShutdown) })
	}
	reporting := w.cfg.Lease
	if w.cfg.AbandonTimeout > 0 {
		reporting = min(reporting, w.cfg.AbandonTimeout)
	}
	if !closedWithin(done, reporting) {
		endReporting()
		if w.cfg.AbandonTimeout > 0 && !closedWithin(done, w.cfg.AbandonTimeout-reporting+lateReportTimeout) {
			w.log.Error("handlers left behind; their leases run out", "running", w.runs.len())
			return fmt.Errorf("worker of %s: %d %w", w.cfg.Agent, w.runs.len(), ErrAbandoned)
		}
	}
	<-done
	w.runners.Wait()
	return nil
}

// Hurry ends the time that handlers have to finish in a drain: what they give up is released at
// once. It does not block, and begins no drain: end Run's context for that.
func (w *Worker) Hurry() { w.hurried.Do(func() { close(w.hurry) }) }

func (w *Worker) closedUnhurried(done <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-w.hurry:
	case <-timer.C:
	}
	return false
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

// removePresenceTimeout is how long the removal of the presence may take; without it
// the entry expires by itself.
const removePresenceTimeout = 5 * time.Second

// removePresence ends the holder's presence, after everything it held was released.
func (w *Worker) removePresence(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, removePresenceTimeout)
	defer cancel()
	if err := w.transport.Leave(ctx, w.holder); err != nil {
		w.log.Warn("presence not removed; it expires by itself", "holder", w.holder.ID, "err", err)
	}
	stats := w.Stats()
	w.log.Info("worker ended", "holder", w.holder.ID, "claimed", stats.Claimed, "completed", stats.Completed,
		"failed", stats.Failed, "released", stats.Released, "lost", stats.Lost)
}
