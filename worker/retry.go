package worker

import (
	"context"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

const (
	// tryTimeout bounds one request that is safe to repeat. Appends have none:
	// the engine repeats them itself, and giving one up leaves its fate unknown.
	tryTimeout = 10 * time.Second
	// fetchTimeout bounds one try at a large package.
	fetchTimeout = time.Minute
	// triesMax bounds the tries at what fails for a reason of its own, and not
	// because the engine is away.
	triesMax = 5
	// unlimited is no bound: for what may have happened, and must be known.
	unlimited = 0
	// lateReportTimeout is what remains for the report of a handler that outlived
	// the drain.
	lateReportTimeout = 5 * time.Second
)

func newBackOff() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(backoff.WithInitialInterval(100*time.Millisecond),
		backoff.WithMaxInterval(5*time.Second), backoff.WithMaxElapsedTime(0))
}

// retry repeats try until it succeeds, fails for good, or ctx ends. An engine
// that is away is waited for.
func (w *Worker) retry(ctx context.Context, what string, try func(context.Context) error) error {
	return w.retryUpTo(ctx, triesMax, what, try)
}

// retryUpTo is retry with a bound of its own.
func (w *Worker) retryUpTo(ctx context.Context, triesMax int, what string, try func(context.Context) error) error {
	var backOff *backoff.ExponentialBackOff // most tries succeed
	for tries := 1; ; tries++ {
		err := try(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return err
		case isUnreachable(err):
			tries--
		case isFinal(err) || tries == triesMax:
			return err
		}
		if backOff == nil {
			backOff = newBackOff()
		}
		pause := backOff.NextBackOff()
		w.log.Warn("engine request failed; retrying", "what", what, "in", pause, "err", err)
		if !sleep(ctx, pause) {
			return err
		}
	}
}

// withTimeout bounds each try.
func withTimeout(limit time.Duration, try func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return try(ctx)
	}
}

// isUnreachable tells whether the engine gave no answer at all.
func isUnreachable(err error) bool {
	return errors.Is(err, broker.ErrUnreachable) || errors.Is(err, context.DeadlineExceeded)
}

// isFinal tells whether asking again cannot help: the ledger or the input is against it.
func isFinal(err error) bool {
	var refused *protocol.Error
	return errors.As(err, &refused) || errors.Is(err, broker.ErrLeaseLost) || errors.Is(err, broker.ErrOfferGone) ||
		errors.Is(err, broker.ErrNotFound) || errors.Is(err, lifecycle.ErrStale) || errors.Is(err, lifecycle.ErrIllegal)
}

// sleep waits for d; false is that ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
