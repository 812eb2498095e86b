package cli

import (
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker/embedded"
	"github.com/agenthandoff/handoff/internal/bench"
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
