package broker

import (
	"context"
	"errors"
	"sync"
)

// An entry that many claims change by compare-and-set, such as the slots of an agent: the changes of this
// process wait for each other, and one of the waiting callers makes them all in one write.

// entryStore reads and writes one entry.
type entryStore[E any] struct {
	read func(ctx context.Context) (E, uint64, error)
	put  func(ctx context.Context, entry E, rev uint64) (uint64, error)
}

// entryChange is one caller's change of an entry. apply may be called several times, each time with the
// current entry.
type entryChange[E any] struct {
	apply func(entry E) (next E, changed bool, err error)
	done  chan error
}

// entries are the queues of changes, by the names of the entries.
type entries[E any] struct {
	mu   sync.Mutex
	each map[string]*entryQueue[E]
}

func (e *entries[E]) of(name string) *entryQueue[E] {
	e.mu.Lock()
	defer e.mu.Unlock()
	q := e.each[name]
	if q == nil {
		q = &entryQueue[E]{writing: make(chan struct{}, 1)}
		if e.each == nil {
			e.each = map[string]*entryQueue[E]{}
		}
		e.each[name] = q
	}
	return q
}

// entryQueue has the pending changes of this process to one entry.
type entryQueue[E any] struct {
	writing chan struct{} // held by the caller that writes

	mu      sync.Mutex
	pending []*entryChange[E]

	// The result of this process's last write; guarded by writing.
	known bool
	entry E
	rev   uint64
}

func (q *entryQueue[E]) add(c *entryChange[E]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pending = append(q.pending, c)
}

func (q *entryQueue[E]) drain() []*entryChange[E] {
	q.mu.Lock()
	defer q.mu.Unlock()
	all := q.pending
	q.pending = nil
	return all
}

// change applies a change. If ctx ends, it may be made all the same.
func (q *entryQueue[E]) change(ctx context.Context, store entryStore[E], apply func(E) (E, bool, error)) error {
	for {
		c := &entryChange[E]{apply, make(chan error, 1)}
		q.add(c)
		select {
		case q.writing <- struct{}{}:
			if batch := q.drain(); len(batch) > 0 {
				q.write(ctx, store, batch)
			}
			<-q.writing
		case <-ctx.Done():
			return ctx.Err()
		}
		err := <-c.done // from this write, or an earlier one
		stopped := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
		if !stopped || ctx.Err() != nil { // otherwise the context of another caller ended
			return err
		}
	}
}

// write makes changes in one write, and retries until no other process interferes.
func (q *entryQueue[E]) write(ctx context.Context, store entryStore[E], batch []*entryChange[E]) {
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
			if q.entry, q.rev, err = store.read(ctx); err != nil {
				fail(err)
				return
			}
		}
		next, writes, doubt := q.entry, false, false
		for i, c := range batch {
			after, changed, err := c.apply(next)
			if errs[i] = err; changed {
				next, writes = after, true
			} else {
				doubt = true
			}
		}
		if q.known = fresh || !doubt; !q.known {
			continue // an outdated entry must not decide a refusal or a no-op
		}
		if !writes {
			return
		}
		rev, err := store.put(ctx, next, q.rev)
		switch {
		case err == nil:
			q.entry, q.rev = next, rev
			return
		case !errors.Is(err, ErrConflict) || ctx.Err() != nil:
			fail(errors.Join(err, ctx.Err()))
			return
		}
		q.known = false
	}
}
