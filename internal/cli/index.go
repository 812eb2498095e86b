package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/index"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/internal/telemetry"
)

// indexConfig holds the flags of index.
type indexConfig struct {
	serviceFlags `flag:""`
	File         string `flag:"file" doc:"{FILE} of the index (default ~/.local/share/handoff/index.db, or under $XDG_DATA_HOME)"`
}

func newIndex(a *app) *cobra.Command {
	var cfg indexConfig
	cmd := &cobra.Command{
		Use:   "index",
		Short: "Keep an index, and answer questions about handoffs",
		Long: `Index reads the ledger into a file of its own and answers questions about many handoffs:
handoff list, conversation, stats. "handoff dev" has one; for an engine of your own
start one, or several, each with its own file: one of them is asked.

Without --file it is index.db in ~/.local/share/handoff, or in handoff under
$XDG_DATA_HOME: beside the directory of "handoff dev", in the home of the user that runs
this. That is for one index on a machine; a second one, or one of another engine, has a
--file of its own. The line "ready" names the file.

The file is made of the ledger alone. It may be deleted at any time, also while this
runs; a file that is damaged, of an older version or of another ledger is rebuilt. One
of a newer version is left as it is, and is an error. While it is being filled, answers
are marked as incomplete.

It prints "ready" and the file's name on stdout when it answers, and its log on stderr.

` + waitHelp + `

` + metricsHelp + `

Exit codes: 0 stopped with Ctrl-C; 1 the file is in use, or of a newer version; 6 the
engine is not reachable.`,
		Example: `  handoff index -s nats://engine:4222
  handoff index --file /var/lib/handoff/index.db`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cfg.File == "" {
				dir, err := a.dataHome()
				if err != nil {
					return err
				}
				cfg.File = filepath.Join(dir, "index.db")
			}
			return a.index(cmd.Context(), &cfg)
		},
	}
	bind(cmd.Flags(), &cfg)
	return cmd
}

// index keeps an index of the engine until ctx ends.
func (a *app) index(ctx context.Context, cfg *indexConfig) error {
	return a.serve(ctx, &cfg.serviceFlags, func(b *broker.Broker, log *slog.Logger, shown *showing) error {
		shown.engineAnswers(b)
		ix, err := index.Open(a.path(cfg.File), log)
		if errors.Is(err, index.ErrInUse) {
			return fmt.Errorf("%w: --file FILE", err)
		}
		if err != nil {
			return err
		}
		shown.index(ix)
		log.Info("indexing", "engine", a.conn.resolve(a.env).where(), "file", cfg.File)
		return keepIndex(ctx, a.engine, ix, log, func() error {
			shown.started()
			return a.ready(cfg.File, shown.url(), "")
		})
	})
}

// index shows the progress of an index, which is ready while it has all that the ledger had at the
// question, a moment ago: a ledger that grows is never caught.
func (s *showing) index(ix *index.Index) {
	s.metrics.Index(func(ctx context.Context) (telemetry.IndexStats, error) {
		answer, err := ix.Position(ctx, ask.PositionQuery{Question: ask.Question{WaitMS: -1}})
		stats := telemetry.IndexStats{
			Seq: answer.Seq, Behind: answer.Behind, BehindFor: time.Duration(answer.BehindMS) * time.Millisecond, Complete: answer.Complete,
			Handoffs: answer.Handoffs, FileBytes: answer.FileBytes, Rebuilds: answer.Rebuilds, Gates: map[string]telemetry.GateStats{},
		}
		waiting, gatesErr := ix.Gates(ctx, ask.Question{WaitMS: -1})
		if gatesErr != nil { // an index that is recreated shows its progress
			return stats, err
		}
		for _, g := range waiting.Gates {
			stats.Gates[string(g.Gate)] = telemetry.GateStats{Waiting: g.Waiting, Oldest: waited(g)}
		}
		return stats, err
	})
	s.server.AddReadinessCheck("index", func(ctx context.Context) error {
		answer, err := ix.Position(ctx, ask.PositionQuery{Question: ask.Question{WaitMS: readyWithin.Milliseconds()}})
		if err == nil && !answer.Complete {
			err = fmt.Errorf("has %d of %d entries of the ledger so far", answer.Seq, answer.Seq+answer.Behind)
		}
		return err
	})
}

// waited is how long the first handoff at a gate has waited.
func waited(g index.GateCount) time.Duration {
	if g.Since.IsZero() {
		return 0
	}
	return max(0, time.Since(g.Since))
}

// readyWithin is how long an index may take to be complete where it is asked
// whether it is ready: a little less than the answer may.
const readyWithin = time.Second

// noIndex makes a process not ready that should have an index.
func (s *showing) noIndex(why error) {
	s.server.AddReadinessCheck("index", func(context.Context) error { return why })
}

// indexBeside keeps the index of a node of our own, and returns when it answers. Its errors are
// logged: handoffs go on without. The returned function waits for its end, after ctx's.
func indexBeside(ctx context.Context, engine broker.Engine, file string, shown *showing, log *slog.Logger) (wait func()) {
	ix, err := index.Open(file, log)
	if err != nil {
		log.Error("no index here: handoff list has no answer", "err", err)
		shown.noIndex(err)
		return func() {}
	}
	shown.index(ix)
	answers, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		err := keepIndex(ctx, engine, ix, log, func() error {
			close(answers)
			return nil
		})
		if err != nil {
			log.Error("the index has ended: handoff list has no answer", "err", err)
		}
	}()
	select {
	case <-answers:
	case <-ended:
	}
	return func() { <-ended }
}

// keepIndex fills an index and answers questions from it until ctx ends, and
// closes it. ready is called when it answers.
func keepIndex(ctx context.Context, engine broker.Engine, ix *index.Index, log *slog.Logger, ready func() error) error {
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error { return ix.Run(running, engine) })
	group.Go(func() error { return engine.Serve(running, ask.Verbs(ix)) })
	group.Go(func() error { return reportFilling(running, ix, log) })
	group.Go(func() error {
		if _, err := (ask.Client{Asker: engine}).Position(running, ask.PositionQuery{Question: ask.Question{WaitMS: -1}}); err != nil {
			return err
		}
		return ready()
	})
	err := group.Wait()
	if ctx.Err() != nil { // it ended by request
		err = nil
	}
	return errors.Join(err, ix.Close())
}

// fillingEvery is the interval of reports while an index is filled.
const fillingEvery = 2 * time.Second

// reportFilling logs how far an index is, until it has caught up, and again
// whenever it is filled anew.
func reportFilling(ctx context.Context, ix *index.Index, log *slog.Logger) error {
	tick := time.NewTicker(fillingEvery)
	defer tick.Stop()
	for filling := true; ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		stand, err := ix.Position(ctx, ask.PositionQuery{Question: ask.Question{WaitMS: -1}})
		switch {
		case err != nil: // Run reports the error
		case stand.Behind > fillingMin || filling && stand.Behind > 0:
			filling = true
			log.Info(fmt.Sprintf("indexed %d of %d entries", stand.Seq, stand.Seq+stand.Behind))
		case filling && stand.Complete:
			filling = false
			log.Info("the index is complete", "entries", stand.Seq, "handoffs", stand.Handoffs)
		}
	}
}

// fillingMin is how far behind an index is that is being filled, and not merely
// a moment late.
const fillingMin = 10_000
