package supervisor

import (
	"context"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/broker"
)

const (
	// publishersMax is how many batches a sweep publishes side by side. Most of a batch is processor
	// time; reading for an offer is waiting.
	publishersMax = 16
	// batchMax and batchBytesMax bound a batch, in handoffs and in bytes of the ledger: it is sent as
	// one, and waits for one answer after another.
	batchMax      = 32
	batchBytesMax = 256 << 10
	// batchHeadsMax is after how many heads a sweep sends an incomplete batch: open handoffs may lie
	// far apart.
	batchHeadsMax = 1_000
)

// batchPublisher publishes the outbox entries of a sweep in batches, with workers of its own:
// events and timers do not wait behind a sweep over a million handoffs.
type batchPublisher struct {
	publish func([]broker.Outbox)
	tasks   chan func()
	workers sync.WaitGroup

	pause  time.Duration // between two runs
	sentAt time.Time     // when the last one was

	batch      []broker.Outbox
	batchBytes int
	batchHeads int // seen since the run before was sent
}

// newBatchPublisher starts a batchPublisher over publish. It has to be closed.
func newBatchPublisher(put func([]broker.Outbox)) *batchPublisher {
	c := &batchPublisher{publish: put, tasks: make(chan func())}
	for range publishersMax {
		c.workers.Go(func() {
			for task := range c.tasks {
				task()
			}
		})
	}
	return c
}

// do hands a task to a worker. It blocks while all are busy, and drops the task when ctx ends.
func (b *batchPublisher) do(ctx context.Context, task func()) {
	select {
	case b.tasks <- task:
	case <-ctx.Done():
	}
}

// add puts the outbox entry of a handoff into the batch. Only the sweep's goroutine calls it.
func (b *batchPublisher) add(ctx context.Context, h broker.Outbox) {
	b.batch = append(b.batch, h)
	if b.batchBytes += h.Head.Bytes(); len(b.batch) >= batchMax || b.batchBytes >= batchBytesMax {
		b.send(ctx)
	}
}

// tick counts a head of the sweep.
func (b *batchPublisher) tick(ctx context.Context) {
	if b.batchHeads++; b.batchHeads >= batchHeadsMax {
		b.send(ctx)
	}
}

func (b *batchPublisher) send(ctx context.Context) {
	run := b.batch
	b.batch, b.batchBytes, b.batchHeads = nil, 0, 0
	if len(run) == 0 {
		return
	}
	if wait := b.pause - time.Since(b.sentAt); wait > 0 {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
	b.sentAt = time.Now()
	b.do(ctx, func() { b.publish(run) })
}

// Close sends the last batch and waits until all are published. Nothing can be added after it.
func (b *batchPublisher) Close(ctx context.Context) {
	b.send(ctx)
	close(b.tasks)
	b.workers.Wait()
}
