package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
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
