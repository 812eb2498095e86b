package bench_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/bench"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/protocol"
)

// TestRun combines all options, each at a small size.
func TestRun(t *testing.T) {
	for name, cfg := range map[string]bench.Config{
		"baseline, deferrals, stored, index, agents": {N: 300, Baseline: true, Rounds: 2, Deferred: 0.5, Stored: 1_200, Index: true, Agents: 3, Warmup: 50 * time.Millisecond},
		"partitions": {N: 1_000, Partitions: 4, Rounds: 2, Deferred: 0.2, Index: true, Agents: 5, Warmup: 50 * time.Millisecond},
		"open loop":  {Duration: 500 * time.Millisecond, Rate: 200, Warmup: 100 * time.Millisecond},
		"gateways":   {N: 200, Via: []string{bench.ViaHTTP, bench.ViaNATS}, Agents: 2, Warmup: 50 * time.Millisecond, Deferred: -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg.Fsync, cfg.Submitters, cfg.Slots, cfg.Open = embedded.FsyncInterval, 4, 8, 64
			cfg.Progress = func(line string) { t.Log(line) }
			begun := time.Now()
			report, err := bench.Run(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			checkReport(t, cfg, report)
			// A busy machine stretches the window, so the whole run bounds what was scheduled.
			if most := cfg.Rate * time.Since(begun).Seconds(); cfg.Rate > 0 && float64(report.Handoffs) > most+1 {
				t.Errorf("%d handoffs, where %.0f were scheduled", report.Handoffs, most)
			}
		})
	}
}

func checkReport(t *testing.T, cfg bench.Config, r bench.Report) {
	t.Helper()
	// Those that were open when the window began had made at most two of their three appends.
	leastAppends := 3 - 2*float64(cfg.Open)/float64(r.Handoffs)
	if r.Handoffs < int64(cfg.N) || r.PerSecond <= 0 || r.CPUPerHandoff <= 0 || r.Engine.Appends < leastAppends || r.Memory.PeakBytes == 0 {
		t.Errorf("figures: %+v", r.Figures)
	}
	if r.Proof.Submitted == 0 || r.Proof.Closed != r.Proof.Submitted || r.Proof.Entries < 3*r.Proof.Closed {
		t.Errorf("proof: %+v", r.Proof)
	}
	names := []string{bench.Submit, bench.SubmitToClaim, bench.SubmitToComplete, bench.Status}
	if cfg.Deferred > 0 {
		names = append(names, bench.DeferredComplete)
		if l := r.Latency[bench.DeferredComplete]; l.P50 < float64(bench.DeferFor.Microseconds()) || r.Engine.Timers == 0 || r.Engine.WakeUpsDelivered == 0 {
			t.Errorf("deferred handoffs take %+v µs, with %v messages of timers and %v wake-ups each", l, r.Engine.Timers, r.Engine.WakeUpsDelivered)
		}
	}
	if cfg.Stored > 0 {
		names = append(names, bench.StatusStored)
	}
	if cfg.Rate > 0 {
		names = append(names, bench.Lateness)
	}
	if len(cfg.Via) > 0 {
		if len(r.Ways) != len(cfg.Via) || r.Ways[0].CPURatio != 1 || r.Ways[1].CPURatio <= 0 || r.Ways[1].Via != cfg.Via[1] {
			t.Errorf("ways: %+v", r.Ways)
		}
	}
	for _, name := range names {
		l := r.Latency[name]
		if l.Count == 0 || l.P50 <= 0 || l.P90 < l.P50 || l.P99 < l.P90 || l.Max < l.P99 {
			t.Errorf("%s: %+v", name, l)
		}
	}
	if !cfg.Baseline {
		return
	}
	bare := r.Baseline.Bare
	if r.Ratio <= 0 || r.RatioFollowed <= 0 || len(r.Rounds) != cfg.Rounds {
		t.Errorf("ratios %v and %v of %d rounds", r.Ratio, r.RatioFollowed, len(r.Rounds))
	}
	// The bare engine has stored messages of the same sizes as the round.
	if ratio := bare.LedgerBytes / r.Engine.LedgerBytes; bare.Offers != 1 || bare.Appends < leastAppends || ratio < 0.9 || ratio > 1.1 {
		t.Errorf("the bare engine stored %+v, the handoffs %+v", bare, r.Engine)
	}
}

func TestValidate(t *testing.T) {
	connect := func(context.Context) (broker.Engine, func(), error) { return nil, nil, nil }
	for field, cfg := range map[string]bench.Config{
		"submitters": {Submitters: -1}, "slots": {Slots: bench.SlotsMax + 1}, "agents": {Agents: bench.AgentsMax + 1},
		"size": {Size: 10}, "n": {N: -1}, "duration": {Duration: -1}, "warmup": {Warmup: time.Hour}, "rate": {Rate: -1},
		"deferred": {Deferred: 1.5}, "replicas": {Replicas: 2}, "fsync": {Fsync: "never"}, "rounds": {Rounds: 1_000},
		"via[0]": {Via: []string{"ftp"}}, "via": {Baseline: true, Via: []string{bench.ViaHTTP}}, "data": {Connect: connect, Dir: "x"}, "baseline": {Connect: connect, Baseline: true}, "open": {Open: -1},
		"probes": {Probes: -2}, "stored": {Stored: -1}, "drain": {Drain: -1},
	} {
		var e *protocol.Error
		if err := cfg.Validate(); !errors.As(err, &e) || e.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	if err := (bench.Config{}).Validate(); err != nil {
		t.Error(err)
	}
	if err := (bench.Config{Rate: 1, Baseline: true}).Validate(); err == nil {
		t.Error("a rate and a baseline")
	}
}
