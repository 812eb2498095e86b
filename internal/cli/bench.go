package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/broker/embedded"
	"github.com/agenthandoff/handoff/broker/jetstream"
	"github.com/agenthandoff/handoff/internal/bench"
)

func newBench(a *app) *cobra.Command {
	var (
		cfg   bench.Config
		flags benchFlags
	)
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure how many handoffs a second, and how fast each",
		Long: `Bench hands off as fast as it can (or at --rate), from submit to complete, and says
how many a second and how long each took. Everything of production is there: a
supervisor that gets what needs it, timers that are armed and fire, offers it makes
again, workers with leases. Afterwards the ledger is read and proves that every
handoff closed exactly once, with success; else it fails.

The engine is a node in this process, in a temporary directory; --data DIR keeps one.
With --nats URL (the flag; $NATS_URL does not count here) it is the engine there, which
gets the load and keeps the closed handoffs, of agents bench-…: not one that others
depend on.

Latencies count from the intended instant: with --rate from that of a schedule which
does not wait for an engine that stalls (coordinated omission is accounted for), else
from the beginning of the submission. submit is until it returned, submit to claim
until the accepting append is acknowledged, submit to complete until the completing
one is, status is a read by ticket beside all that. One in a hundred handoffs
(--deferred) is first answered "not now" and comes back a second later by its timer;
those are counted, and their latencies shown apart.

--baseline runs the bare engine beside: the same messages stored, delivered and
acknowledged with no protocol, in the same process for the same time; the ratio is our
share of that. --rounds alternates and takes medians. A figure worth quoting takes
90 s and several rounds, on a machine that does nothing else.

Exit codes: 0 measured and proved; 1 not so; 9 a flag or a package was refused.`,
		Example: `  handoff bench
  handoff bench --duration 90s --baseline --rounds 3 --fsync interval -o json
  handoff bench --rate 200                        # how fast is one, when there is no crowd
  handoff bench --packages ./packages --submitters 128
  handoff bench -s nats://engine:4222 --replicas 3`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			flags.apply(a, &cfg)
			if flags.packages != "" {
				var err error
				if cfg.Packages, err = bench.ReadPackages(a.path(flags.packages)); err != nil {
					return err
				}
			}
			// Only a flag: an engine that NATS_URL names for everything else shall not
			// get the load of a measurement.
			if a.conn.url != "" || a.conn.context != "" {
				conn := a.conn.resolve(a.env)
				if cmd.Flags().Changed("replicas") { // a plain cluster will do
					if err := conn.ensureTopology(cmd.Context(), jetstream.Topology{Replicas: cfg.Replicas}); err != nil {
						return err
					}
				}
				cfg.Connect = func(ctx context.Context) (broker.Engine, func(), error) {
					return conn.open(ctx, broker.Config{Log: cfg.Log})
				}
			}
			cfg.Spawn = a.spawnBenchWorker
			return a.bench(cmd.Context(), cfg)
		},
	}
	flags.declare(a, cmd, &cfg)
	return cmd
}

// ensureTopology makes the streams on an engine that may have none, and gives those that
// are there as many replicas.
func (c connection) ensureTopology(ctx context.Context, t jetstream.Topology) error {
	nc, err := c.dial(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	return jetstream.EnsureTopology(ctx, nc, t)
}

// bench measures and prints. It prints a partial report even where the proof failed: a program may
// want to see it.
func (a *app) bench(ctx context.Context, cfg bench.Config) error {
	report, err := bench.Run(ctx, cfg)
	if err != nil && !is[*bench.UnprovedError](err) {
		return err
	}
	if a.text() {
		return errors.Join(a.benchText(report), err)
	}
	return errors.Join(a.value(report), err)
}

// benchFlags are those that are not fields of bench.Config as they are.
type benchFlags struct {
	fsync, packages string
	deferred        float64
	probes          int
}

// declare declares all flags, of cfg and its own.
func (f *benchFlags) declare(a *app, cmd *cobra.Command, cfg *bench.Config) {
	fs := cmd.Flags()
	fs.SortFlags = false
	durationVar(fs, &cfg.Duration, "duration", bench.DurationDefault, "how long to measure")
	fs.IntVar(&cfg.N, "n", 0, "measure `N` handoffs instead, however long they take")
	durationVar(fs, &cfg.Warmup, "warmup", bench.WarmupDefault, "how long to go on before")
	fs.Float64Var(&cfg.Rate, "rate", 0, "submit `N` a second, whatever becomes of them (default: as many as it takes)")
	fs.IntVar(&cfg.Submitters, "submitters", bench.SubmittersDefault, "`N` that submit at a time")
	fs.IntVar(&cfg.Slots, "slots", bench.SlotsDefault, "`N` handoffs worked on at a time, in all")
	fs.IntVar(&cfg.Agents, "agents", 1, "`N` agents, each with one worker")
	fs.IntVar(&cfg.Processes, "workers-as-processes", 0, "run the workers as `N` processes that share agents and slots")
	fs.IntVar(&cfg.Open, "open", 0, fmt.Sprintf("`N` handoffs open at most (default %d, with --rate %d)", bench.OpenDefault, bench.OpenRateDefault))
	fs.IntVar(&cfg.Size, "size", bench.SizeDefault, "`BYTES` of a package as stored")
	fs.StringVar(&f.packages, "packages", "", "submit the packages in `DIR` instead: each *.json, each line of a *.jsonl")
	fs.StringVar(&f.fsync, "fsync", string(embedded.FsyncAlways), "always, or interval (1 s)")
	fs.IntVar(&cfg.Replicas, "replicas", 1, "1, or 3 nodes in this process; with --nats, make the streams there with so many")
	fs.StringVar(&cfg.Dir, "data", "", "`DIR` to keep the node's data in (default: a temporary one)")
	fs.Float64Var(&f.deferred, "deferred", 0.01, "`SHARE` of the handoffs that is answered \"not now\" first")
	fs.IntVar(&f.probes, "probes", bench.ProbeDefault, "statuses to read each second")
	fs.BoolVar(&cfg.Index, "index", false, "keep an index beside, as handoff dev does")
	fs.IntVar(&cfg.Stored, "stored", 0, "put `N` closed handoffs into the ledger first")
	fs.BoolVar(&cfg.Baseline, "baseline", false, "run the bare engine beside, and show the ratio")
	fs.IntVar(&cfg.Rounds, "rounds", 1, "do it all `N` times, and take medians")
	fs.StringVar(&cfg.Profile, "profile", "", "write a CPU profile of the measurement to `FILE`")
	fs.StringVar(&cfg.MemProfile, "memprofile", "", "write a profile of the allocations to `FILE`")
	a.words(cmd, "fsync", string(embedded.FsyncAlways), string(embedded.FsyncInterval))
}

// apply sets the values in which the flags differ from bench.Config.
func (f *benchFlags) apply(a *app, cfg *bench.Config) {
	cfg.Dir, cfg.Profile, cfg.MemProfile = a.path(cfg.Dir), a.path(cfg.Profile), a.path(cfg.MemProfile)
	cfg.Fsync = embedded.Fsync(f.fsync)
	// 0 is the default there, and none at all here.
	if cfg.Warmup == 0 {
		cfg.Warmup = -1
	}
	if cfg.Deferred = f.deferred; cfg.Deferred == 0 {
		cfg.Deferred = -1
	}
	if cfg.Probes = f.probes; cfg.Probes == 0 {
		cfg.Probes = -1
	}
	// Decisions and endings would be a line for each handoff.
	cfg.Log = slog.New(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if a.text() {
		cfg.Progress = func(line string) { a.notef("%s\n", line) }
	}
}

// latencyNames are how latencies are called for people.
var latencyNames = map[string]string{
	bench.Submit: "submit", bench.SubmitToClaim: "submit to claim", bench.SubmitToComplete: "submit to complete",
	bench.Status: "status", bench.StatusStored: "status, stored before", bench.DeferredClaim: "deferred, to claim",
	bench.DeferredComplete: "deferred, to complete", bench.Lateness: "the schedule itself",
}

func (a *app) benchText(r bench.Report) error {
	a.printf("%.0f handoffs/s  (%d in %.1f s, %d of them deferred once)\n\n", r.PerSecond, r.Handoffs, r.Seconds, r.Deferred)
	rows := [][]string{{"MICROSECONDS", "P50", "P90", "P99", "MAX", "COUNT"}}
	for _, name := range bench.Latencies {
		if l, ok := r.Latency[name]; ok {
			rows = append(rows, []string{latencyNames[name], micros(l.P50), micros(l.P90), micros(l.P99), micros(l.Max), fmt.Sprint(l.Count)})
		}
	}
	if err := a.table(rows); err != nil {
		return err
	}
	e := r.Engine
	a.printf("\n")
	err := a.fields(
		"each handoff", fmt.Sprintf("%.1f µs of processor time, %.0f allocations of %.1f KiB", r.CPUPerHandoff, r.AllocsPerHandoff, r.AllocBytes/1024),
		"stored", fmt.Sprintf("%.2f messages: %.2f appends of %.0f bytes together, %.2f offers of %.0f, %.2f of timers", e.Messages, e.Appends, e.LedgerBytes, e.Offers, e.OfferBytes, e.Timers),
		"delivered", fmt.Sprintf("%.2f offers, %.2f entries of the ledger, %.2f wake-ups", e.OffersDelivered, e.EntriesDelivered, e.WakeUpsDelivered),
		"memory", fmt.Sprintf("%d MiB at most, %d MiB of heap at the end", r.Memory.PeakBytes>>20, r.Memory.HeapBytes>>20),
		"proved", fmt.Sprintf("%d submitted, %d closed once and with success", r.Proof.Submitted, r.Proof.Closed),
	)
	if err != nil || r.Baseline == nil {
		return err
	}
	a.printf("\n%.1f %% of the bare engine's %.0f/s", 100*r.Ratio, r.Baseline.Bare.PerSecond)
	if r.Baseline.Followed != nil {
		a.printf(" (%.1f %% of the %.0f/s it does with a follower)", 100*r.RatioFollowed, r.Baseline.Followed.PerSecond)
	}
	a.printf("\n")
	return nil
}

func micros(us float64) string {
	if us < 1000 {
		return fmt.Sprintf("%.1f", us)
	}
	return fmt.Sprintf("%.0f", us)
}

// benchWorkerCommand is the hidden command that is one worker process.
const benchWorkerCommand = "bench-worker"

// spawnBenchWorker makes the command of a worker process. url is the engine's, or "" for
// the one that our own flags name.
func (a *app) spawnBenchWorker(ctx context.Context, url string) *exec.Cmd {
	args := []string{benchWorkerCommand}
	conn := a.conn
	if url != "" {
		conn = connection{url: url, timeout: conn.timeout}
	}
	for _, flag := range []struct{ name, value string }{{"--nats", conn.url}, {"--context", conn.context}, {"--creds", conn.creds}, {"--tlsca", conn.tlsCA}, {"--timeout", a.timeout().String()}} {
		if flag.value != "" {
			args = append(args, flag.name, flag.value)
		}
	}
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Cancel = func() error { return nil } // the end of its standard input ends it
	cmd.WaitDelay = benchWorkerGrace
	cmd.Stderr = a.err
	return cmd
}

// benchWorkerGrace is how long a worker process may take to drain.
const benchWorkerGrace = 10 * time.Second

// newBenchWorker is one worker process of bench.
func newBenchWorker(a *app) *cobra.Command {
	return &cobra.Command{
		Use:    benchWorkerCommand,
		Short:  "Be a worker process of handoff bench",
		Hidden: true,
		Args:   takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			engine, done, err := a.conn.resolve(a.env).open(cmd.Context(), broker.Config{})
			if err != nil {
				return err
			}
			defer done()
			return bench.ServeProcess(cmd.Context(), engine, a.in, a.out)
		},
	}
}
