package bench

import (
	"context"
	"time"
)

// sweepTimes gets from a supervisor how long each of its passes over all heads has taken.
// What a supervisor does at its start is no part of a measurement: it looks at
// everything that is open, and with a million handoffs it reads for seconds. A
// supervisor.Watch would hear of it as well, and change what is measured: the
// follower decodes more where a watch counts.
type sweepTimes chan time.Duration

func newSweepTimes() sweepTimes { return make(sweepTimes, 8) }

// add is told of a pass. Once the reader has ended, what does not fit is dropped.
func (p sweepTimes) add(took time.Duration) {
	select {
	case p <- took:
	default:
	}
}

const (
	// quietPeriod is how long no pass must have ended before a supervisor has settled, if
	// its passes take less.
	quietPeriod = 500 * time.Millisecond
	// settleTimeout is how long it may take to.
	settleTimeout = 2 * time.Minute
)

// awaitQuiet waits until the passes are over that a supervisor makes at its start: one,
// and more where it was the first to make its consumers.
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
