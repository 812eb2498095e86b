package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/bench"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/jetstream"
)

func newBench(a *app) *cobra.Command {
	cfg := bench.Config{Duration: bench.DurationDefault, Warmup: bench.WarmupDefault, Submitters: bench.SubmittersDefault, Slots: bench.SlotsDefault, Agents: 1,
		Size: bench.SizeDefault, Fsync: embedded.FsyncAlways, Replicas: 1, Deferred: bench.DeferredDefault, Probes: bench.ProbeDefault, Rounds: 1}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure how many handoffs a second, and how fast each",
		Long: `Bench hands off as fast as it can (or at --rate), from submit to complete, and prints
how many a second and how long each took. Everything of production takes part: a
supervisor, timers that are armed and fire, offers that are made again, workers with
leases. Afterwards the ledger is read and proves that every handoff closed exactly once,
with success; else it fails.

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

--via nats,http measures sources and workers that go through a gateway, which runs in
this process, and compares the ways in each round: the processor time of a handoff is
that of sources, gateway, workers and engine together.

--baseline runs the bare engine, too: the same messages stored, delivered and
acknowledged with no protocol, in the same process for the same time; the ratio is our
share of that. --rounds alternates and takes medians. A figure worth quoting takes
90 s and several rounds, on a machine that does nothing else.

Exit codes: 0 measured and proved; 1 not so; 9 a flag was refused.`,
		Example: `  handoff bench
  handoff bench --duration 90s --baseline --rounds 3 --fsync interval -o json
  handoff bench --rate 200                        # how fast is one, when there is no crowd
  handoff bench --via nats,http --rounds 3        # the processor time of each way in
  handoff bench -s nats://engine:4222 --replicas 3`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			a.completeBench(&cfg)
			// Only a flag: an engine that NATS_URL names for everything else shall not
			// get the load of a measurement.
			if a.conn.URL != "" || a.conn.Context != "" {
				conn := a.conn.resolve(a.env)
				if cmd.Flags().Changed("replicas") || cfg.Partitions > 0 { // a plain cluster will do
					if err := conn.ensureTopology(cmd.Context(), jetstream.Topology{Replicas: cfg.Replicas, Partitions: cfg.Partitions}); err != nil {
						return err
					}
				}
				cfg.Connect = func(ctx context.Context) (broker.Engine, func(), error) {
					return conn.open(ctx, broker.Config{Log: cfg.Log})
				}
			}
			return a.bench(cmd.Context(), cfg)
		},
	}
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	bind(all, &cfg)
	all.StringSliceVar(&cfg.Via, "via", []string{bench.ViaInside}, "reach the engine `WAY`: inside, nats, http; several are compared with the first")
	inOrder(cmd.Flags(), all, "duration n warmup rate submitters slots agents open size fsync replicas partitions data deferred probes index stored baseline via")
	a.words(cmd, "fsync", string(embedded.FsyncAlways), string(embedded.FsyncInterval))
	a.words(cmd, "via", bench.Ways...)
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

// completeBench completes the values of the flags: 0 is the default there, and none at all here.
func (a *app) completeBench(cfg *bench.Config) {
	cfg.Dir, cfg.Profile = a.path(cfg.Dir), a.path(cfg.Profile)
	if cfg.Warmup == 0 {
		cfg.Warmup = -1
	}
	if cfg.Deferred == 0 {
		cfg.Deferred = -1
	}
	if cfg.Probes == 0 {
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
	a.fields(
		"each handoff", fmt.Sprintf("%.1f µs of processor time, %.0f allocations of %.1f KiB", r.CPUPerHandoff, r.AllocsPerHandoff, r.AllocBytes/1024),
		"stored", fmt.Sprintf("%.2f messages: %.2f appends of %.0f bytes together, %.2f offers of %.0f, %.2f of timers", e.Messages, e.Appends, e.LedgerBytes, e.Offers, e.OfferBytes, e.Timers),
		"delivered", fmt.Sprintf("%.2f offers, %.2f entries of the ledger, %.2f wake-ups", e.OffersDelivered, e.EntriesDelivered, e.WakeUpsDelivered),
		"memory", fmt.Sprintf("%d MiB at most, %d MiB of heap at the end", r.Memory.PeakBytes>>20, r.Memory.HeapBytes>>20),
		"proved", fmt.Sprintf("%d submitted, %d closed once and with success", r.Proof.Submitted, r.Proof.Closed),
	)
	if len(r.Ways) > 0 {
		rows := [][]string{{"VIA", "HANDOFFS/S", "PROCESSOR µS", "RATIO", "ALLOCATIONS"}}
		for _, way := range r.Ways {
			rows = append(rows, []string{way.Via, fmt.Sprintf("%.0f", way.PerSecond), micros(way.CPUPerHandoff), fmt.Sprintf("%.2f", way.CPURatio), fmt.Sprintf("%.0f", way.AllocsPerHandoff)})
		}
		a.printf("\n")
		if err := a.table(rows); err != nil {
			return err
		}
	}
	if r.Baseline == nil {
		return nil
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
