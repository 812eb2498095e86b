package supervisor

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// follower turns ledger events into looks. An event after which the core has
// something to say, now or within the hold, is looked at at once. Any other is held for a moment, one
// for each ticket: most handoffs have moved on, or closed, by then. What an append
// calls for its writer says as a rule (lifecycle.AttentionOf); where it does not,
// the state is read and the core asked.
type follower struct {
	s       *Supervisor
	watched bool          // somebody counts what comes
	early   time.Duration // what is due so soon is let go of along with what is due

	mu    sync.Mutex
	held  map[string]heldEvent // the newest event of each ticket that waits
	order []waiting            // in the order they came; the hold is the same for all
	wake  chan struct{}        // order is not empty any more

	news   map[string]*news // for handoffs that are to be told of others, by ticket
	toTell chan struct{}    // news is not empty any more
}

// news is what a handoff is told of its children, or of its return.
type news struct {
	ends []protocol.ChildClosed
	done []func()
}

type heldEvent struct {
	seq  uint64
	done func()
	// missing are the children of a closed handoff that have not come by yet. Once
	// they have, it needs no look.
	missing protocol.Bits
}

type waiting struct {
	ticket string
	seq    uint64
	until  time.Time
}

func newFollower(s *Supervisor) *follower {
	return &follower{s: s, watched: s.cfg.Watch != (unwatched{}), early: s.cfg.Hold / 50, held: map[string]heldEvent{}, wake: make(chan struct{}, 1),
		news: map[string]*news{}, toTell: make(chan struct{}, 1)}
}

// take is called for every event of the ledger that falls to this supervisor.
func (f *follower) take(ctx context.Context, e broker.Entry, done func()) {
	if err := f.s.guard(e.Ticket, func() error { f.takeEntry(ctx, e, done); return nil }); err != nil {
		done() // a pass comes by again
	}
}

func (f *follower) takeEntry(ctx context.Context, e broker.Entry, done func()) {
	if word, ended, ok := e.Attention.Ended(); ok {
		e.Attention, done = word, f.endedOffer(ctx, e, ended, done)
	}
	if !f.watched && f.believe(e, done) {
		return
	}
	state, err := f.read(e)
	if err != nil {
		// Nothing can be decided about it, and it cannot be read next time either.
		f.s.unread(e.Ticket, e.Seq, err)
		done()
		return
	}
	f.s.readable(e.Ticket, e.Seq)
	if f.watched && f.believe(e, done) { // whoever watches has had it
		return
	}
	if !f.overtake(e.Ticket, e.Seq) {
		done() // an older one, delivered again
		return
	}
	done = f.relatives(state, done)
	if state.N > 0 {
		f.arrived(state.Parent, state.N-1)
	}
	duties := lifecycle.DutiesOf(state)
	if state.Closed {
		switch {
		case f.s.owes(ctx, state):
			f.s.enqueue(ctx, look{ticket: e.Ticket, done: done})
		case duties.Children && !f.s.kept.has(state) && state.Children.Made.Without(state.Children.Closed) != "":
			// As a rule whoever closed it submits them at once.
			f.hold(e, heldEvent{done: done, missing: state.Children.Made.Without(state.Children.Closed)})
		default:
			done()
		}
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
	soon := lifecycle.NextLook(state, now).Before(now.Add(f.s.cfg.Hold))                // a wake-up that must be armed before the hold is over
	began := state.Phase == protocol.Conditional && duties.Mark && !f.s.kept.has(state) // to wait for children, which may have closed before
	if err != nil || len(events) > 0 || soon || began {
		f.s.enqueue(ctx, look{ticket: e.Ticket, done: done})
		return
	}
	f.hold(e, heldEvent{done: done})
}

// believe deals with an append of which its writer says that nothing is due. False
// is that the core must be asked: nothing is said, or it was true for a while and
// that is over.
func (f *follower) believe(e broker.Entry, done func()) bool {
	switch e.Attention {
	case lifecycle.AttentionNone:
		f.overtake(e.Ticket, e.Seq)
		done()
		return true
	case lifecycle.AttentionLater:
		if f.s.b.Now().Add(f.s.cfg.Hold).After(e.At.Add(lifecycle.AttentionSpan)) {
			return false
		}
		if f.overtake(e.Ticket, e.Seq) {
			f.hold(e, heldEvent{done: done})
		} else {
			done() // an older one, delivered again
		}
		return true
	}
	return false
}

// read decodes an entry's state, and its events only where somebody counts them.
func (f *follower) read(e broker.Entry) (protocol.State, error) {
	if !f.watched {
		return broker.StateOf(e)
	}
	record, err := broker.RecordOf(e)
	if err == nil {
		f.s.cfg.Watch.Followed(e, record)
	}
	return record.State, err
}

// arrived lets go of a closed handoff whose children have all come by: most do
// within a moment, and then nobody need ask for them.
func (f *follower) arrived(parent string, n int) {
	f.mu.Lock()
	held, ok := f.held[parent]
	if !ok || held.missing == "" {
		f.mu.Unlock()
		return
	}
	held.missing = held.missing.Without(protocol.Bits("").With(n))
	if f.held[parent] = held; held.missing != "" {
		f.mu.Unlock()
		return
	}
	delete(f.held, parent)
	f.mu.Unlock()
	held.done()
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

func (f *follower) hold(e broker.Entry, event heldEvent) {
	event.seq = e.Seq
	f.mu.Lock()
	f.held[e.Ticket] = event
	f.order = append(f.order, waiting{ticket: e.Ticket, seq: e.Seq, until: time.Now().Add(f.s.cfg.Hold)})
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

// next takes the first waiting event off the order if its time has come, or nearly:
// else a timer would be set for each of thousands a second. An empty look means that
// it was overtaken.
func (f *follower) next(now time.Time) (l look, wait time.Duration, any bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.order) == 0 {
		f.order = nil // let the array go after a burst
		return look{}, 0, false
	}
	first := f.order[0]
	if wait := first.until.Sub(now); wait > f.early {
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

// relatives notes what an event is news of to another handoff: to the parent
// that a child has closed, to a handoff what became of its return. The event is
// done when both looks are.
func (f *follower) relatives(state protocol.State, done func()) func() {
	parent, origin := lifecycle.TellsParent(state), lifecycle.TellsOrigin(state)
	if !parent && !origin {
		return done
	}
	var left atomic.Int32
	finish := func() {
		if left.Add(-1) == 0 {
			done()
		}
	}
	left.Store(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	if parent {
		left.Add(1)
		n := f.newsFor(state.Parent)
		n.ends = append(n.ends, protocol.ChildClosed{N: state.N - 1, Outcome: state.Outcome})
		n.done = append(n.done, finish)
	}
	if origin {
		left.Add(1)
		n := f.newsFor(state.ReturnOf)
		n.done = append(n.done, finish)
	}
	select {
	case f.toTell <- struct{}{}:
	default:
	}
	return finish
}

func (f *follower) newsFor(ticket string) *news {
	n := f.news[ticket]
	if n == nil {
		n = &news{}
		f.news[ticket] = n
	}
	return n
}

// tellEvery is how long news is gathered: a group of a thousand members that
// close together takes a few appends and not a thousand.
const tellEvery = 30 * time.Millisecond

// tell looks at the handoffs that there is news for, until ctx ends.
func (f *follower) tell(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-f.toTell:
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(tellEvery):
		}
		f.mu.Lock()
		all := f.news
		f.news = map[string]*news{}
		f.mu.Unlock()
		for _, ticket := range slices.Sorted(maps.Keys(all)) { // a simulation repeats it
			n := all[ticket]
			f.s.enqueue(ctx, look{ticket: ticket, ends: n.ends, done: func() {
				for _, done := range n.done {
					done()
				}
			}})
		}
	}
}
