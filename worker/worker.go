package worker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// Defaults and limits of Config.
const (
	DrainTimeoutDefault = 30 * time.Second
	// cleanupTimeoutDefault is the default of cancel_grace_ms, too.
	cleanupTimeoutDefault = 30 * time.Second
	cleanupTimeoutMax     = time.Hour
	// abandonTimeoutDefault lets a program be killed (5 s), and reports outlast most of
	// an election.
	abandonTimeoutDefault = 10 * time.Second
	concurrencyMax        = protocol.ConcurrencyMax
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
	// most Beat. Default: Beat, or the room that the Lease leaves.
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
	// Trace returns the span of the work on a handoff, for Handoff.Trace and the
	// environment of a program. Nil is protocol.State.WorkTrace.
	Trace func(protocol.State) protocol.TraceContext
	// Log receives one line for each handoff (info) and the faults (warn,
	// error); nil discards.
	Log *slog.Logger
}

// Validate returns the fault of a Config. New calls it.
func (c Config) Validate() error {
	if err := protocol.CheckAgent("agent", c.Agent); err != nil {
		return err
	}
	switch {
	case c.Concurrency < 0 || c.Concurrency > concurrencyMax:
		return protocol.Errorf(protocol.CodeInvalid, "concurrency", "is %d, must be 1 to %d, or 0 for the default", c.Concurrency, concurrencyMax)
	case c.CleanupTimeout < 0 || c.CleanupTimeout > cleanupTimeoutMax:
		return protocol.Errorf(protocol.CodeInvalid, "cleanup_timeout", "is %v, must be positive and at most %v, or 0 for the default", c.CleanupTimeout, cleanupTimeoutMax)
	case c.Profile.ID != "" && c.Profile.ID != c.Agent:
		return protocol.Errorf(protocol.CodeConflict, "profile.id", "is %s, and the worker serves %s", c.Profile.ID, c.Agent)
	}
	if err := c.validateTiming(); err != nil {
		return err
	}
	profile := c.Profile
	profile.ID = c.Agent
	return profile.Validate()
}

func (c Config) withDefaults() Config {
	c = c.withTiming()
	switch {
	case c.DrainTimeout == 0:
		c.DrainTimeout = DrainTimeoutDefault
	case c.DrainTimeout < 0:
		c.DrainTimeout = 0
	}
	c.AbandonTimeout = cmp.Or(c.AbandonTimeout, abandonTimeoutDefault)
	c.CleanupTimeout = cmp.Or(c.CleanupTimeout, cleanupTimeoutDefault)
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
	session Session
	cfg     Config
	handler Handler
	acks    Acknowledger // nil: everything is accepted
	cleaner Cleaner      // nil: there is nothing to put away
	log     *slog.Logger
	counts  counters
	worked  workTime
	profile atomic.Pointer[protocol.Profile] // as it was when the worker began; nil before

	started           atomic.Bool
	presented         api.Presence  // but Slots, Busy and Draining
	request           api.ClaimMany // but Most
	heartbeatInterval time.Duration // between two checks of a held handoff
	presence          *presence
	tickedAt          atomic.Int64  // of beatLoop, in Unix nanoseconds; 0 before its first turn
	beatNow           chan struct{} // asks for a beat now

	slots     chan struct{} // a token for each handoff in hand, or pulled for
	slotCount atomic.Int32
	runs      runs
	sentBusy  atomic.Int64   // how many are in hand, by the last beat
	wg        sync.WaitGroup // of the runs and their beats
	work      chan func()    // to a goroutine that has nothing to do
	runners   sync.WaitGroup // of those goroutines

	draining atomic.Bool
	stop     context.CancelCauseFunc // begins the drain
	hurry    chan struct{}           // ends the handlers' time to drain
	hurried  sync.Once
}

// contexts bound the work of one Run. They end in this order.
type contexts struct {
	accepting context.Context // until the drain begins: nothing new starts after it
	reporting context.Context // until one lease after the handlers' time to drain is over
	running   context.Context // until everything is reported
}

// New returns a worker that acts by a session: that of api.Direct, or a gateway's client. A *protocol.Error
// names the fault of the Config.
func New(session Session, cfg Config, h Handler) (*Worker, error) {
	if session == nil || h == nil {
		return nil, errors.New("worker: a session and a handler are needed")
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	host, _ := os.Hostname() // for people to read; empty will do
	key := uuid.NewString()
	w := &Worker{
		session: session, cfg: cfg, handler: h, log: cfg.Log.With("agent", cfg.Agent),
		heartbeatInterval: min(cfg.Beat, heartbeatIntervalMax),
		beatNow:           make(chan struct{}, 1),
		hurry:             make(chan struct{}),
		work:              make(chan func()),
		presented: api.Presence{Agent: cfg.Agent, Key: key, LeaseMS: cfg.Lease.Milliseconds(),
			Host: protocol.CutText(host, protocol.NameBytesMax), PID: os.Getpid()},
	}
	w.presence = newPresence(cfg.Lease, w.loseLease)
	_, w.presented.Program = h.(*Exec)
	w.acks, _ = h.(Acknowledger)
	w.cleaner, _ = h.(Cleaner)
	w.request = api.ClaimMany{Agent: cfg.Agent, Key: key, Lease: cfg.Lease, Wait: claimWait, Accept: w.acks == nil,
		Skipped: func(ticket string, refused bool, err error) {
			w.log.Debug("offer not claimed", "ticket", ticket, "refused", refused, "err", err)
		}}
	return w, nil
}

// Holder is the id under which this worker holds handoffs: a UUID.
func (w *Worker) Holder() string { return api.HolderID(w.cfg.Agent, w.presented.Key) }

// Run serves the agent until ctx ends, then drains, and returns nil. It
// registers the agent if need be, and waits for an engine that does not answer.
// It returns an error early only if the agent cannot be registered, or if a
// handler returned Stop; it drains first then too.
//
// The drain: nothing is pulled any more; offers not acknowledged are released;
// handlers have Config.DrainTimeout to finish before their context ends with
// ErrShutdown; handoffs that they give up are released; the worker's presence is removed.
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

	w.presented.StartedAt = time.Now().UTC().Truncate(time.Microsecond)
	defer w.presence.close()
	if err := w.prepare(accepting); err != nil {
		return w.runError(accepting, err)
	}
	w.log.Info("worker ready", "holder", w.Holder(), "slots", cap(w.slots), "lease", w.cfg.Lease)

	var loops sync.WaitGroup
	loops.Go(func() { w.beatLoop(running) })
	loops.Go(func() { w.claimBeatLoop(running) })
	loops.Go(func() { w.loadLoop(running) })
	loops.Go(func() { w.reconnectLoop(accepting, running) })
	w.claimLoop(contexts{accepting: accepting, reporting: reporting, running: running})
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
		return max(1, min(most, concurrencyMax))
	case most > 0:
		return min(asked, most)
	}
	return asked
}

// runError returns the error of Run: nil for the end that the caller asked for.
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
	if !closedWithin(done, w.cfg.DrainTimeout, w.hurry) {
		w.runs.each(func(r *run) { r.cancel(ErrShutdown) })
	}
	reporting := w.cfg.Lease
	if w.cfg.AbandonTimeout > 0 {
		reporting = min(reporting, w.cfg.AbandonTimeout)
	}
	if !closedWithin(done, reporting, nil) {
		endReporting()
		if w.cfg.AbandonTimeout > 0 && !closedWithin(done, w.cfg.AbandonTimeout-reporting+lateReportTimeout, nil) {
			w.log.Error("handlers left behind; their leases run out", "running", w.runs.len())
			return fmt.Errorf("worker of %s: %d %w", w.cfg.Agent, w.runs.len(), ErrAbandoned)
		}
	}
	<-done
	w.runners.Wait()
	return nil
}

// Hurry ends the time that handlers have to finish in a drain: handoffs that they give up are
// released at once. It does not block, and begins no drain: end Run's context for that.
func (w *Worker) Hurry() { w.hurried.Do(func() { close(w.hurry) }) }

// closedWithin waits for done, and returns false after d or once hurry is closed.
func closedWithin(done <-chan struct{}, d time.Duration, hurry <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-hurry:
	case <-timer.C:
	}
	return false
}

// removePresenceTimeout is how long the removal of the presence may take; without it
// the entry expires by itself.
const removePresenceTimeout = 5 * time.Second

// removePresence ends the holder's presence, after everything it held was released.
func (w *Worker) removePresence(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, removePresenceTimeout)
	defer cancel()
	if err := w.session.Leave(ctx, w.presented); err != nil {
		w.log.Warn("presence not removed; it expires by itself", "holder", w.Holder(), "err", err)
	}
	stats := w.Stats()
	w.log.Info("worker ended", "holder", w.Holder(), "claimed", stats.Claimed, "completed", stats.Completed,
		"failed", stats.Failed, "released", stats.Released, "lost", stats.Lost)
}

// Run serves an agent with one handler until ctx ends, then drains. It is New with the
// defaults of Config, and Worker.Run.
func Run(ctx context.Context, session Session, agent string, h Handler) error {
	w, err := New(session, Config{Agent: agent}, h)
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

// Typed makes a Handler of a function with types of its own. The function gets the
// package's variables, answers included, as an In; its Out is the result's body.
// An Out that is a protocol.Result is the whole result. Variables that are no In fail the
// handoff for good, with the code invalid_input.
func Typed[In, Out any](f func(ctx context.Context, in In, h Handoff) (Out, error)) Handler {
	return HandlerFunc(func(ctx context.Context, h Handoff) (protocol.Result, error) {
		var in In
		if len(h.Package.Context.Variables) > 0 {
			raw, err := protocol.Marshal(h.Package.Context.Variables)
			if err == nil {
				err = json.Unmarshal(raw, &in)
			}
			if err != nil {
				return protocol.Result{}, &Failure{Code: "invalid_input", Permanent: true, Err: fmt.Errorf("variables: %w", err)}
			}
		}
		out, err := f(ctx, in, h)
		if err != nil {
			return protocol.Result{}, err
		}
		if result, isResult := any(out).(protocol.Result); isResult {
			return result, nil
		}
		body, err := protocol.Marshal(out)
		if err != nil {
			return protocol.Result{}, &Failure{Code: "invalid_result", Permanent: true, Err: err}
		}
		return protocol.Result{Body: body}, nil
	})
}

// Stats counts the handoffs of one worker by their outcome, from its start.
// Claimed is the sum of the others and of the held ones.
type Stats struct {
	Claimed   int64 // accepted
	Completed int64
	Failed    int64 // attempts that failed
	Refused   int64 // rejected or conditional after they were accepted
	Released  int64 // released without charge: cancelled, shut down, unfit
	Lost      int64 // another's, or closed, before the report

	Suspended  int64 // waiting for children
	Escalated  int64 // passed up the chain of authority
	Answered   int64 // sent back to the agent that had escalated them
	RolledBack int64 // returned to their source

	Declined int64 // rejected or conditional before they were accepted: not in Claimed
	Busy     int   // slots in use now
	Slots    int
}

// outcomes are counted, by their names in the log.
var outcomes = [...]string{"claimed", "completed", "failed", "refused", "released", "lost", "declined",
	"suspended", "escalated", "answered", "rolled back"}

type counters [len(outcomes)]atomic.Int64

func (c *counters) of(outcome string) *atomic.Int64 { return &c[slices.Index(outcomes[:], outcome)] }

// Stats returns the counts so far. It is safe to call at any time.
func (w *Worker) Stats() Stats {
	n := func(outcome string) int64 { return w.counts.of(outcome).Load() }
	return Stats{
		Claimed: n("claimed"), Completed: n("completed"), Failed: n("failed"), Refused: n("refused"), Released: n("released"),
		Lost: n("lost"), Declined: n("declined"), Suspended: n("suspended"), Escalated: n("escalated"), Answered: n("answered"),
		RolledBack: n("rolled back"), Busy: w.runs.len(), Slots: int(w.slotCount.Load()),
	}
}

// Present reports whether the engine has confirmed within the lease that this
// worker is there. Without that it takes nothing.
func (w *Worker) Present() bool { return w.presence.isHeld() }

// Overdue returns how late the next heartbeat is, whether or not the engine answers. It is 0
// where none is late, and before the first one. More than a few seconds mean that the loop
// is lost.
func (w *Worker) Overdue() time.Duration {
	tickedAt := w.tickedAt.Load()
	if tickedAt == 0 {
		return 0
	}
	return max(0, time.Since(time.Unix(0, tickedAt))-w.cfg.Beat-w.cfg.BeatTimeout)
}

// Limits and defaults of a worker's beats.
const (
	leaseDefault  = time.Duration(protocol.LeaseDefaultMS) * time.Millisecond
	LeaseMin      = time.Duration(protocol.LeaseMinMS) * time.Millisecond
	LeaseMax      = time.Duration(protocol.LeaseMaxMS) * time.Millisecond
	beatMin       = 100 * time.Millisecond
	missesDefault = 3
	missesMax     = 100
)

// heartbeatIntervalMax is the longest time between two checks of a held handoff: the
// queue keeps an offer from others for three of them, however slow the beat is.
const heartbeatIntervalMax = broker.AckWait / 3

// validateTiming refuses values out of bounds, and a lease that is over before as
// many beats were missed as may be.
func (c Config) validateTiming() error {
	invalid := func(field, format string, args ...any) error {
		return protocol.Errorf(protocol.CodeInvalid, field, format, args...)
	}
	switch {
	case c.Lease != 0 && (c.Lease < LeaseMin || c.Lease > LeaseMax):
		return invalid("lease", "is %v, must be %v to %v", c.Lease, LeaseMin, LeaseMax)
	case c.Beat != 0 && (c.Beat < beatMin || c.Beat > LeaseMax):
		return invalid("beat", "is %v, must be %v to %v", c.Beat, beatMin, LeaseMax)
	case c.Misses < 0 || c.Misses > missesMax:
		return invalid("misses", "is %d, must be 1 to %d, or 0 for the default", c.Misses, missesMax)
	case c.BeatTimeout < 0:
		return invalid("beat_timeout", "is %v, must be positive, or 0 for the default", c.BeatTimeout)
	}
	full := c.withTiming()
	missed, answered := full.Beat*time.Duration(full.Misses), full.Beat+full.BeatTimeout
	switch {
	case full.BeatTimeout > full.Beat:
		return invalid("beat_timeout", "is %v, must be at most the time between two beats, %v", full.BeatTimeout, full.Beat)
	case full.Lease > LeaseMax:
		return invalid("beat", "is %v: %d of them make a lease of %v, and %v is the longest", full.Beat, full.Misses, full.Lease, LeaseMax)
	case full.Lease < missed:
		return invalid("lease", "is %v, and is over before %d beats, one each %v, were missed: make it at least %v", full.Lease, full.Misses, full.Beat, missed)
	case full.Lease < answered:
		return invalid("lease", "is %v, and is over before the next beat, after %v, is answered, within %v: make it at least %v", full.Lease, full.Beat, full.BeatTimeout, answered)
	}
	return nil
}

// withTiming derives the missing values from the given ones. See Config.
func (c Config) withTiming() Config {
	lease, full := cmp.Or(c.Lease, leaseDefault), c
	if full.Misses == 0 {
		full.Misses = missesDefault
		if c.Lease != 0 && c.Beat != 0 {
			full.Misses = int(min(missesDefault, max(1, c.Lease/c.Beat)))
		}
	}
	if full.Beat == 0 { // with a single miss, too, the next beat is answered before the lease is over
		full.Beat = max(beatMin, min(lease/time.Duration(max(full.Misses, 2)), heartbeatIntervalMax))
	}
	if full.BeatTimeout == 0 {
		full.BeatTimeout = full.Beat
		if c.Lease != 0 { // the room that it leaves
			full.BeatTimeout = max(beatMin, min(full.Beat, c.Lease-full.Beat))
		}
	}
	if full.Lease == 0 {
		full.Lease = lease
		if c.Beat != 0 {
			full.Lease = max(full.Beat*time.Duration(full.Misses)+full.BeatTimeout, LeaseMin)
		}
	}
	return full
}
