package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/index"
	"github.com/agenthandoff/handoff/internal/index/ask"
)

// indexBeside keeps the index of a node of our own, and returns when it answers.
// What is wrong with it is logged: handoffs go on without. The returned function
// waits for its end, after ctx's.
func indexBeside(ctx context.Context, engine broker.Engine, file string, shown *showing, log *slog.Logger) (wait func()) {
	ix, err := index.Open(file, index.Config{Log: log})
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
	if ctx.Err() != nil { // it ended because it was told to
		err = nil
	}
	return errors.Join(err, ix.Close())
}

// fillingEvery is how often an index that is being filled says how far it is.
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
		case err != nil: // Run says what is wrong
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
