package broker

import (
	"context"
	"errors"
	"sync"

	"github.com/agenthandoff/handoff/protocol"
)

// slotChange is what one claim makes of its agent's slots. It may be asked several
// times, each time of the slots as they are then.
type slotChange struct {
	apply func(slots protocol.Slots) (next protocol.Slots, changed bool, err error)
	done  chan error
}

// slotQueue has the changes of one agent that this process is about to make. They go
// together: one of those that wait makes them all in one write.
type slotQueue struct {
	writing chan struct{} // held by the one that writes

	mu      sync.Mutex
	pending []*slotChange

	// As this process last wrote them, of the request that writes.
	known bool
	slots protocol.Slots
	rev   uint64
}

func (w *slotWatch) queue(agent string) *slotQueue {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := w.each[agent]
	if q == nil {
		q = &slotQueue{writing: make(chan struct{}, 1)}
		if w.each == nil {
			w.each = map[string]*slotQueue{}
		}
		w.each[agent] = q
	}
	return q
}

func (q *slotQueue) add(c *slotChange) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pending = append(q.pending, c)
}

func (q *slotQueue) drain() []*slotChange {
	q.mu.Lock()
	defer q.mu.Unlock()
	all := q.pending
	q.pending = nil
	return all
}

// changeSlots has a change made of an agent's slots. When ctx ends it may be made all
// the same.
func (b *Broker) changeSlots(ctx context.Context, agent string, apply func(protocol.Slots) (protocol.Slots, bool, error)) error {
	q := b.slots.queue(agent)
	for {
		c := &slotChange{apply, make(chan error, 1)}
		q.add(c)
		select {
		case q.writing <- struct{}{}:
			if batch := q.drain(); len(batch) > 0 {
				b.writeSlots(ctx, agent, q, batch)
			}
			<-q.writing
		case <-ctx.Done():
			return ctx.Err()
		}
		err := <-c.done // of ours, or of the write before
		stopped := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
		if !stopped || ctx.Err() != nil { // else it was the end of another's context
			return err
		}
	}
}

// writeSlots makes changes in one write, again until no other process came between.
func (b *Broker) writeSlots(ctx context.Context, agent string, q *slotQueue, batch []*slotChange) {
	errs := make([]error, len(batch))
	fail := func(err error) {
		q.known = false
		for i := range errs {
			errs[i] = errors.Join(errs[i], err)
		}
	}
	defer func() {
		for i, c := range batch {
			c.done <- errs[i]
		}
	}()
	for {
		fresh := !q.known
		if fresh {
			var err error
			if q.slots, q.rev, err = b.directory.Slots(ctx, agent); err != nil {
				fail(err)
				return
			}
		}
		next, writes, doubt := q.slots, false, false
		for i, c := range batch {
			after, changed, err := c.apply(next)
			if errs[i] = err; changed {
				next, writes = after, true
			} else {
				doubt = true
			}
		}
		if q.known = fresh || !doubt; !q.known {
			continue // nothing is refused, or left alone, by what may be old
		}
		if !writes {
			return
		}
		rev, err := b.directory.PutSlots(ctx, agent, next, q.rev)
		switch {
		case err == nil:
			q.slots, q.rev = next, rev
			return
		case !errors.Is(err, ErrConflict) || ctx.Err() != nil:
			fail(errors.Join(err, ctx.Err()))
			return
		}
		q.known = false
	}
}
