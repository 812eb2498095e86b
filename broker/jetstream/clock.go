package jetstream

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// clockEvery is how long a process goes by what the engine last said of its clock.
	// Two clocks differ by milliseconds after that.
	clockEvery = time.Minute
	// clockWithin is the longest answer that says what time it is: it was written
	// some time between the question and its arrival.
	clockWithin = time.Second
)

// engineClock is the engine's clock, as far as it is known here. It goes by the
// monotonic clock of this machine from what the engine said: so that this machine's
// time of day, which an operator may set, decides nothing.
type engineClock struct {
	last   atomic.Pointer[reading]
	asking atomic.Bool
}

// reading is what a clock said when ours stood at local.
type reading struct {
	local  time.Time // with its monotonic part
	engine time.Time
	within time.Duration // either way
}

// readingOf is the reading of an answer to what was asked at asked, which arrives now.
func readingOf(asked, engine time.Time) reading {
	took := time.Since(asked)
	return reading{local: asked.Add(took / 2), engine: engine.UTC(), within: max(took/2, 1)}
}

// adopt takes a reading, unless the one that there is is better.
func (c *engineClock) adopt(r reading) {
	old := c.last.Load()
	if !r.engine.IsZero() && (old == nil || r.within < clockWithin/2 || r.within < old.within) {
		c.last.Store(&r)
	}
}

// Now implements broker.Engine.
func (j *Engine) Now() time.Time {
	r := j.clock.last.Load()
	if r == nil {
		return time.Now().UTC()
	}
	since := time.Since(r.local)
	if since > clockEvery || r.within >= clockWithin/2 {
		j.readClock()
	}
	return r.engine.Add(since)
}

// readClock asks the engine for its time, and does not wait for the answer.
func (j *Engine) readClock() {
	if !j.clock.asking.CompareAndSwap(false, true) {
		return
	}
	if !j.start(func() {
		defer j.clock.asking.Store(false)
		ctx, cancel := context.WithTimeout(j.closing, tryTimeout)
		defer cancel()
		if r, err := askClock(ctx, j.nc); err == nil {
			j.clock.adopt(r)
			return
		}
		// The old one goes on; asked at every use the engine would be asked for nothing else.
		if r := j.clock.last.Load(); r != nil {
			again := *r
			again.engine, again.local = r.engine.Add(time.Since(r.local)), time.Now()
			again.within = min(again.within, clockWithin/2-1)
			j.clock.last.CompareAndSwap(r, &again)
		}
	}) {
		j.clock.asking.Store(false)
	}
}

// askClock asks the server that leads the ledger: it is the one that stamps entries.
func askClock(ctx context.Context, nc *nats.Conn) (reading, error) {
	asked := time.Now()
	reply, err := nc.RequestWithContext(ctx, apiPrefix+"STREAM.INFO."+LedgerStream, nil)
	if err != nil {
		return reading{}, err
	}
	var info struct {
		At time.Time `json:"ts"`
	}
	if err := json.Unmarshal(reply.Data, &info); err != nil || info.At.IsZero() {
		return reading{}, fmt.Errorf("the server does not tell its time: %w", err)
	}
	return readingOf(asked, info.At), nil
}
