package supervisor

import (
	"context"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/broker"
)

const (
	// crewSize is how many runs a pass has put out side by side. Most of what one
	// takes is processor time; what has to be read for an offer takes waiting.
	crewSize = 16
	// runMost and runBytesMost are how many handoffs a run has at the most, and how
	// many bytes of the ledger: a run is sent as one, and waits for one answer after another.
	runMost      = 32
	runBytesMost = 256 << 10
	// runAge is after how many heads a pass sends what it has: those that have
	// something to put out may lie far apart.
	runAge = 1_000
)

// crew does what a pass finds to do, apart from the looks: those of events and
// timers do not wait behind a pass over a million handoffs. What is to be put out
// is gathered into runs.
type crew struct {
	put     func([]broker.Hints)
	tasks   chan func()
	members sync.WaitGroup

	rest time.Duration // between two runs
	sent time.Time     // when the last one was

	run      []broker.Hints
	runBytes int
	runHeads int // seen since the run before was sent
}

// newCrew makes a crew that has put put out a run. It has to be dismissed.
func newCrew(put func([]broker.Hints)) *crew {
	c := &crew{put: put, tasks: make(chan func())}
	for range crewSize {
		c.members.Go(func() {
			for task := range c.tasks {
				task()
			}
		})
	}
	return c
}

// do hands a task to the crew; it blocks while all are busy, and drops the task
// when ctx has ended.
func (c *crew) do(ctx context.Context, task func()) {
	select {
	case c.tasks <- task:
	case <-ctx.Done():
	}
}

// hint has the hints of a handoff put out, soon. A pass calls it, and nobody else.
func (c *crew) hint(ctx context.Context, h broker.Hints) {
	c.run = append(c.run, h)
	if c.runBytes += h.Head.Bytes(); len(c.run) >= runMost || c.runBytes >= runBytesMost {
		c.send(ctx)
	}
}

// seen counts a head that the pass has come by.
func (c *crew) seen(ctx context.Context) {
	if c.runHeads++; c.runHeads >= runAge {
		c.send(ctx)
	}
}

func (c *crew) send(ctx context.Context) {
	run := c.run
	c.run, c.runBytes, c.runHeads = nil, 0, 0
	if len(run) == 0 {
		return
	}
	if wait := c.rest - time.Since(c.sent); wait > 0 {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
	c.sent = time.Now()
	c.do(ctx, func() { c.put(run) })
}

// dismiss sends the last run and waits until everything is done. Nothing can be
// given to the crew after it.
func (c *crew) dismiss(ctx context.Context) {
	c.send(ctx)
	close(c.tasks)
	c.members.Wait()
}
