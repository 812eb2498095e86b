// Package bench measures whole handoffs, from submit to complete, on an engine in this
// process or an existing one. For comparison it runs the bare engine, which stores the same
// messages without the protocol (package internal/bench/bare).
//
// A run has all parts of production: a supervisor that gets what writers announce, arms
// timers and renews the offers that they wake; workers with leases and beats; packages that are checked,
// redacted and digested. After a run the ledger must prove that each handoff closed exactly
// once, with success. Otherwise the run is an error.
//
// # Figures
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
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
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

	// Size is how many bytes a package has as stored. Default 1,024.
	Size int `flag:"size" doc:"{BYTES} of a package as stored"`

	// Submitters is how many submissions are under way at a time. Default 32.
	Submitters int `flag:"submitters" doc:"{N} that submit at a time"`
	// Slots is how many handoffs all workers together process at a time. Default 64;
	// never less than one for each agent.
	Slots int `flag:"slots" doc:"{N} handoffs worked on at a time, in all"`
	// Agents is how many agents share the handoffs, each with one worker.
	// Default 1.
	Agents int `flag:"agents" doc:"{N} agents, each with one worker"`
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

	// Profile is a file for a CPU profile of the measurement of the first round; "" writes none.
	Profile string `flag:"profile" doc:"write a CPU profile of the measurement to {FILE}"`

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
	case c.Rate > 0 && c.Baseline:
		return protocol.Errorf(protocol.CodeConflict, "baseline", "compares throughput, and a rate sets it")
	case c.Baseline && slices.ContainsFunc(c.Via, isGateway):
		return protocol.Errorf(protocol.CodeConflict, "via", "has a gateway, and the baseline compares the engine alone")
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
		Dir: d.dir, Fsync: d.fsync(), DontListen: true, Log: d.cfg.Log,
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
