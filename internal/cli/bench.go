package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/bench"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/broker/embedded"
	"github.com/agenthandoff/handoff/broker/jetstream"
)

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

// apply sets what the flags say otherwise than bench.Config has it.
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
	// What is decided and ended would be a line for each handoff.
	cfg.Log = slog.New(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if a.text() {
		cfg.Progress = func(line string) { a.notef("%s\n", line) }
	}
}

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
supervisor that follows the ledger, timers that are armed and fire, offers it makes
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

// bench measures and prints. What there is of a report is printed even where the
// proof failed: a program may want to see it.
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
