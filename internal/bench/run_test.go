package bench_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/bench"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

// workerEnv makes this test binary a worker process: the engine's URL.
const workerEnv = "HANDOFF_BENCH_TEST_WORKER"

func TestMain(m *testing.M) {
	if url := os.Getenv(workerEnv); url != "" {
		engine, err := jetstream.Dial(context.Background(), jetstream.DialConfig{URL: url})
		if err == nil {
			err = bench.ServeProcess(context.Background(), engine, os.Stdin, os.Stdout)
		}
		if err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// TestRun combines all options, each at a small size.
func TestRun(t *testing.T) {
	for name, cfg := range map[string]bench.Config{
		"baseline, deferrals, stored, index, agents": {N: 300, Baseline: true, Rounds: 2, Deferred: 0.5, Stored: 1_200, Index: true, Agents: 3, Warmup: 50 * time.Millisecond},
		"partitions":       {N: 1_000, Partitions: 4, Rounds: 2, Deferred: 0.2, Index: true, Agents: 5, Warmup: 50 * time.Millisecond},
		"open loop":        {Duration: 500 * time.Millisecond, Rate: 200, Warmup: 100 * time.Millisecond},
		"gateways":         {N: 200, Via: []string{bench.ViaHTTP, bench.ViaNATS}, Agents: 2, Warmup: 50 * time.Millisecond, Deferred: -1},
		"worker processes": {N: 3_000, Processes: 2, Agents: 3, Warmup: 50 * time.Millisecond, Deferred: -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg.Fsync, cfg.Submitters, cfg.Slots, cfg.Open = embedded.FsyncInterval, 4, 8, 64
			cfg.Spawn = func(ctx context.Context, url string) *exec.Cmd {
				cmd := exec.CommandContext(ctx, os.Args[0])
				cmd.Cancel, cmd.WaitDelay = func() error { return nil }, 20*time.Second
				cmd.Env = append(os.Environ(), workerEnv+"="+url)
				return cmd
			}
			cfg.Progress = func(line string) { t.Log(line) }
			report, err := bench.Run(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			checkReport(t, cfg, report)
		})
	}
}

func checkReport(t *testing.T, cfg bench.Config, r bench.Report) {
	t.Helper()
	if r.Handoffs < int64(cfg.N) || r.PerSecond <= 0 || r.CPUPerHandoff <= 0 || r.Engine.Appends < 2.9 || r.Memory.PeakBytes == 0 {
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
		if want := cfg.Rate * cfg.Duration.Seconds(); float64(r.Handoffs) > 1.2*want {
			t.Errorf("%d handoffs, where %.0f were scheduled", r.Handoffs, want)
		}
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
	if ratio := bare.LedgerBytes / r.Engine.LedgerBytes; bare.Offers != 1 || bare.Appends < 2.9 || ratio < 0.9 || ratio > 1.1 {
		t.Errorf("the bare engine stored %+v, the handoffs %+v", bare, r.Engine)
	}
}

func TestPackages(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := bench.ReadPackages(dir); !errors.Is(err, &protocol.Error{Code: protocol.CodeInvalid}) {
		t.Errorf("an empty directory: %v", err)
	}
	const one = `{"source":"a","target":{"agent":"b"},"key":"k","reason":"why","task":{"description":"what"},"expectations":{"output_schema":{"type":"object"}}}`
	write("one.json", one)
	write("two.jsonl", one+"\n\n"+strings.Replace(one, "why", "because", 1)+"\n")
	write("readme.txt", "not a package")
	packages, err := bench.ReadPackages(dir)
	if err != nil || len(packages) != 3 || packages[2].Reason != "because" {
		t.Fatalf("%d packages, %v", len(packages), err)
	}
	report, err := bench.Run(t.Context(), bench.Config{Fsync: embedded.FsyncInterval, Packages: packages, N: 60, Warmup: -1, Deferred: -1, Submitters: 2, Slots: 4})
	if err != nil || report.Proof.Closed < 60 || report.Config.Packages != 3 {
		t.Errorf("%+v, %v", report.Proof, err)
	}
	write("two.jsonl", one+"\n{\"source\":1}\n")
	if _, err := bench.ReadPackages(dir); err == nil || !strings.Contains(err.Error(), "two.jsonl, line 2") {
		t.Errorf("a bad line: %v", err)
	}
	write("two.jsonl", strings.Replace(one, `{"agent":"b"}`, `{"agents":["b","c"]},"type":"broadcast"`, 1))
	if _, err := bench.ReadPackages(dir); err == nil || !strings.Contains(err.Error(), "target: a group") {
		t.Errorf("a group: %v", err)
	}
}

func TestValidate(t *testing.T) {
	connect := func(context.Context) (broker.Engine, func(), error) { return nil, nil, nil }
	for field, cfg := range map[string]bench.Config{
		"submitters": {Submitters: -1}, "slots": {Slots: bench.SlotsMax + 1}, "agents": {Agents: bench.AgentsMax + 1},
		"size": {Size: 10}, "n": {N: -1}, "duration": {Duration: -1}, "warmup": {Warmup: time.Hour}, "rate": {Rate: -1},
		"deferred": {Deferred: 1.5}, "replicas": {Replicas: 2}, "fsync": {Fsync: "never"}, "rounds": {Rounds: 1_000},
		"via[0]": {Via: []string{"ftp"}}, "via": {Baseline: true, Via: []string{bench.ViaHTTP}}, "data": {Connect: connect, Dir: "x"}, "baseline": {Connect: connect, Baseline: true}, "open": {Open: -1},
		"spawn": {Processes: 1}, "workers_as_processes": {Processes: -1}, "probes": {Probes: -2}, "stored": {Stored: -1}, "drain": {Drain: -1},
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
