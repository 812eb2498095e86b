// Package bench measures whole handoffs, from submit to complete, on an engine in this
// process or an existing one. For comparison it runs the bare engine, which stores the same
// messages without the protocol (package internal/bench/bare).
//
// A run has all parts of production: a supervisor that gets what writers announce, arms
// timers and renews the offers that they wake; workers with leases and beats; packages that are checked,
// redacted and digested. After a run the ledger must prove that each handoff closed exactly
// once, with success. Otherwise the run is an error.
//
// # What is measured
//
// A run warms up, measures for Duration or until N handoffs have completed, and then waits
// until the open handoffs have closed. Handoffs that complete within the window count as
// throughput. The latency of each counts from its intended instant:
//
//   - submit: until Broker.Submit has returned: the first append is in the ledger
//     and the offer in the queue;
//   - submit to claim: until the accepting append is acknowledged, which is when
//     the handler is called;
//   - submit to complete: until the completing append is acknowledged;
//   - status: one read of a recent handoff by its ticket, ProbesPerSecond.
//
// In a closed loop (Rate 0) the intended instant is the one at which a submitter begins. In an
// open loop it is an instant of a schedule that never waits. When the engine stalls, the
// handoffs that were due meanwhile count from their scheduled instant (coordinated omission).
//
// The clock is read once per append. Histograms are exact to three digits.
package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// Defaults and limits of Config.
const (
	DurationDefault = 10 * time.Second
	durationMax     = time.Hour
	handoffsMax     = 100_000_000
	WarmupDefault   = 2 * time.Second
	warmupMax       = 10 * time.Minute
	drainDefault    = time.Minute

	SubmittersDefault = 32
	submittersMax     = 4_096
	SlotsDefault      = 64
	SlotsMax          = 65_536
	AgentsMax         = 10_000
	processesMax      = 256

	SizeDefault = 1_024
	sizeMax     = protocol.PackageBytesMax

	rateMax      = 1_000_000
	ProbeDefault = 200
	probeMax     = 100_000
	storedMax    = 100_000_000
	roundsMax    = 100

	// openDefault is how many handoffs are open at most in a closed loop. It is more than
	// slots and submitters hold together, and few enough that the time in a queue does not
	// dominate the latency.
	openDefault = 1_024
	// openRateDefault is the same at a fixed rate, where a growing queue must be visible.
	openRateDefault = 100_000
	openMax         = 10_000_000

	// DeferredDefault is the share of handoffs that are deferred.
	DeferredDefault = 0.01
	// DeferFor is the delay that a deferral asks for.
	DeferFor = time.Second
)

// Config configures a run. The zero value is the default.
type Config struct {
	// Connect reaches an existing engine that has its streams; it is called once for each
	// of the three connections. Nil is a node of our own, in this process.
	Connect func(ctx context.Context) (broker.Engine, func(), error)

	// Dir keeps the data of a node of our own after the run; "" is a temporary directory
	// that is removed. Later rounds continue in the ledger of the first.
	Dir string `flag:"data" doc:"{DIR} to keep the node's data in (default: a temporary one)"`
	// Fsync is embedded.FsyncAlways if empty. The work and timer streams persist
	// asynchronously then, as in handoff dev.
	Fsync embedded.Fsync `flag:"fsync" doc:"always, or interval (1 s)"`
	// Replicas is 1 or 3; three are nodes in this process. 0 is 1. An existing engine
	// keeps its own.
	Replicas int `flag:"replicas" doc:"1, or 3 nodes in this process; with --nats, make the streams there with so many"`

	// Partitions is that of jetstream.Topology. Stored and Baseline are for one.
	Partitions int `flag:"partitions" doc:"divide the ledger into {N} partitions (default 1); with --nats, the one there"`

	// Packages are submitted in turn, each with its source, target, key, task id and
	// instant replaced (ReadPackages); none are packages of Size bytes.
	Packages []protocol.Package
	// Size is how many bytes such a package has as stored. Default 1,024.
	Size int `flag:"size" doc:"{BYTES} of a package as stored"`

	// Submitters is how many submissions are under way at a time. Default 32.
	Submitters int `flag:"submitters" doc:"{N} that submit at a time"`
	// Slots is how many handoffs all workers together process at a time. Default 64;
	// never less than one for each agent.
	Slots int `flag:"slots" doc:"{N} handoffs worked on at a time, in all"`
	// Agents is how many agents share the handoffs, each with one worker.
	// Default 1.
	Agents int `flag:"agents" doc:"{N} agents, each with one worker"`
	// Processes is the number of worker processes; 0 runs the workers in this one. They
	// share agents and slots. Spawn makes the command of one, which calls ServeProcess with
	// a connection to the engine at url ("" is the one of Connect) and its standard input
	// and output.
	Processes int `flag:"workers-as-processes" doc:"run the workers as {N} processes that share agents and slots"`
	Spawn     func(ctx context.Context, url string) *exec.Cmd
	// Rate is how many handoffs are submitted each second, however many complete. 0 is a
	// closed loop: a submitter begins the next submission when the last has returned.
	Rate float64 `flag:"rate" doc:"submit {N} a second, whatever becomes of them (default: as many as it takes)"`
	// Open is how many handoffs may be open; submitters wait at that limit. 0 is 1,024 in
	// a closed loop, and 100,000 at a fixed rate, where it only protects the machine.
	Open int `flag:"open" doc:"{N} handoffs open at most (default 1024, with --rate 100000)"`

	// N ends the measurement when so many handoffs have completed in it; 0
	// measures for Duration.
	N int `flag:"n" doc:"measure {N} handoffs instead, however long they take"`
	// Duration of the measurement. Default 10 s.
	Duration time.Duration `flag:"duration" doc:"how long to measure"`
	// Warmup counts in no figure. Default 2 s; negative is none.
	Warmup time.Duration `flag:"warmup" doc:"how long to go on before"`
	// Drain is how long open handoffs may take to close after the last submission. The run
	// fails if they take longer. Default 1 min.
	Drain time.Duration

	// Deferred is the share of handoffs that a worker first defers for a second (DeferFor),
	// so that timers are armed and fire, and the supervisor renews the offers. They count as
	// throughput; their latencies are reported apart. Default 0.01; negative is none.
	Deferred float64 `flag:"deferred" doc:"{SHARE} of the handoffs that is answered \"not now\" first"`
	// Probes is how many times a second a status is read. Default 200; negative
	// is never.
	Probes int `flag:"probes" doc:"statuses to read each second"`
	// Index keeps an index up to date during the run, as handoff dev does.
	Index bool `flag:"index" doc:"keep an index, too, as handoff dev does"`
	// Stored is how many closed handoffs are put into the ledger first.
	Stored int `flag:"stored" doc:"put {N} closed handoffs into the ledger first"`

	// Via are the ways by which sources and workers reach the engine (Ways). With several each round
	// measures them in turn, and the figures of the report are those of the first. Default ViaInside.
	Via []string
	// Baseline runs the bare engine after each round, for the same time.
	Baseline bool `flag:"baseline" doc:"run the bare engine, too, and show the ratio"`
	// Rounds is the number of rounds, alternating with the baseline. Default 1.
	Rounds int `flag:"rounds" doc:"do it all {N} times, and take medians"`

	// Profile and MemProfile are files for a CPU profile of the measurement of
	// the first round, and a heap profile at its end; "" is none.
	Profile    string `flag:"profile" doc:"write a CPU profile of the measurement to {FILE}"`
	MemProfile string `flag:"memprofile" doc:"write a profile of the allocations to {FILE}"`

	// Progress receives lines on the progress of the run; nil discards them.
	Progress func(line string)
	// Log receives the logs of supervisor, workers and engine; nil discards them.
	Log *slog.Logger
}

// Validate returns the first fault of a Config as a *protocol.Error that names the
// field. Run calls it.
func (c Config) Validate() error {
	checkRange := func(field string, value, low, high int) error {
		if value < low || value > high {
			return protocol.Errorf(protocol.CodeInvalid, field, "is %d, must be %d to %d", value, low, high)
		}
		return nil
	}
	for _, check := range []struct {
		field            string
		value, low, high int
	}{
		{"submitters", c.Submitters, 0, submittersMax}, {"slots", c.Slots, 0, SlotsMax}, {"agents", c.Agents, 0, AgentsMax},
		{"n", c.N, 0, handoffsMax}, {"stored", c.Stored, 0, storedMax}, {"rounds", c.Rounds, 0, roundsMax},
		{"workers_as_processes", c.Processes, 0, processesMax},
		{"probes", c.Probes, -1, probeMax}, {"open", c.Open, 0, openMax},
	} {
		if err := checkRange(check.field, check.value, check.low, check.high); err != nil {
			return err
		}
	}
	if c.Size != 0 {
		if err := checkRange("size", c.Size, sizeMin, sizeMax); err != nil {
			return err
		}
	}
	for i, via := range c.Via {
		if !slices.Contains(Ways, via) {
			return protocol.Errorf(protocol.CodeInvalid, fmt.Sprintf("via[%d]", i), "is %q, must be one of %s", protocol.CutText(via, 64), strings.Join(Ways, ", "))
		}
	}
	switch {
	case c.Duration < 0 || c.Duration > durationMax:
		return protocol.Errorf(protocol.CodeInvalid, "duration", "is %v, must be at most %v", c.Duration, durationMax)
	case c.Warmup > warmupMax:
		return protocol.Errorf(protocol.CodeInvalid, "warmup", "is %v, must be at most %v", c.Warmup, warmupMax)
	case c.Drain < 0 || c.Drain > durationMax:
		return protocol.Errorf(protocol.CodeInvalid, "drain", "is %v, must be at most %v", c.Drain, durationMax)
	case c.Rate < 0 || c.Rate > rateMax:
		return protocol.Errorf(protocol.CodeInvalid, "rate", "is %v, must be 0 to %d handoffs a second", c.Rate, rateMax)
	case c.Deferred > 1:
		return protocol.Errorf(protocol.CodeInvalid, "deferred", "is %v, must be a share of at most 1", c.Deferred)
	case c.Partitions > 1 && (c.Stored > 0 || c.Baseline):
		return protocol.Errorf(protocol.CodeInvalid, "partitions", "are %d, and stored handoffs and the bare engine need one", c.Partitions)
	case c.Replicas != 0 && c.Replicas != 1 && c.Replicas != 3:
		return protocol.Errorf(protocol.CodeInvalid, "replicas", "is %d, must be 1 or 3", c.Replicas)
	case c.Fsync != "" && c.Fsync != embedded.FsyncAlways && c.Fsync != embedded.FsyncInterval:
		return protocol.Errorf(protocol.CodeInvalid, "fsync", "is %s, must be %s or %s", c.Fsync, embedded.FsyncAlways, embedded.FsyncInterval)
	case c.Connect != nil && c.Dir != "":
		return protocol.Errorf(protocol.CodeConflict, "data", "is of a node of our own, and the engine is another's")
	case c.Processes > 0 && c.Spawn == nil:
		return protocol.Errorf(protocol.CodeMissing, "spawn", "is needed to start worker processes")
	case c.Rate > 0 && c.Baseline:
		return protocol.Errorf(protocol.CodeConflict, "baseline", "compares throughput, and a rate sets it")
	case c.Baseline && slices.ContainsFunc(c.Via, isGateway):
		return protocol.Errorf(protocol.CodeConflict, "via", "has a gateway, and the baseline compares the engine alone")
	case c.Processes > 0 && slices.ContainsFunc(c.Via, isGateway):
		return protocol.Errorf(protocol.CodeConflict, "via", "has a gateway, and worker processes have connections of their own to the engine")
	case c.Connect != nil && c.Baseline:
		return protocol.Errorf(protocol.CodeConflict, "baseline", "needs a node of our own: the bare engine would leave its messages in the streams of another's")
	}
	return nil
}

func isGateway(via string) bool { return via != ViaInside }

func (c Config) withDefaults() Config {
	if len(c.Via) == 0 {
		c.Via = []string{ViaInside}
	}
	c.Submitters = cmp.Or(c.Submitters, SubmittersDefault)
	c.Slots = cmp.Or(c.Slots, SlotsDefault)
	c.Agents = cmp.Or(c.Agents, 1)
	c.Slots = max(c.Slots, c.Agents)
	c.Size = cmp.Or(c.Size, SizeDefault)
	c.Replicas = cmp.Or(c.Replicas, 1)
	c.Rounds = cmp.Or(c.Rounds, 1)
	c.Probes = cmp.Or(c.Probes, ProbeDefault)
	if c.Rate > 0 {
		c.Open = cmp.Or(c.Open, openRateDefault)
	}
	c.Open = cmp.Or(c.Open, openDefault)
	c.Duration = cmp.Or(c.Duration, DurationDefault)
	c.Warmup = cmp.Or(c.Warmup, WarmupDefault)
	c.Drain = cmp.Or(c.Drain, drainDefault)
	c.Deferred = cmp.Or(c.Deferred, DeferredDefault)
	c.Probes, c.Warmup, c.Deferred = max(c.Probes, 0), max(c.Warmup, 0), max(c.Deferred, 0)
	c.Fsync = cmp.Or(c.Fsync, embedded.FsyncAlways)
	if c.Progress == nil {
		c.Progress = func(string) {}
	}
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	return c
}

func (c Config) progressf(format string, args ...any) { c.Progress(fmt.Sprintf(format, args...)) }

// deployment is the engine of a round: nodes of our own, or an existing engine.
type deployment struct {
	cfg       Config
	dir       string
	removeDir bool // dir, with the home
	loading   bool // fsync at an interval, whatever the configuration: it is being filled
	node      *embedded.Node
	cluster   *embedded.Cluster
	nextNode  int // of the cluster's nodes, to connect to
}

// openDeployment starts nodes of our own, if the configuration has no engine. dir "" is a
// temporary directory, which close removes.
func openDeployment(ctx context.Context, cfg Config, dir string) (_ *deployment, err error) {
	d := &deployment{cfg: cfg, dir: dir}
	if cfg.Connect != nil {
		return d, nil
	}
	if dir == "" {
		if d.dir, err = os.MkdirTemp("", "handoff-bench-"); err != nil {
			return nil, err
		}
		d.removeDir = true
	}
	if err := d.start(ctx); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

func (d *deployment) start(ctx context.Context) (err error) {
	// As in handoff dev: where every write of the ledger is synced, the streams derived
	// from it need not be.
	topology := jetstream.Topology{Replicas: d.cfg.Replicas, Partitions: d.cfg.Partitions, AsyncWork: d.cfg.Fsync == embedded.FsyncAlways}
	if d.cfg.Replicas > 1 {
		if d.cluster, err = embedded.StartCluster(ctx, d.cfg.Replicas, d.dir, d.fsync()); err != nil {
			return err
		}
		return ensureTopology(ctx, d.cluster.Nodes[0], topology)
	}
	// A node stages its batches in memory if it has its ledger before it serves clients.
	d.node, err = embedded.Start(ctx, embedded.Config{
		Dir: d.dir, Fsync: d.fsync(), DontListen: d.cfg.Processes == 0, Log: d.cfg.Log,
		Prepare: topology.Prepare,
	})
	return err
}

func ensureTopology(ctx context.Context, node *embedded.Node, t jetstream.Topology) error {
	nc, err := node.Conn()
	if err != nil {
		return err
	}
	defer nc.Close()
	return jetstream.EnsureTopology(ctx, nc, t)
}

// nodes returns the nodes of our own; nil for an existing engine.
func (d *deployment) nodes() []*embedded.Node {
	switch {
	case d.node != nil:
		return []*embedded.Node{d.node}
	case d.cluster != nil:
		return d.cluster.Nodes
	}
	return nil
}

// url is where worker processes find nodes of our own; "" for an existing engine.
func (d *deployment) url() string {
	switch {
	case d.node != nil:
		return d.node.ClientURL()
	case d.cluster != nil:
		return d.cluster.URL()
	}
	return ""
}

// connect makes a connection of its own and an engine over it.
func (d *deployment) connect(ctx context.Context) (broker.Engine, func(), error) {
	if d.cfg.Connect != nil {
		return d.cfg.Connect(ctx)
	}
	nodes := d.nodes()
	node := nodes[d.nextNode%len(nodes)]
	d.nextNode++
	nc, err := node.Conn()
	if err != nil {
		return nil, nil, err
	}
	engine, err := jetstream.Open(ctx, nc, jetstream.Config{Log: d.cfg.Log})
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	return engine, func() { _ = engine.Close(); nc.Close() }, nil
}

func (d *deployment) close() error {
	var err error
	switch {
	case d.node != nil:
		err = d.node.Stop()
	case d.cluster != nil:
		err = d.cluster.Stop()
	}
	if d.removeDir {
		err = errors.Join(err, os.RemoveAll(d.dir))
	}
	return err
}

// engineCounters counts the messages and bytes that an engine has stored and moved so far.
type engineCounters struct {
	streams    map[string]jetstream.StreamStatus
	deliveries jetstream.Deliveries
	node       embedded.Stats // of all nodes of our own together
}

// bytes and stored return the size and the last sequences of the streams of one kind, of all partitions
// together.
func (c engineCounters) bytes(base string) (n uint64) {
	for name, s := range c.streams {
		if jetstream.BaseOf(name) == base {
			n += s.Bytes
		}
	}
	return n
}

func (c engineCounters) stored(base string) (n uint64) {
	for name, s := range c.streams {
		if jetstream.BaseOf(name) == base {
			n += s.LastSeq
		}
	}
	return n
}

// readCounters reads the engine's counters, before or after a measurement, never during one.
func (d *deployment) readCounters(ctx context.Context, engine broker.Engine, agents string) (engineCounters, error) {
	ctx, cancel := context.WithTimeout(ctx, countersTimeout)
	defer cancel()
	s := engineCounters{streams: map[string]jetstream.StreamStatus{}}
	js, ok := engine.(*jetstream.Engine)
	if !ok {
		return s, fmt.Errorf("bench: an engine of kind %T has no counters", engine)
	}
	streams, err := js.Streams(ctx)
	if err != nil {
		return s, err
	}
	for _, status := range streams {
		s.streams[status.Name] = status
	}
	if s.deliveries, err = js.Deliveries(ctx, agents); err != nil {
		return s, err
	}
	for _, node := range d.nodes() {
		f, err := node.Stats()
		if err != nil {
			return s, err
		}
		s.node.InMessages += f.InMessages
		s.node.OutMessages += f.OutMessages
		s.node.InBytes += f.InBytes
		s.node.OutBytes += f.OutBytes
	}
	return s, nil
}

const countersTimeout = 30 * time.Second

// recentTicketsMax is how many tickets are remembered for status reads.
const recentTicketsMax = 1 << 14

// recentTickets remembers the last tickets.
type recentTickets struct {
	next    atomic.Uint64
	tickets [recentTicketsMax]atomic.Pointer[string]
}

func newRecentTickets() *recentTickets { return new(recentTickets) }

func (r *recentTickets) put(ticket string) {
	r.tickets[(r.next.Add(1)-1)%recentTicketsMax].Store(&ticket)
}

// random returns one of them; "" while there is none.
func (r *recentTickets) random(rng *rand.Rand) string {
	n := min(r.next.Load(), recentTicketsMax)
	if n == 0 {
		return ""
	}
	if ticket := r.tickets[rng.Uint64N(n)].Load(); ticket != nil {
		return *ticket
	}
	return ""
}

// probeReaders is how many status reads may be under way at a time.
const probeReaders = 4

// probeStatus reads statuses at a fixed rate until ctx ends, each counted from its intended
// instant: of recent tickets and, if the ledger has stored handoffs, of half as many of those.
func probeStatus(ctx context.Context, cfg Config, b *broker.Broker, rec *recorder, tickets *recentTickets, stored func(int) string) error {
	if cfg.Probes == 0 {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	intended := make(chan int64)
	var wg sync.WaitGroup
	for i := range probeReaders {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 1))
			for at := range intended {
				name, ticket := Status, tickets.random(rng)
				if cfg.Stored > 0 && rng.IntN(2) == 0 {
					name, ticket = StatusStored, stored(rng.IntN(cfg.Stored))
				}
				if ticket == "" {
					continue
				}
				if _, err := b.Status(ctx, ticket); err != nil && ctx.Err() == nil {
					cancel(fmt.Errorf("status: %w", err))
				}
				rec.recordSince(name, at)
			}
		})
	}
	step := int64(time.Second) / int64(cfg.Probes)
	timer := newPreciseTimer()
	for at := rec.clock.now(); ctx.Err() == nil; at += step {
		timer.sleep(time.Duration(at - rec.clock.now()))
		select {
		case intended <- at:
		case <-ctx.Done():
		}
	}
	timer.close()
	close(intended)
	wg.Wait()
	if cause := context.Cause(ctx); cause != context.Canceled {
		return cause
	}
	return nil
}

// Workers may be processes of their own, as they are in production. They talk with the measuring
// process in lines of JSON: an assignment, then controls, on standard input; reports on
// standard output. A worker process ends with its standard input.

// assignment is the part of the load that a worker process takes.
type assignment struct {
	Source   string   `json:"source"`
	Agents   []string `json:"agents"`
	Slots    int      `json:"slots"` // for each agent
	Deferred float64  `json:"deferred"`
}

// control begins and ends the measurement. A worker process answers each with a measurement: the
// first is empty: every completion after the reported ones is counted.
type control struct {
	Measure bool `json:"measure"`
}

// workerReport is one report of a worker process: how many handoffs have completed so far, and
// the answer to a control.
type workerReport struct {
	Completed int64        `json:"completed"`
	Measured  *measurement `json:"measured,omitempty"`
	Error     string       `json:"error,omitempty"`
}

type measurement struct {
	InWindow   int64             `json:"in_window"`
	Deferred   int64             `json:"deferred"`
	CPU        time.Duration     `json:"cpu"`
	PeakBytes  int64             `json:"peak_bytes"`
	Histograms map[string][]byte `json:"tallies"` // histograms, compressed
}

// reportInterval is the time between two reports of a worker process. Submitters wait for them
// while too many handoffs are open.
const reportInterval = 10 * time.Millisecond

// ServeProcess runs a worker process until in ends. The measuring process writes its assignment
// to in and reads its reports from out.
func ServeProcess(ctx context.Context, engine broker.Engine, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	controls := json.NewDecoder(in)
	var assigned assignment
	if err := controls.Decode(&assigned); err != nil {
		return fmt.Errorf("the assignment of a worker process: %w", err)
	}
	rec := newRecorder(newClock(), assigned.Source)
	b, err := broker.New(engine, broker.Config{Observer: rec})
	if err != nil {
		return err
	}
	reports := &reportWriter{out: json.NewEncoder(out)}
	var wg sync.WaitGroup
	wg.Go(func() {
		for wait(ctx, reportInterval) {
			reports.write(workerReport{Completed: rec.completed.Load()})
		}
	})
	wg.Go(func() {
		defer cancel() // the end of in ends the process
		atStart := usage{}
		for {
			var c control
			if err := controls.Decode(&c); err != nil {
				return
			}
			rec.measuring.Store(c.Measure)
			if c.Measure {
				atStart = readUsage()
				reports.write(workerReport{Completed: rec.completed.Load(), Measured: &measurement{}})
				continue
			}
			m, err := rec.measurement(atStart)
			if err != nil {
				reports.write(workerReport{Error: err.Error()})
				return
			}
			reports.write(workerReport{Completed: rec.completed.Load(), Measured: m})
		}
	})
	inside := func(agent string) (worker.Session, error) { return api.Direct(b, agent), nil }
	err = runWorkers(ctx, inside, assigned.Deferred, assigned.Agents, assigned.Slots)
	if err != nil {
		reports.write(workerReport{Error: err.Error()})
	}
	cancel()
	wg.Wait()
	reports.write(workerReport{Completed: rec.completed.Load()})
	return err
}

type reportWriter struct {
	mu  sync.Mutex
	out *json.Encoder
}

func (t *reportWriter) write(report workerReport) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_ = t.out.Encode(report) // an error means that the reader has ended, which ends this process
}

func (r *recorder) measurement(atStart usage) (*measurement, error) {
	now := readUsage()
	m := &measurement{InWindow: r.inWindow.Load(), Deferred: r.deferred.Load(), CPU: now.cpu - atStart.cpu, PeakBytes: now.peakBytes, Histograms: map[string][]byte{}}
	for name, t := range r.histograms {
		t.mu.Lock()
		body, err := t.hist.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
		t.mu.Unlock()
		if err != nil {
			return nil, err
		}
		m.Histograms[name] = body
	}
	return m, nil
}

// merge adds the measurement of a worker process.
func (r *recorder) merge(m *measurement) error {
	for name, body := range m.Histograms {
		hist, err := hdrhistogram.Decode(body)
		if err != nil {
			return err
		}
		t := r.histograms[name]
		if t == nil {
			return fmt.Errorf("a worker process measured %q", name)
		}
		t.mu.Lock()
		t.hist.Merge(hist)
		t.mu.Unlock()
	}
	r.inWindow.Add(m.InWindow)
	r.deferred.Add(m.Deferred)
	return nil
}

// processGroup is the worker processes of a round.
type processGroup struct {
	rec       *recorder
	processes []*workerProcess
}

type workerProcess struct {
	cmd       *exec.Cmd
	in        io.WriteCloser
	control   *json.Encoder
	reports   chan workerReport
	completed int64 // by its last report
	exited    chan error
}

// startProcesses starts the processes. They share the agents or, if there are more processes
// than agents, the slots of every agent.
func startProcesses(ctx context.Context, cfg Config, url string, rec *recorder, agents []string) (*processGroup, error) {
	c := &processGroup{rec: rec}
	for p := range cfg.Processes {
		assigned := assignment{Source: rec.source, Deferred: cfg.Deferred}
		if len(agents) >= cfg.Processes {
			for i := p; i < len(agents); i += cfg.Processes {
				assigned.Agents = append(assigned.Agents, agents[i])
			}
			assigned.Slots = max(1, cfg.Slots/len(agents))
		} else {
			assigned.Agents, assigned.Slots = agents, max(1, cfg.Slots/len(agents)/cfg.Processes)
		}
		m, err := startProcess(cfg.Spawn(ctx, url), assigned)
		if err != nil {
			return c, err
		}
		c.processes = append(c.processes, m)
	}
	return c, nil
}

func startProcess(cmd *exec.Cmd, assigned assignment) (*workerProcess, error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a worker process: %w", err)
	}
	m := &workerProcess{cmd: cmd, in: in, control: json.NewEncoder(in), reports: make(chan workerReport, 16), exited: make(chan error, 1)}
	go func() { // joined by exited
		decoder := json.NewDecoder(out)
		for {
			var report workerReport
			if err := decoder.Decode(&report); err != nil {
				break
			}
			m.reports <- report
		}
		close(m.reports)
		m.exited <- cmd.Wait()
	}()
	return m, m.control.Encode(assigned)
}

// run forwards the measurements of the processes until ctx ends, and then ends them.
func (c *processGroup) run(ctx context.Context, reports chan<- *measurement) error {
	var wg sync.WaitGroup
	errs := make([]error, len(c.processes))
	for i, m := range c.processes {
		wg.Go(func() {
			end := context.AfterFunc(ctx, func() { _ = m.in.Close() })
			defer end()
			for report := range m.reports {
				for range report.Completed - m.completed {
					c.rec.completed.Add(1)
					c.rec.onCompleted()
				}
				m.completed = max(m.completed, report.Completed) // two concurrent reports may be out of order
				if report.Measured != nil {
					reports <- report.Measured
				}
				if report.Error != "" {
					errs[i] = fmt.Errorf("a worker process: %s", report.Error)
				}
			}
			if err := <-m.exited; err != nil && errs[i] == nil && ctx.Err() == nil {
				errs[i] = fmt.Errorf("a worker process: %w", err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// setMeasuring begins or ends the measurement in all worker processes, and waits for the answer
// of each.
func (r *round) setMeasuring(ctx context.Context, measure bool) ([]*measurement, error) {
	if r.processes == nil {
		return nil, nil
	}
	for _, m := range r.processes.processes {
		if err := m.control.Encode(control{measure}); err != nil {
			return nil, err
		}
	}
	var answers []*measurement
	for range r.processes.processes {
		select {
		case m := <-r.measurements:
			answers = append(answers, m)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return answers, nil
}
