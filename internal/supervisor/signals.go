package supervisor

import (
	"context"
	"errors"
	"time"

	"github.com/agenthandoff/handoff/broker"
)

const (
	// signalBatch is how many signals are decided together. Its work ends before they are delivered to
	// another supervisor, unless the engine is slow, and then both begin the same handoffs.
	signalBatch = 64
	// signalPull is how long a request for signals waits for the first.
	signalPull = 20 * time.Second
	// signalPause is the pause after a request that failed.
	signalPause = time.Second
)

// signalLoop turns signals into handoffs until ctx ends.
func (s *Supervisor) signalLoop(ctx context.Context) error {
	failed := false
	for {
		batch, err := s.engine.PullSignals(ctx, signalBatch, signalPull)
		if err == nil && len(batch) > 0 {
			err = s.b.Rules().Fire(ctx, batch)
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, broker.ErrClosed):
			return err
		case err == nil:
			failed = false
			continue
		case !failed: // once, until one succeeds
			s.log.Warn("signals not taken; trying again", "err", err)
		}
		failed = true
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(signalPause):
		}
	}
}
