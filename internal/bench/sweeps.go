package bench

import (
	"context"
	"time"
)

// sweepTimes receives the duration of each sweep of a supervisor over all heads. The sweeps at
// a supervisor's start are no part of a measurement: with a million handoffs they read for
// seconds. A supervisor.Watch would report them as well, but with a Watch a supervisor
// follows the ledger, which would change the measurement.
type sweepTimes chan time.Duration

func newSweepTimes() sweepTimes { return make(sweepTimes, 8) }

// add records a sweep. A full channel, after its reader has ended, drops it.
func (p sweepTimes) add(took time.Duration) {
	select {
	case p <- took:
	default:
	}
}

const (
	// quietPeriod is the time without a sweep after which a supervisor has settled. For a
	// long sweep it is half as long again as the sweep.
	quietPeriod = 500 * time.Millisecond
	// settleTimeout is how long a supervisor may take to settle.
	settleTimeout = 2 * time.Minute
)

// awaitQuiet waits until the sweeps of a supervisor's start are over: one, or more if it was the
// first to make its consumers.
func (p sweepTimes) awaitQuiet(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	timer := time.NewTimer(settleTimeout)
	defer timer.Stop()
	for {
		select {
		case took := <-p:
			timer.Reset(max(quietPeriod, took*3/2))
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}
