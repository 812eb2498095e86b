package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/index"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
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
	pkg, err := generatePackage(cfg.Size, sourceOf(report.Run+"-1"), agentOf(report.Run+"-1", 0))
	if err != nil {
		return report, err
	}
	cfg, stored, cleanUp, err := loadStored(ctx, cfg, report.Run, pkg)
	defer func() { err = errors.Join(err, cleanUp()) }()
	if err != nil {
		return report, err
	}
	rounds := make([][]Round, len(cfg.Via)) // of each way
	for n := range cfg.Rounds * len(cfg.Via) {
		i := n % len(cfg.Via)
		r := &round{cfg: cfg, n: n + 1, via: cfg.Via[i], run: fmt.Sprintf("%s-%d", report.Run, n+1), pkg: pkg, stored: stored}
		if cfg.Rounds > 1 || len(cfg.Via) > 1 {
			cfg.progressf("round %d of %d: %s", n/len(cfg.Via)+1, cfg.Rounds, r.via)
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
		rounds[i] = append(rounds[i], round)
	}
	report.summarize(rounds)
	return report, nil
}

// round is one measurement of handoffs.
type round struct {
	cfg    Config
	n      int    // from 1
	via    string // one of Ways
	run    string // in the names of its agents
	pkg    protocol.Package
	stored storedHandoffs

	deployment *deployment
	agents     []string
	rec        *recorder
	subs       *submitters
	// Three connections, as of three processes: sources, workers, and the control side
	// with supervisor, index and proof.
	sources, workers, control *broker.Broker
	engine                    broker.Engine // of control
	session                   func(agent string) (worker.Session, error)
	closers                   []func()

	ledgerStart broker.Cursor // where the ledger ended before the round
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
	for _, closeIt := range slices.Backward(r.closers) {
		closeIt()
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
	if err := r.openWay(ctx); err != nil {
		return err
	}
	r.subs = newSubmitters(r.cfg, r.sources, r.rec, r.agents, r.pkg)
	r.rec.onCompleted = r.subs.handoffClosed
	if r.via != ViaInside {
		session, err := r.session(r.rec.source)
		if err != nil {
			return err
		}
		r.subs.session = session
	}
	ledger, err := r.control.LedgerInfo(ctx)
	if err != nil {
		return err
	}
	r.ledgerStart = ledger.End()
	return registerAgents(ctx, r.sources, r.agents)
}

func (r *round) slotsPerAgent() int { return max(1, r.cfg.Slots/r.cfg.Agents) }

// sampleSizes submits the first handoff before the workers start, and measures its messages in
// the ledger and in the queue. It is part of the run.
func (r *round) sampleSizes(ctx context.Context) error {
	before, err := r.readCounters(ctx)
	if err != nil {
		return err
	}
	r.subs.open <- struct{}{}
	if err := r.subs.submit(ctx, r.rec.clock.now()); err != nil {
		return err
	}
	after, err := r.readCounters(ctx)
	if err != nil {
		return err
	}
	each := func(stream string) float64 { return float64(after.bytes(stream) - before.bytes(stream)) }
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
		ix, err := index.Open(filepath.Join(dir, "index.db"), r.cfg.Log)
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
	if err != nil {
		stop()
		return Figures{}, errors.Join(err, group.Wait())
	}
	group.Go(func() error { return runWorkers(running, r.session, r.cfg.Deferred, r.agents, r.slotsPerAgent()) })
	group.Go(func() error { return probeStatus(running, r.cfg, r.sources, r.rec, r.subs.recent, r.stored.ticket) })
	figures, err := measure(running)
	stop()
	if ended := group.Wait(); ended != nil && ctx.Err() == nil {
		err = ended // the failure of a service, which has cut the window short
	}
	return figures, err
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
	r.awaitWindowEnd(ctx)
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
func (r *round) awaitWindowEnd(ctx context.Context) {
	if r.cfg.N == 0 {
		wait(ctx, r.cfg.Duration)
		return
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(durationMax)
	defer limit.Stop()
	for r.rec.inWindow.Load() < int64(r.cfg.N) {
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

// The result of every handoff.
var doneResult = protocol.Result{Body: []byte(`"done"`)}

func completeHandoff(context.Context, worker.Handoff) (protocol.Result, error) {
	return doneResult, nil
}

// deferringHandler defers a share of the handoffs once.
type deferringHandler struct{ threshold uint64 }

// Handle decides by the ticket, which is random, so that it needs no list of deferred handoffs.
func (d deferringHandler) Handle(_ context.Context, h worker.Handoff) (protocol.Result, error) {
	if h.State().ConditionRounds == 0 && ticketPrefix(h.Ticket) < d.threshold {
		return protocol.Result{}, worker.Defer("not now", DeferFor)
	}
	return doneResult, nil
}

// ticketPrefix is the first 32 bits of a ticket.
func ticketPrefix(ticket string) uint64 {
	n, err := strconv.ParseUint(ticket[:8], 16, 32)
	if err != nil {
		return math.MaxUint64
	}
	return n
}

func newHandler(share float64) worker.Handler {
	if share == 0 {
		return worker.HandlerFunc(completeHandoff)
	}
	return deferringHandler{uint64(share * (1 << 32))}
}

// registerAgents makes the agents and their queues.
func registerAgents(ctx context.Context, b *broker.Broker, agents []string) error {
	for _, agent := range agents {
		if err := b.EnsureQueue(ctx, agent); err != nil {
			return err
		}
		profile := protocol.Profile{ID: agent, Description: "an agent of handoff bench",
			UpdatedAt: time.Now().UTC().Truncate(time.Microsecond), RegisteredByWork: true}
		if err := b.PutProfile(ctx, profile); err != nil {
			return err
		}
	}
	return nil
}

// runWorkers serves the agents until ctx ends, each with its own worker.
func runWorkers(ctx context.Context, sessionOf func(agent string) (worker.Session, error), deferred float64, agents []string, slots int) error {
	var all []*worker.Worker
	for _, agent := range agents {
		session, err := sessionOf(agent)
		if err != nil {
			return err
		}
		w, err := worker.New(session, worker.Config{Agent: agent, Concurrency: slots}, newHandler(deferred))
		if err != nil {
			return err
		}
		all = append(all, w)
	}
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, w := range all {
		wg.Go(func() { errs[i] = w.Run(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// submitters submit packages, as many at a time as Submitters, until they are stopped
// or none remain.
type submitters struct {
	cfg     Config
	b       *broker.Broker
	session api.Source // submits, instead of b; nil inside
	rec     *recorder
	agents  []string
	pkg     protocol.Package
	recent  *recentTickets

	next atomic.Int64 // number of the next package
	// open has a token for each open handoff: a submitter waits while it is full.
	open chan struct{}
	// remaining is how many may still be submitted.
	remaining atomic.Int64
	// ticketSum is the sum of the hashes of all tickets, which does not depend on their order.
	ticketSum atomic.Uint64

	failed atomic.Pointer[error]
}

func newSubmitters(cfg Config, b *broker.Broker, rec *recorder, agents []string, pkg protocol.Package) *submitters {
	s := &submitters{cfg: cfg, b: b, rec: rec, agents: agents, pkg: pkg, recent: newRecentTickets(), open: make(chan struct{}, cfg.Open)}
	s.remaining.Store(unlimited)
	return s
}

const unlimited = int64(1) << 62

// handoffClosed frees the token of a handoff that has completed.
func (s *submitters) handoffClosed() {
	select {
	case <-s.open:
	default: // its submission has not returned yet, or is not counted here
	}
}

// run submits until stop is closed, ctx ends, or none remain.
func (s *submitters) run(ctx context.Context, stop <-chan struct{}) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var intended chan int64 // nil: a closed loop
	var wg sync.WaitGroup
	if s.cfg.Rate > 0 {
		intended = make(chan int64)
		wg.Go(func() { s.schedule(ctx, stop, intended) })
	}
	for range s.cfg.Submitters {
		wg.Go(func() {
			if err := s.submitLoop(ctx, stop, intended); err != nil {
				s.failed.CompareAndSwap(nil, &err)
				cancel()
			}
		})
	}
	wg.Wait()
	if err := s.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// schedule sends the instants at which to submit. An instant at which no submitter is free is
// submitted late, and still counts from its own time.
func (s *submitters) schedule(ctx context.Context, stop <-chan struct{}, intended chan<- int64) {
	defer close(intended)
	startedAt := s.rec.clock.now()
	timer := newPreciseTimer()
	defer timer.close()
	for i := int64(0); ; i++ {
		at := startedAt + int64(float64(i)/s.cfg.Rate*float64(time.Second))
		timer.sleep(time.Duration(at - s.rec.clock.now()))
		s.rec.recordSince(Lateness, at)
		if !send(ctx, stop, intended, at) {
			return
		}
	}
}

// send sends v. goOn is false once stop is closed or ctx has ended.
func send[T any](ctx context.Context, stop <-chan struct{}, to chan<- T, v T) (goOn bool) {
	select {
	case to <- v:
	case <-stop:
		return false
	case <-ctx.Done():
		return false
	}
	select { // the other select chooses at random
	case <-stop:
		return false
	default:
		return true
	}
}

func (s *submitters) submitLoop(ctx context.Context, stop <-chan struct{}, intended <-chan int64) error {
	for {
		at := int64(0)
		if intended != nil {
			var ok bool
			if at, ok = <-intended; !ok {
				return nil
			}
		}
		if !send(ctx, stop, s.open, struct{}{}) {
			return nil
		}
		if s.remaining.Add(-1) < 0 {
			return nil
		}
		if at == 0 {
			at = s.rec.clock.now()
		}
		if err := s.submit(ctx, at); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
}

// submit hands off one package, intended for an instant.
func (s *submitters) submit(ctx context.Context, at int64) error {
	n := int(s.next.Add(1) - 1)
	ticket, err := s.submitOne(ctx, s.packageFor(n, at))
	if err != nil {
		// The ledger may have it or not, so the proof could fail.
		return fmt.Errorf("submit: %w", err)
	}
	s.rec.recordSince(Submit, at)
	s.rec.submitted.Add(1)
	s.ticketSum.Add(hashTicket(ticket))
	s.recent.put(ticket)
	return nil
}

func (s *submitters) submitOne(ctx context.Context, pkg protocol.Package) (ticket string, err error) {
	if s.session != nil {
		state, err := s.session.Submit(ctx, pkg)
		return state.Ticket, err
	}
	prepared, err := s.b.Prepare(ctx, pkg)
	if err == nil {
		_, err = s.b.Submit(ctx, prepared)
	}
	return prepared.Ticket, err
}

// packageFor returns the n-th package, intended for an instant.
func (s *submitters) packageFor(n int, at int64) protocol.Package {
	pkg := s.pkg
	pkg.Source, pkg.Target.Agent = s.rec.source, s.agents[n%len(s.agents)]
	pkg.Task.ID = instantID(at)
	pkg.CreatedAt = time.Unix(0, at).UTC().Truncate(time.Microsecond)
	return pkg
}

// hashTicket is FNV-1a, 64 bits.
func hashTicket(ticket string) uint64 {
	sum := uint64(14695981039346656037)
	for i := range len(ticket) {
		sum = (sum ^ uint64(ticket[i])) * 1099511628211
	}
	return sum
}

// window is a running measurement.
type window struct {
	r         *round
	profile   *os.File
	at        time.Time
	usage     usage
	memory    runtime.MemStats
	counters  engineCounters
	submitted int64
}

func (r *round) beginWindow(ctx context.Context) (w *window, err error) {
	w = &window{r: r}
	if r.cfg.Profile != "" && r.n == 1 {
		if w.profile, err = os.Create(r.cfg.Profile); err != nil {
			return nil, err
		}
		if err := pprof.StartCPUProfile(w.profile); err != nil {
			return nil, err
		}
	}
	if w.counters, err = r.readCounters(ctx); err != nil {
		return nil, err
	}
	if r.cfg.N > 0 {
		r.cfg.progressf("measuring %d handoffs", r.cfg.N)
	} else {
		r.cfg.progressf("measuring for %v", r.cfg.Duration)
	}
	runtime.ReadMemStats(&w.memory)
	w.usage = readUsage()
	w.submitted = r.rec.submitted.Load()
	w.at = time.Now()
	r.rec.measuring.Store(true)
	if r.cfg.N > 0 && r.cfg.Warmup > 0 {
		r.subs.remaining.Store(int64(r.cfg.N))
	}
	return w, nil
}

func (w *window) end(ctx context.Context) (Figures, error) {
	r := w.r
	r.rec.measuring.Store(false)
	took := time.Since(w.at)
	n := r.rec.inWindow.Load()
	submitted := r.rec.submitted.Load() - w.submitted
	used := readUsage()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	counters, err := r.readCounters(ctx)
	err = errors.Join(err, w.endProfile())
	if err != nil {
		return Figures{}, err
	}
	if n == 0 {
		return Figures{}, errors.New("no handoff completed in the window")
	}
	each := func(delta float64) float64 { return delta / float64(n) }
	return Figures{
		Handoffs: n, Seconds: took.Seconds(), PerSecond: perSecond(n, took), SubmittedPerSecond: perSecond(submitted, took), Deferred: r.rec.deferred.Load(), Latency: r.rec.latencies(),
		CPUPerHandoff:    each(float64((used.cpu - w.usage.cpu).Nanoseconds()) / 1000),
		AllocsPerHandoff: each(float64(memory.Mallocs - w.memory.Mallocs)), AllocBytes: each(float64(memory.TotalAlloc - w.memory.TotalAlloc)),
		Engine: r.engineFigures(w.counters, counters, each),
		Memory: Memory{PeakBytes: used.peakBytes, HeapBytes: memory.HeapAlloc},
	}, nil
}

// endProfile writes the CPU profile, if there is one.
func (w *window) endProfile() error {
	if w.profile == nil {
		return nil
	}
	pprof.StopCPUProfile()
	return w.profile.Close()
}

// engineFigures computes the work of the engine for each handoff between two readings.
func (r *round) engineFigures(before, after engineCounters, each func(float64) float64) EngineFigures {
	stored := func(stream string) float64 {
		return each(float64(after.stored(stream) - before.stored(stream)))
	}
	s := EngineFigures{
		Appends: stored(jetstream.LedgerStream), Offers: stored(jetstream.WorkStream), Timers: stored(jetstream.TimerStream),
		LedgerBytes: each(float64(after.bytes(jetstream.LedgerStream) - before.bytes(jetstream.LedgerStream))),
		FirstBytes:  r.sizes.appendBytes, OfferBytes: r.sizes.offerBytes,
		OffersDelivered:  each(float64(after.deliveries.Offers - before.deliveries.Offers)),
		EntriesDelivered: each(float64(after.deliveries.Entries - before.deliveries.Entries)),
		WakeUpsDelivered: each(float64(after.deliveries.WakeUps - before.deliveries.WakeUps)),
		InMessages:       each(float64(after.node.InMessages - before.node.InMessages)),
		OutMessages:      each(float64(after.node.OutMessages - before.node.OutMessages)),
		InBytes:          each(float64(after.node.InBytes - before.node.InBytes)),
		OutBytes:         each(float64(after.node.OutBytes - before.node.OutBytes)),
	}
	for name := range after.streams {
		s.Messages += each(float64(after.streams[name].LastSeq - before.streams[name].LastSeq))
	}
	s.Other = s.Messages - s.Appends - s.Offers - s.Timers
	return s
}
