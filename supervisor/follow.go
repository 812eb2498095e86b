package supervisor

import (
	"context"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// follower turns ledger events into looks. An event after which the core has
// something to say, now or within the hold, is looked at at once. Any other is held for a moment, one
// for each ticket: most handoffs have moved on, or closed, by then.
type follower struct {
	s *Supervisor

	mu    sync.Mutex
	held  map[string]heldEvent // the newest event of each ticket that waits
	order []waiting            // in the order they came; the hold is the same for all
	wake  chan struct{}        // order is not empty any more
}

type heldEvent struct {
	seq  uint64
	done func()
}

type waiting struct {
	ticket string
	seq    uint64
	until  time.Time
}

func newFollower(s *Supervisor) *follower {
	return &follower{s: s, held: map[string]heldEvent{}, wake: make(chan struct{}, 1)}
}

// take is called for every event of the ledger that falls to this supervisor.
func (f *follower) take(ctx context.Context, e broker.Entry, done func()) {
	_, state, err := protocol.DecodeState(e.Body, e.Seq)
	if err != nil {
		// Nothing can be decided about it, and it will not decode next time either.
		f.s.log.Error("ledger entry does not decode; passed over", "ticket", e.Ticket, "seq", e.Seq, "err", err)
		done()
		return
	}
	if !f.overtake(e.Ticket, e.Seq) {
		done() // an older one, delivered again
		return
	}
	if state.Closed {
		done()
		return
	}
	directory, err := f.s.b.Directory(ctx)
	if err != nil {
		return // not done: delivered again
	}
	now := time.Now()
	if e.At.After(now) {
		now = e.At
	}
	if state.UpdatedAt.After(now) {
		now = state.UpdatedAt
	}
	events, err := decide(state, directory, now)
	soon := lifecycle.NextLook(state, now).Before(now.Add(f.s.cfg.Hold)) // a wake-up that must be armed before the hold is over
	if err != nil || len(events) > 0 || soon {
		f.s.enqueue(ctx, look{ticket: e.Ticket, done: done})
		return
	}
	f.hold(e.Ticket, e.Seq, done)
}

// overtake lets go of an older event of the ticket. It is false when a newer
// one is held already.
func (f *follower) overtake(ticket string, seq uint64) bool {
	f.mu.Lock()
	older, ok := f.held[ticket]
	if ok && older.seq >= seq {
		f.mu.Unlock()
		return false
	}
	delete(f.held, ticket)
	f.mu.Unlock()
	if ok {
		older.done()
	}
	return true
}

func (f *follower) hold(ticket string, seq uint64, done func()) {
	f.mu.Lock()
	f.held[ticket] = heldEvent{seq: seq, done: done}
	f.order = append(f.order, waiting{ticket: ticket, seq: seq, until: time.Now().Add(f.s.cfg.Hold)})
	f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// release looks at what was held long enough, until ctx ends.
func (f *follower) release(ctx context.Context) error {
	for {
		l, wait, any := f.next(time.Now())
		switch {
		case !any:
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-f.wake:
			}
		case wait > 0:
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(wait):
			}
		case l.ticket != "":
			f.s.enqueue(ctx, l)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// next takes the first waiting event off the order if its time has come. An
// empty look means that it was overtaken.
func (f *follower) next(now time.Time) (l look, wait time.Duration, any bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.order) == 0 {
		f.order = nil // let the array go after a burst
		return look{}, 0, false
	}
	first := f.order[0]
	if wait := first.until.Sub(now); wait > 0 {
		return look{}, wait, true
	}
	f.order = f.order[1:]
	event, ok := f.held[first.ticket]
	if !ok || event.seq != first.seq {
		return look{}, 0, true
	}
	delete(f.held, first.ticket)
	return look{ticket: first.ticket, onlyAt: first.seq, done: event.done}, 0, true
}
