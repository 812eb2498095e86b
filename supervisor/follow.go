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

// follower turns ledger events into reconciles. An event on which the core acts now, or within the
// hold, is reconciled at once. Any other is held for a moment, one for each ticket: most handoffs
// have moved on, or closed, by then. The writer of an append says as a rule what it calls for
// (lifecycle.AttentionOf); where it does not, the state is read and the core asked.
type follower struct {
	s        *Supervisor
	hasWatch bool          // a Watch counts the entries
	slack    time.Duration // what is due so soon is let go of along with what is due

	mu          sync.Mutex
	held        map[string]heldEvent // the newest event of each ticket that waits
	order       []heldTicket         // in the order they came; the hold is the same for all
	holdStarted chan struct{}        // order is not empty any more

	notifications map[string]*notification // by the ticket of the receiver
	notifyNow     chan struct{}            // notifications is not empty any more
}

// notification is the news for a handoff: of its children, or of its return.
type notification struct {
	closedChildren []protocol.ChildClosed
	returnEnded    bool
	done           []func()
}

type heldEvent struct {
	seq  uint64
	done func()
	// missingChildren are the children of a closed handoff that have not come by yet. Once
	// they have, it needs no reconcile.
	missingChildren protocol.Bits
}

type heldTicket struct {
	ticket string
	seq    uint64
	until  time.Time
}

func newFollower(s *Supervisor) *follower {
	return &follower{s: s, hasWatch: s.cfg.Watch != (noWatch{}), slack: s.cfg.Hold / 50, held: map[string]heldEvent{}, holdStarted: make(chan struct{}, 1),
		notifications: map[string]*notification{}, notifyNow: make(chan struct{}, 1)}
}

// handle is called for every event of the ledger that falls to this supervisor.
func (f *follower) handle(ctx context.Context, e broker.Entry, done func()) {
	if err := f.s.recoverPanic(e.Ticket, func() error { f.handleEntry(ctx, e, done); return nil }); err != nil {
		done() // a sweep finds it
	}
}

func (f *follower) handleEntry(ctx context.Context, e broker.Entry, done func()) {
	if word, ended, ok := e.Attention.Ended(); ok {
		e.Attention, done = word, f.removeEndedOffer(ctx, e, ended, done)
	}
	if !f.hasWatch && f.applyAttention(e, done) {
		return
	}
	state, err := f.read(e)
	if err != nil {
		// Nothing can be decided about it, and it cannot be read next time either.
		f.s.noteUnreadable(e.Ticket, e.Seq, err)
		done()
		return
	}
	f.s.noteReadable(e.Ticket, e.Seq)
	if f.hasWatch && f.applyAttention(e, done) { // the Watch has had it
		return
	}
	if !f.supersede(e.Ticket, e.Seq) {
		done() // an older one, delivered again
		return
	}
	done = f.notifyRelatives(state, done)
	if state.N > 0 {
		f.childClosed(state.Parent, state.N-1)
	}
	duties := lifecycle.DutiesOf(state)
	if state.Closed {
		switch {
		case f.s.hasPendingDuties(ctx, state):
			f.s.enqueue(ctx, request{ticket: e.Ticket, done: done})
		case duties.Children && !f.s.childCache.has(state) && state.Children.Made.Without(state.Children.Closed) != "":
			// As a rule the closing worker submits them at once.
			f.hold(e, heldEvent{done: done, missingChildren: state.Children.Made.Without(state.Children.Closed)})
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
	step, err := decide(state, directory, now)
	soon := lifecycle.NextReconcile(state, now).Before(now.Add(f.s.cfg.Hold))                 // a wake-up that must be armed before the hold is over
	began := state.Phase == protocol.Conditional && duties.Mark && !f.s.childCache.has(state) // to wait for children, which may have closed before
	if err != nil || len(step.Events) > 0 || soon || began {
		f.s.enqueue(ctx, request{ticket: e.Ticket, done: done})
		return
	}
	f.hold(e, heldEvent{done: done})
}

// applyAttention deals with an append of which its writer says that nothing is due. False
// is that the core must be asked: nothing is said, or it was true for a while and
// that is over.
func (f *follower) applyAttention(e broker.Entry, done func()) bool {
	switch e.Attention {
	case lifecycle.AttentionNone:
		f.supersede(e.Ticket, e.Seq)
		done()
		return true
	case lifecycle.AttentionLater:
		if f.s.b.Now().Add(f.s.cfg.Hold).After(e.At.Add(lifecycle.AttentionSpan)) {
			return false
		}
		if f.supersede(e.Ticket, e.Seq) {
			f.hold(e, heldEvent{done: done})
		} else {
			done() // an older one, delivered again
		}
		return true
	}
	return false
}

// read decodes an entry's state, and its events only where a Watch counts them.
func (f *follower) read(e broker.Entry) (protocol.State, error) {
	if !f.hasWatch {
		return broker.StateOf(e)
	}
	record, err := broker.RecordOf(e)
	if err == nil {
		f.s.cfg.Watch.Followed(e, record)
	}
	return record.State, err
}

// childClosed lets go of a closed handoff whose children have all come by: most do
// within a moment, and then no head need be read.
func (f *follower) childClosed(parent string, n int) {
	f.mu.Lock()
	held, ok := f.held[parent]
	if !ok || held.missingChildren == "" {
		f.mu.Unlock()
		return
	}
	held.missingChildren = held.missingChildren.Without(protocol.Bits("").With(n))
	if f.held[parent] = held; held.missingChildren != "" {
		f.mu.Unlock()
		return
	}
	delete(f.held, parent)
	f.mu.Unlock()
	held.done()
}

// supersede lets go of an older event of the ticket. It is false when a newer
// one is held already.
func (f *follower) supersede(ticket string, seq uint64) bool {
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
	f.order = append(f.order, heldTicket{ticket: e.Ticket, seq: e.Seq, until: time.Now().Add(f.s.cfg.Hold)})
	f.mu.Unlock()
	select {
	case f.holdStarted <- struct{}{}:
	default:
	}
}

// reconcileHeld reconciles the events that were held long enough, until ctx ends.
func (f *follower) reconcileHeld(ctx context.Context) error {
	for {
		l, wait, any := f.next(time.Now())
		switch {
		case !any:
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-f.holdStarted:
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
// else a timer would be set for each of thousands a second. An empty request means that
// it was overtaken.
func (f *follower) next(now time.Time) (r request, wait time.Duration, any bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.order) == 0 {
		f.order = nil // let the array go after a burst
		return request{}, 0, false
	}
	first := f.order[0]
	if wait := first.until.Sub(now); wait > f.slack {
		return request{}, wait, true
	}
	f.order = f.order[1:]
	event, ok := f.held[first.ticket]
	if !ok || event.seq != first.seq {
		return request{}, 0, true
	}
	delete(f.held, first.ticket)
	return request{ticket: first.ticket, onlyAt: first.seq, done: event.done}, 0, true
}

// notifyRelatives notes what an event means to another handoff: a closed child to its parent, the end
// of a return to the handoff that it belongs to. The event is done when both are reconciled.
func (f *follower) notifyRelatives(state protocol.State, done func()) func() {
	parent, origin := lifecycle.NotifiesParent(state), lifecycle.NotifiesOrigin(state)
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
		n := f.notificationFor(state.Parent)
		n.closedChildren = append(n.closedChildren, protocol.ChildClosed{N: state.N - 1, Outcome: state.Outcome})
		n.done = append(n.done, finish)
	}
	if origin {
		left.Add(1)
		n := f.notificationFor(state.ReturnOf)
		n.returnEnded = true
		n.done = append(n.done, finish)
	}
	select {
	case f.notifyNow <- struct{}{}:
	default:
	}
	return finish
}

func (f *follower) notificationFor(ticket string) *notification {
	n := f.notifications[ticket]
	if n == nil {
		n = &notification{}
		f.notifications[ticket] = n
	}
	return n
}

// notifyInterval is how long notifications are gathered: a group of a thousand members that close
// together takes a few appends and not a thousand.
const notifyInterval = 30 * time.Millisecond

// notify reconciles the handoffs that have notifications, until ctx ends.
func (f *follower) notify(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-f.notifyNow:
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(notifyInterval):
		}
		f.mu.Lock()
		all := f.notifications
		f.notifications = map[string]*notification{}
		f.mu.Unlock()
		for _, ticket := range slices.Sorted(maps.Keys(all)) { // a simulation repeats it
			n := all[ticket]
			f.s.enqueue(ctx, request{ticket: ticket, closedChildren: n.closedChildren, returnEnded: n.returnEnded, done: func() {
				for _, done := range n.done {
					done()
				}
			}})
		}
	}
}
