package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/broker/jetstream"
	"github.com/agenthandoff/handoff/index"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/supervisor"
)

// Run measures as the configuration says. It returns an error, and what there is of a
// report, when the configuration is wrong (a *protocol.Error), when anything fails on
// the way, and when the ledger does not prove a round (*UnprovedError).
func Run(ctx context.Context, cfg Config) (report Report, err error) {
	if err := cfg.Validate(); err != nil {
		return Report{}, err
	}
	cfg = cfg.withDefaults()
	report = Report{System: "handoff", Run: uuid.NewString()[:6], Config: cfg.shown(), Machine: thisMachine()}
	packages := cfg.Packages
	if len(packages) == 0 {
		pkg, err := generated(cfg.Size, sourceOf(report.Run+"-1"), agentOf(report.Run+"-1", 0))
		if err != nil {
			return report, err
		}
		packages = []protocol.Package{pkg}
	}
	cfg, there, done, err := prepareStored(ctx, cfg, report.Run, packages)
	defer func() { err = errors.Join(err, done()) }()
	if err != nil {
		return report, err
	}
	var rounds []Round
	for n := 1; n <= cfg.Rounds; n++ {
		r := &round{cfg: cfg, n: n, run: fmt.Sprintf("%s-%d", report.Run, n), packages: packages, stored: there}
		if cfg.Rounds > 1 {
			cfg.progressf("round %d of %d", n, cfg.Rounds)
		}
		figures, err := r.measure(ctx)
		if err != nil {
			return report, err
		}
		round := Round{Figures: figures}
		if cfg.Baseline {
			if err := round.compare(ctx, cfg); err != nil {
				return report, err
			}
		}
		rounds = append(rounds, round)
	}
	report.sum(rounds)
	return report, nil
}

// round is one measurement of handoffs.
type round struct {
	cfg      Config
	n        int    // from 1
	run      string // in the names of its agents
	packages []protocol.Package
	stored   stored

	home   *home
	agents []string
	rec    *recorder
	subs   *submitters
	// The three connections: those of sources, of workers, and of what looks after
	// the handoffs, as three processes would have them.
	sources, workers, keepers *broker.Broker
	engine                    broker.Engine // of the keepers
	closers                   []func()

	crew    *crew // nil: the workers are in this process
	reports chan *measured

	began uint64 // where the ledger ended before the round
	first sample
}

// sample is what the first append and the offer of a handoff take.
type sample struct{ appendBytes, offerBytes float64 }

// sourceOf and agentOf name who hands off in a round, and to whom.
func sourceOf(run string) string       { return "bench-" + run }
func agentOf(run string, n int) string { return fmt.Sprintf("bench-%s-%d", run, n+1) }

func (r *round) measure(ctx context.Context) (_ Figures, err error) {
	runtime.GC() // what a round before has left is not its affair
	if r.home, err = openHome(ctx, r.cfg, r.cfg.Dir); err != nil {
		return Figures{}, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.open(ctx); err != nil {
		return Figures{}, err
	}
	figures, err := r.withParts(ctx, r.window)
	if err != nil {
		return figures, err
	}
	r.cfg.progressf("proving: reading the ledger")
	figures.Proof, err = prove(ctx, r.keepers, r.began, r.rec.source, r.rec.submitted.Load(), r.subs.sum.Load())
	return figures, err
}

func (r *round) close() error {
	for _, done := range r.closers {
		done()
	}
	return r.home.close()
}

// open connects, and makes the agents.
func (r *round) open(ctx context.Context) error {
	r.rec = newRecorder(newClock(), sourceOf(r.run))
	for n := range r.cfg.Agents {
		r.agents = append(r.agents, agentOf(r.run, n))
	}
	for _, part := range []struct {
		b        **broker.Broker
		observer broker.Observer
	}{{&r.sources, nil}, {&r.workers, r.rec}, {&r.keepers, nil}} {
		engine, done, err := r.home.connect(ctx)
		if err != nil {
			return err
		}
		r.closers = append(r.closers, done)
		r.engine = engine // the last is the keepers'
		if *part.b, err = broker.New(engine, broker.Config{Log: r.cfg.Log, Observer: part.observer}); err != nil {
			return err
		}
	}
	r.subs = newSubmitters(r.cfg, r.sources, r.rec, r.agents, r.packages)
	r.rec.done = r.subs.closed
	ledger, err := r.keepers.LedgerInfo(ctx)
	if err != nil {
		return err
	}
	r.began = ledger.Last
	return register(ctx, r.sources, r.agents)
}

func (r *round) slotsEach() int { return max(1, r.cfg.Slots/r.cfg.Agents) }

// samplesMost is how many handoffs are submitted to see what they take.
const samplesMost = 64

// sample submits the first handoffs before the workers start, and reads what they take in the
// ledger and in the queue. They are part of the run.
func (r *round) sample(ctx context.Context) error {
	before, err := r.look(ctx)
	if err != nil {
		return err
	}
	n := min(len(r.packages), samplesMost, r.cfg.Open)
	for range n {
		r.subs.open <- struct{}{}
		if err := r.subs.submit(ctx, r.rec.clock.now()); err != nil {
			return err
		}
	}
	after, err := r.look(ctx)
	if err != nil {
		return err
	}
	each := func(stream string) float64 {
		return float64(after.streams[stream].Bytes-before.streams[stream].Bytes) / float64(n)
	}
	r.first = sample{appendBytes: each(jetstream.LedgerStream), offerBytes: each(jetstream.WorkStream)}
	return nil
}

func (r *round) look(ctx context.Context) (standing, error) {
	return r.home.look(ctx, r.engine, sourceOf(r.run)+"-")
}

// withParts runs what there is beside the sources for as long as do takes.
func (r *round) withParts(ctx context.Context, do func(context.Context) (Figures, error)) (Figures, error) {
	group, running := errgroup.WithContext(ctx)
	running, stop := context.WithCancel(running)
	defer stop()
	atStart := newPasses()
	s, err := supervisor.New(r.keepers, r.engine, supervisor.Config{Log: r.cfg.Log, Swept: atStart.ended})
	if err != nil {
		return Figures{}, err
	}
	group.Go(func() error { return s.Run(running) })
	if r.cfg.Index {
		dir, err := os.MkdirTemp("", "handoff-bench-index-")
		if err != nil {
			return Figures{}, err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		ix, err := index.Open(filepath.Join(dir, "index.db"), index.Config{Log: r.cfg.Log})
		if err != nil {
			return Figures{}, err
		}
		group.Go(func() error {
			err := ix.Run(running, r.keepers)
			if running.Err() != nil {
				err = nil
			}
			return errors.Join(err, ix.Close())
		})
	}
	atStart.settled(running)
	err = r.sample(running)
	if err == nil {
		err = r.employ(running, group)
	}
	if err != nil {
		stop()
		return Figures{}, errors.Join(err, group.Wait())
	}
	group.Go(func() error { return probe(running, r.cfg, r.sources, r.rec, r.subs.recent, r.stored.ticket) })
	figures, err := do(running)
	stop()
	if ended := group.Wait(); ended != nil && ctx.Err() == nil {
		err = ended // the reason that the window was cut short
	}
	return figures, err
}

// employ starts the workers.
func (r *round) employ(ctx context.Context, group *errgroup.Group) (err error) {
	if r.cfg.Processes == 0 {
		group.Go(func() error { return work(ctx, r.workers, r.cfg.Deferred, r.agents, r.slotsEach()) })
		return nil
	}
	r.reports = make(chan *measured, r.cfg.Processes)
	r.crew, err = startCrew(ctx, r.cfg, r.home.url(), r.rec, r.agents)
	group.Go(func() error { return r.crew.run(ctx, r.reports) })
	return err
}

// window warms up, measures, and waits until everything has closed.
func (r *round) window(ctx context.Context) (Figures, error) {
	if r.cfg.N > 0 && r.cfg.Warmup == 0 {
		r.subs.left.Store(int64(r.cfg.N))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := make(chan struct{})
	var halt sync.Once
	end := func() { halt.Do(func() { close(stop) }) }
	submitting := make(chan error, 1)
	start := func() {
		go func() {
			err := r.subs.run(ctx, stop)
			if err != nil {
				cancel() // nothing will come of this window
			}
			submitting <- err
		}()
	}
	telling := r.tell(ctx)
	defer func() { cancel(); <-telling }()
	var w *window
	var err error
	if r.cfg.Warmup > 0 {
		start()
		r.cfg.progressf("warming up for %v", r.cfg.Warmup)
		wait(ctx, r.cfg.Warmup)
		w, err = r.begin(ctx)
	} else if w, err = r.begin(ctx); err == nil {
		start()
	}
	if err != nil {
		end()
		return Figures{}, err
	}
	r.awaitEnd(ctx)
	figures, err := w.end(ctx)
	end()
	err = errors.Join(<-submitting, err)
	if err != nil {
		return figures, err
	}
	return figures, r.drain(ctx)
}

// wait is false if ctx ended first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// awaitEnd waits until the window is over.
func (r *round) awaitEnd(ctx context.Context) {
	if r.cfg.N == 0 {
		wait(ctx, r.cfg.Duration)
		return
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(DurationMax)
	defer limit.Stop()
	inWindow := r.rec.inWindow.Load
	if r.crew != nil { // which tell how many they count when they are asked
		before := r.rec.completed.Load()
		inWindow = func() int64 { return r.rec.completed.Load() - before }
	}
	for inWindow() < int64(r.cfg.N) {
		select {
		case <-tick.C:
		case <-limit.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// drain waits until everything that was submitted has completed.
func (r *round) drain(ctx context.Context) error {
	r.cfg.progressf("draining")
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Drain)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for r.rec.completed.Load() < r.rec.submitted.Load() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d handoffs have not completed within %v: %w",
				r.rec.submitted.Load()-r.rec.completed.Load(), r.rec.submitted.Load(), r.cfg.Drain, ctx.Err())
		}
	}
	return nil
}

// tellEvery is how often a run says how far it is.
const tellEvery = 5 * time.Second

// tell says how far the round is until ctx ends.
func (r *round) tell(ctx context.Context) (ended <-chan struct{}) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		last := int64(0)
		for wait(ctx, tellEvery) {
			completed := r.rec.completed.Load()
			r.cfg.progressf("%d handoffs complete, %.0f/s, %d open", completed,
				float64(completed-last)/tellEvery.Seconds(), r.rec.submitted.Load()-completed)
			last = completed
		}
	}()
	return done
}
