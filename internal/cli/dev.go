package cli

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/broker/embedded"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/internal/telemetry"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// devConfig is what the flags of dev say.
type devConfig struct {
	dir, fsync string
	metrics    string // where to show figures; empty is nowhere
	port       int
	lease      time.Duration
	noIndex    bool
	verbose    bool
}

func newDev(a *app) *cobra.Command {
	var cfg devConfig
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run an engine, a supervisor and an index here",
		Long: `Dev runs everything that handoffs need in one process: a NATS server with JetStream,
a supervisor, and an index that answers handoff list, conversation and stats. It
prints "ready nats://…" on stdout when it serves, and its log on stderr. Ctrl-C
drains and stops it; what was handed off stays in --data and goes on with the next
start. A start after a crash first puts back what the ledger calls for.

--fsync always (the default) has every change on the disk before it is
acknowledged. --fsync interval syncs once a second: faster, and a power cut may
take the last second with it, acknowledged tickets included. A killed process
loses nothing either way.

--lease is the default lease of workers on this engine that choose none
themselves: how long their handoffs stay theirs without a word from them. It is
kept with the data. A claim from the command line has a default of its own.

` + metricsHelp + `

Exit codes: 0 drained; 1 it could not start, or its server hangs: the error says why.`,
		Example: `  handoff dev
  handoff dev --port 0 --data ./data --fsync interval
  handoff dev --lease 5s --verbose
  handoff dev --metrics :9090`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case cfg.fsync != string(embedded.FsyncAlways) && cfg.fsync != string(embedded.FsyncInterval):
				return usagef("--fsync %s: sync always, or at an interval (of 1 s)", cfg.fsync)
			case cfg.port < 0 || cfg.port > 65535:
				return usagef("--port %d: a port is 0 (any) to 65535", cfg.port)
			case cfg.lease != 0 && (cfg.lease < worker.LeaseMin || cfg.lease > worker.LeaseMax):
				return protocol.Errorf(protocol.CodeInvalid, "lease", "is %s; a lease is between %s and %s",
					explain.Duration(cfg.lease), explain.Duration(worker.LeaseMin), explain.Duration(worker.LeaseMax))
			}
			if cfg.dir == "" {
				dir, err := a.dataDir()
				if err != nil {
					return err
				}
				cfg.dir = dir
			}
			cfg.dir = a.path(cfg.dir)
			return a.dev(cmd.Context(), cfg)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&cfg.dir, "data", "", "directory of the ledger (default ~/.local/share/handoff/dev, or under $XDG_DATA_HOME)")
	fs.IntVar(&cfg.port, "port", nats.DefaultPort, "port to listen on, on this machine alone; 0 picks one")
	fs.StringVar(&cfg.fsync, "fsync", string(embedded.FsyncAlways), "always, or interval (1 s)")
	durationVar(fs, &cfg.lease, "lease", 0, "default lease of workers (default 30s, or what it was)")
	metricsFlag(fs, &cfg.metrics)
	fs.BoolVar(&cfg.noIndex, "no-index", false, "keep no index: handoff list has no answer unless you start handoff index")
	verboseFlag(fs, &cfg.verbose)
	a.words(cmd, "fsync", string(embedded.FsyncAlways), string(embedded.FsyncInterval))
	return cmd
}

// dev runs the node and the supervisor until ctx ends.
func (a *app) dev(ctx context.Context, cfg devConfig) (err error) {
	redactor, err := a.redactor()
	if err != nil {
		return err
	}
	a.outliveLog()
	log := a.log(cfg.verbose)
	shown, err := a.show(ctx, cfg.metrics, log)
	if err != nil {
		return err
	}
	defer shown.close()
	node, err := embedded.Start(ctx, embedded.Config{
		Dir: cfg.dir, Port: cfg.port, Fsync: embedded.Fsync(cfg.fsync), Log: log,
		Prepare: func(ctx context.Context, nc *nats.Conn, unclean bool) error {
			return prepare(ctx, nc, cfg, unclean, log)
		},
	})
	if err != nil {
		return notStarted(err, cfg)
	}
	defer func() {
		err = errors.Join(err, node.Stop())
		log.Info("stopped", "data", cfg.dir)
	}()
	ctx, stop := a.untilFailed(ctx, node.Failed())
	defer stop()
	nc, err := node.Conn()
	if err != nil {
		return err
	}
	defer nc.Close()
	traces := a.startTraces(ctx, log)
	defer traces.Stop()
	b, engine, done, err := openNode(ctx, nc, broker.Config{Log: log, Redactor: redactor, Observer: telemetry.MultiObserver(shown.observer(), traces.Observer())})
	if err != nil {
		return err
	}
	defer done()
	shown.engine(b)
	shown.disk(node.Health)
	s, err := supervisor.New(b, engine, supervisor.Config{Log: log, Watch: shown.supervision(b)})
	if err != nil {
		return err
	}
	shown.supervisor(s)
	if !cfg.noIndex {
		beside, end := context.WithCancel(ctx)
		wait := indexBeside(beside, engine, filepath.Join(cfg.dir, "index.db"), shown, log)
		defer func() { end(); wait() }()
	}
	shown.started()
	log.Info("serving", "data", cfg.dir, "fsync", cfg.fsync)
	if err := a.ready(node.ClientURL(), shown.url()); err != nil {
		return err
	}
	a.nextToType(node.ClientURL())
	return s.Run(ctx)
}
