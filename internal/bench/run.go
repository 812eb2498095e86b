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
	"github.com/agenthandoff/handoff/internal/index"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/protocol"
)

// Run runs a benchmark and returns its report. With an error the report is incomplete. A wrong
// configuration is a *protocol.Error, a round that the ledger does not prove an
// *UnprovedError.
func Run(ctx context.Context, cfg Config) (report Report, err error) {
	if err := cfg.Validate(); err != nil {
		return Report{}, err
	}
	cfg = cfg.withDefaults()
	report = Report{System: "handoff", Run: uuid.NewString()[:6], Config: cfg.effective(), Machine: thisMachine()}
	packages := cfg.Packages
	if len(packages) == 0 {
		pkg, err := generatePackage(cfg.Size, sourceOf(report.Run+"-1"), agentOf(report.Run+"-1", 0))
		if err != nil {
			return report, err
		}
		packages = []protocol.Package{pkg}
	}
	cfg, stored, cleanUp, err := loadStored(ctx, cfg, report.Run, packages)
	defer func() { err = errors.Join(err, cleanUp()) }()
	if err != nil {
		return report, err
	}
	var rounds []Round
	for n := 1; n <= cfg.Rounds; n++ {
		r := &round{cfg: cfg, n: n, run: fmt.Sprintf("%s-%d", report.Run, n), packages: packages, stored: stored}
		if cfg.Rounds > 1 {
			cfg.progressf("round %d of %d", n, cfg.Rounds)
		}
		figures, err := r.measure(ctx)
		if err != nil {
			return report, err
		}
		round := Round{Figures: figures}
		if cfg.Baseline {
			if err := round.runBaseline(ctx, cfg); err != nil {
				return report, err
			}
		}
		rounds = append(rounds, round)
	}
	report.summarize(rounds)
	return report, nil
}

// round is one measurement of handoffs.
type round struct {
	cfg      Config
	n        int    // from 1
	run      string // in the names of its agents
	packages []protocol.Package
	stored   storedHandoffs

	deployment *deployment
	agents     []string
	rec        *recorder
	subs       *submitters
	// Three connections, as of three processes: sources, workers, and the control side
	// with supervisor, index and proof.
	sources, workers, control *broker.Broker
	engine                    broker.Engine // of control
	closers                   []func()

	processes    *processGroup // nil: the workers are in this process
	measurements chan *measurement

	ledgerStart uint64 // where the ledger ended before the round
	sizes       messageSizes
}

// messageSizes are the average sizes of the first append and the offer of a handoff.
type messageSizes struct{ appendBytes, offerBytes float64 }

// sourceOf and agentOf name the source and the target agents of a round.
func sourceOf(run string) string       { return "bench-" + run }
func agentOf(run string, n int) string { return fmt.Sprintf("bench-%s-%d", run, n+1) }

func (r *round) measure(ctx context.Context) (_ Figures, err error) {
	runtime.GC() // the garbage of the round before is not charged to this one
	if r.deployment, err = openDeployment(ctx, r.cfg, r.cfg.Dir); err != nil {
		return Figures{}, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.open(ctx); err != nil {
		return Figures{}, err
	}
	figures, err := r.withServices(ctx, r.measureWindow)
	if err != nil {
		return figures, err
	}
	r.cfg.progressf("proving: reading the ledger")
	figures.Proof, err = proveRun(ctx, r.control, r.ledgerStart, r.rec.source, r.rec.submitted.Load(), r.subs.ticketSum.Load())
	return figures, err
}

func (r *round) close() error {
	for _, closeEngine := range r.closers {
		closeEngine()
	}
	return r.deployment.close()
}

// open connects, and registers the agents.
func (r *round) open(ctx context.Context) error {
	r.rec = newRecorder(newClock(), sourceOf(r.run))
	for n := range r.cfg.Agents {
		r.agents = append(r.agents, agentOf(r.run, n))
	}
	for _, part := range []struct {
		b        **broker.Broker
		observer broker.Observer
	}{{&r.sources, nil}, {&r.workers, r.rec}, {&r.control, nil}} {
		engine, done, err := r.deployment.connect(ctx)
		if err != nil {
			return err
		}
		r.closers = append(r.closers, done)
		r.engine = engine // the last is that of control
		if *part.b, err = broker.New(engine, broker.Config{Log: r.cfg.Log, Observer: part.observer}); err != nil {
			return err
		}
	}
	r.subs = newSubmitters(r.cfg, r.sources, r.rec, r.agents, r.packages)
	r.rec.onCompleted = r.subs.handoffClosed
	ledger, err := r.control.LedgerInfo(ctx)
	if err != nil {
		return err
	}
	r.ledgerStart = ledger.Last
	return registerAgents(ctx, r.sources, r.agents)
}

func (r *round) slotsPerAgent() int { return max(1, r.cfg.Slots/r.cfg.Agents) }

// sampledHandoffsMax is how many handoffs are submitted to measure message sizes.
const sampledHandoffsMax = 64

// sampleSizes submits the first handoffs before the workers start, and measures their messages in
// the ledger and in the queue. They are part of the run.
func (r *round) sampleSizes(ctx context.Context) error {
	before, err := r.readCounters(ctx)
	if err != nil {
		return err
	}
	n := min(len(r.packages), sampledHandoffsMax, r.cfg.Open)
	for range n {
		r.subs.open <- struct{}{}
		if err := r.subs.submit(ctx, r.rec.clock.now()); err != nil {
			return err
		}
	}
	after, err := r.readCounters(ctx)
	if err != nil {
		return err
	}
	each := func(stream string) float64 {
		return float64(after.streams[stream].Bytes-before.streams[stream].Bytes) / float64(n)
	}
	r.sizes = messageSizes{appendBytes: each(jetstream.LedgerStream), offerBytes: each(jetstream.WorkStream)}
	return nil
}

func (r *round) readCounters(ctx context.Context) (engineCounters, error) {
	return r.deployment.readCounters(ctx, r.engine, sourceOf(r.run)+"-")
}

// withServices runs supervisor, index, workers and status probes until measure returns.
func (r *round) withServices(ctx context.Context, measure func(context.Context) (Figures, error)) (Figures, error) {
	group, running := errgroup.WithContext(ctx)
	running, stop := context.WithCancel(running)
	defer stop()
	sweeps := newSweepTimes()
	s, err := supervisor.New(r.control, r.engine, supervisor.Config{Log: r.cfg.Log, Swept: sweeps.add})
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
			err := ix.Run(running, r.control)
			if running.Err() != nil {
				err = nil
			}
			return errors.Join(err, ix.Close())
		})
	}
	sweeps.awaitQuiet(running)
	err = r.sampleSizes(running)
	if err == nil {
		err = r.startWorkers(running, group)
	}
	if err != nil {
		stop()
		return Figures{}, errors.Join(err, group.Wait())
	}
	group.Go(func() error { return probeStatus(running, r.cfg, r.sources, r.rec, r.subs.recent, r.stored.ticket) })
	figures, err := measure(running)
	stop()
	if ended := group.Wait(); ended != nil && ctx.Err() == nil {
		err = ended // the failure of a service, which has cut the window short
	}
	return figures, err
}

// startWorkers starts the workers.
func (r *round) startWorkers(ctx context.Context, group *errgroup.Group) (err error) {
	if r.cfg.Processes == 0 {
		group.Go(func() error { return runWorkers(ctx, r.workers, r.cfg.Deferred, r.agents, r.slotsPerAgent()) })
		return nil
	}
	r.measurements = make(chan *measurement, r.cfg.Processes)
	r.processes, err = startProcesses(ctx, r.cfg, r.deployment.url(), r.rec, r.agents)
	group.Go(func() error { return r.processes.run(ctx, r.measurements) })
	return err
}

// measureWindow warms up, measures, and waits until everything has closed.
func (r *round) measureWindow(ctx context.Context) (Figures, error) {
	if r.cfg.N > 0 && r.cfg.Warmup == 0 {
		r.subs.remaining.Store(int64(r.cfg.N))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := make(chan struct{})
	var stopOnce sync.Once
	stopSubmitting := func() { stopOnce.Do(func() { close(stop) }) }
	submitting := make(chan error, 1)
	start := func() {
		go func() {
			err := r.subs.run(ctx, stop)
			if err != nil {
				cancel() // this window has failed
			}
			submitting <- err
		}()
	}
	progressDone := r.reportProgress(ctx)
	defer func() { cancel(); <-progressDone }()
	var w *window
	var err error
	if r.cfg.Warmup > 0 {
		start()
		r.cfg.progressf("warming up for %v", r.cfg.Warmup)
		wait(ctx, r.cfg.Warmup)
		w, err = r.beginWindow(ctx)
	} else if w, err = r.beginWindow(ctx); err == nil {
		start()
	}
	if err != nil {
		stopSubmitting()
		return Figures{}, err
	}
	r.awaitWindowEnd(ctx, w)
	figures, err := w.end(ctx)
	stopSubmitting()
	err = errors.Join(<-submitting, err)
	if err != nil {
		return figures, err
	}
	return figures, r.drain(ctx)
}

// wait waits for d; it is false if ctx ended first.
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

// awaitWindowEnd waits until the window is over.
func (r *round) awaitWindowEnd(ctx context.Context, w *window) {
	if r.cfg.N == 0 {
		wait(ctx, r.cfg.Duration)
		return
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(DurationMax)
	defer limit.Stop()
	inWindow := r.rec.inWindow.Load
	if r.processes != nil { // worker processes report inWindow only after the measurement
		inWindow = func() int64 { return r.rec.completed.Load() - w.completed }
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

// progressInterval is the time between two lines of progress.
const progressInterval = 5 * time.Second

// reportProgress writes lines of progress until ctx ends.
func (r *round) reportProgress(ctx context.Context) (ended <-chan struct{}) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		last := int64(0)
		for wait(ctx, progressInterval) {
			completed := r.rec.completed.Load()
			r.cfg.progressf("%d handoffs complete, %.0f/s, %d open", completed,
				float64(completed-last)/progressInterval.Seconds(), r.rec.submitted.Load()-completed)
			last = completed
		}
	}()
	return done
}
