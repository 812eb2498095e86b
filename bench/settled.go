package bench

import (
	"context"
	"time"
)

// passes gets from a supervisor how long each of its passes over all heads has taken.
// What a supervisor does at its start is no part of a measurement: it looks at
// everything that is open, and with a million handoffs it reads for seconds. A
// supervisor.Watch would hear of it as well, and change what is measured: the
// follower decodes more where a watch counts.
type passes chan time.Duration

func newPasses() passes { return make(passes, 8) }

// ended is told of a pass. Once the reader has ended, what does not fit is dropped.
func (p passes) ended(took time.Duration) {
	select {
	case p <- took:
	default:
	}
}

const (
	// quiet is how long no pass must have ended before a supervisor has settled, if
	// its passes take less.
	quiet = 500 * time.Millisecond
	// settlePatience is how long it may take to.
	settlePatience = 2 * time.Minute
)

// settled waits until the passes are over that a supervisor makes at its start: one,
// and more where it was the first to make its consumers.
func (p passes) settled(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, settlePatience)
	defer cancel()
	rest := time.NewTimer(settlePatience)
	defer rest.Stop()
	for {
		select {
		case took := <-p:
			rest.Reset(max(quiet, took*3/2))
		case <-rest.C:
			return
		case <-ctx.Done():
			return
		}
	}
}
