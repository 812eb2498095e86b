// Package bench measures whole handoffs, from submit to complete, on an engine in this
// process or an existing one. For comparison it runs the bare engine, which stores the same
// messages without the protocol (package broker/bare).
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
	"fmt"
	"log/slog"
	"os/exec"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/broker/embedded"
	"github.com/agenthandoff/handoff/protocol"
)

// Defaults and limits of Config.
const (
	DurationDefault = 10 * time.Second
	DurationMax     = time.Hour
	HandoffsMax     = 100_000_000
	WarmupDefault   = 2 * time.Second
	WarmupMax       = 10 * time.Minute
	DrainDefault    = time.Minute

	SubmittersDefault = 32
	SubmittersMax     = 4_096
	SlotsDefault      = 64
	SlotsMax          = 65_536
	AgentsMax         = 10_000
	ProcessesMax      = 256

	SizeDefault = 1_024
	SizeMax     = protocol.PackageBytesMax

	RateMax      = 1_000_000
	ProbeDefault = 200
	ProbeMax     = 100_000
	StoredMax    = 100_000_000
	RoundsMax    = 100

	// OpenDefault is how many handoffs are open at most in a closed loop. It is more than
	// slots and submitters hold together, and few enough that the time in a queue does not
	// dominate the latency.
	OpenDefault = 1_024
	// OpenRateDefault is the same at a fixed rate, where a growing queue must be visible.
	OpenRateDefault = 100_000
	OpenMax         = 10_000_000

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
	Dir string
	// Fsync is embedded.FsyncAlways if empty. The work and timer streams persist
	// asynchronously then, as in handoff dev.
	Fsync embedded.Fsync
	// Replicas is 1 or 3; three are nodes in this process. 0 is 1. An existing engine
	// keeps its own.
	Replicas int

	// Packages are submitted in turn, each with its source, target, key, task id and
	// instant replaced (ReadPackages); none are packages of Size bytes.
	Packages []protocol.Package
	// Size is how many bytes such a package has as stored. Default 1,024.
	Size int

	// Submitters is how many submissions are under way at a time. Default 32.
	Submitters int
	// Slots is how many handoffs all workers together process at a time. Default 64;
	// never less than one for each agent.
	Slots int
	// Agents is how many agents share the handoffs, each with one worker.
	// Default 1.
	Agents int
	// Processes is the number of worker processes; 0 runs the workers in this one. They
	// share agents and slots. Spawn makes the command of one, which calls ServeProcess with
	// a connection to the engine at url ("" is the one of Connect) and its standard input
	// and output.
	Processes int
	Spawn     func(ctx context.Context, url string) *exec.Cmd
	// Rate is how many handoffs are submitted each second, however many complete. 0 is a
	// closed loop: a submitter begins the next submission when the last has returned.
	Rate float64
	// Open is how many handoffs may be open; submitters wait at that limit. 0 is 1,024 in
	// a closed loop, and 100,000 at a fixed rate, where it only protects the machine.
	Open int

	// N ends the measurement when so many handoffs have completed in it; 0
	// measures for Duration.
	N int
	// Duration of the measurement. Default 10 s.
	Duration time.Duration
	// Warmup counts in no figure. Default 2 s; negative is none.
	Warmup time.Duration
	// Drain is how long open handoffs may take to close after the last submission. The run
	// fails if they take longer. Default 1 min.
	Drain time.Duration

	// Deferred is the share of handoffs that a worker first defers for a second (DeferFor),
	// so that timers are armed and fire, and the supervisor renews the offers. They count as
	// throughput; their latencies are reported apart. Default 0.01; negative is none.
	Deferred float64
	// Probes is how many times a second a status is read. Default 200; negative
	// is never.
	Probes int
	// Index keeps an index up to date during the run, as handoff dev does.
	Index bool
	// Stored is how many closed handoffs are put into the ledger first.
	Stored int

	// Baseline runs the bare engine after each round, for the same time.
	Baseline bool
	// Rounds is the number of rounds, alternating with the baseline. Default 1.
	Rounds int

	// Profile and MemProfile are files for a CPU profile of the measurement of
	// the first round, and a heap profile at its end; "" is none.
	Profile, MemProfile string

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
		{"submitters", c.Submitters, 0, SubmittersMax}, {"slots", c.Slots, 0, SlotsMax}, {"agents", c.Agents, 0, AgentsMax},
		{"n", c.N, 0, HandoffsMax}, {"stored", c.Stored, 0, StoredMax}, {"rounds", c.Rounds, 0, RoundsMax},
		{"workers_as_processes", c.Processes, 0, ProcessesMax},
		{"probes", c.Probes, -1, ProbeMax}, {"open", c.Open, 0, OpenMax},
	} {
		if err := checkRange(check.field, check.value, check.low, check.high); err != nil {
			return err
		}
	}
	if c.Size != 0 {
		if err := checkRange("size", c.Size, sizeMin, SizeMax); err != nil {
			return err
		}
	}
	switch {
	case c.Duration < 0 || c.Duration > DurationMax:
		return protocol.Errorf(protocol.CodeInvalid, "duration", "is %v, must be at most %v", c.Duration, DurationMax)
	case c.Warmup > WarmupMax:
		return protocol.Errorf(protocol.CodeInvalid, "warmup", "is %v, must be at most %v", c.Warmup, WarmupMax)
	case c.Drain < 0 || c.Drain > DurationMax:
		return protocol.Errorf(protocol.CodeInvalid, "drain", "is %v, must be at most %v", c.Drain, DurationMax)
	case c.Rate < 0 || c.Rate > RateMax:
		return protocol.Errorf(protocol.CodeInvalid, "rate", "is %v, must be 0 to %d handoffs a second", c.Rate, RateMax)
	case c.Deferred > 1:
		return protocol.Errorf(protocol.CodeInvalid, "deferred", "is %v, must be a share of at most 1", c.Deferred)
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
	case c.Connect != nil && c.Baseline:
		return protocol.Errorf(protocol.CodeConflict, "baseline", "needs a node of our own: the bare engine would leave its messages in the streams of another's")
	}
	return nil
}

func (c Config) withDefaults() Config {
	c.Submitters = cmp.Or(c.Submitters, SubmittersDefault)
	c.Slots = cmp.Or(c.Slots, SlotsDefault)
	c.Agents = cmp.Or(c.Agents, 1)
	c.Slots = max(c.Slots, c.Agents)
	c.Size = cmp.Or(c.Size, SizeDefault)
	c.Replicas = cmp.Or(c.Replicas, 1)
	c.Rounds = cmp.Or(c.Rounds, 1)
	c.Probes = cmp.Or(c.Probes, ProbeDefault)
	if c.Rate > 0 {
		c.Open = cmp.Or(c.Open, OpenRateDefault)
	}
	c.Open = cmp.Or(c.Open, OpenDefault)
	c.Duration = cmp.Or(c.Duration, DurationDefault)
	c.Warmup = cmp.Or(c.Warmup, WarmupDefault)
	c.Drain = cmp.Or(c.Drain, DrainDefault)
	c.Deferred = cmp.Or(c.Deferred, 0.01)
	c.Probes, c.Warmup, c.Deferred = max(c.Probes, 0), max(c.Warmup, 0), max(c.Deferred, 0)
	c.Fsync = cmp.Or(c.Fsync, embedded.FsyncAlways)
	if c.Progress == nil {
		c.Progress = func(string) {}
	}
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	return c
}

func (c Config) progressf(format string, args ...any) { c.Progress(fmt.Sprintf(format, args...)) }
