package supervisor

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// notifier tells handoffs of others: a parent that its child has closed, a handoff that its
// return or its chain has ended. It gathers what it has to tell each of them, and reconciles them.
type notifier struct {
	s *Supervisor

	mu      sync.Mutex
	waiting map[string]*notification // by the ticket of the receiver
	now     chan struct{}            // waiting is not empty any more
}

// notification is the news for a handoff: of its children, or of its return or its chain, for
// which it is reconciled.
type notification struct {
	closedChildren []protocol.ChildClosed
	reconcile      bool
	done           []func()
}

func newNotifier(s *Supervisor) *notifier {
	return &notifier{s: s, waiting: map[string]*notification{}, now: make(chan struct{}, 1)}
}

// notifyRelatives notes what a state means to another handoff: a closed child to its parent, the end
// of a return to the handoff that it belongs to, the end of a chain to the first of it. It returns what is to be called instead of
// done: done is called when all of them are reconciled.
func (n *notifier) notifyRelatives(state protocol.State, done func()) func() {
	parent := lifecycle.NotifiesParent(state)
	var others []string
	if lifecycle.NotifiesOrigin(state) {
		others = append(others, state.ReturnOf)
	}
	if lifecycle.NotifiesChain(state) {
		others = append(others, state.ChainOf)
	}
	if lifecycle.NotifiesCaller(state) {
		others = append(others, state.CallOf)
	}
	calls := int32(1 + len(others)) // of the handoff itself, and of each relative
	if parent {
		calls++
	}
	if calls == 1 {
		return done
	}
	finish := afterCalls(calls, done)
	n.mu.Lock()
	defer n.mu.Unlock()
	if parent {
		news := n.notificationFor(state.Parent)
		news.closedChildren = append(news.closedChildren, lifecycle.ChildEnd(state))
		news.done = append(news.done, finish)
	}
	for _, ticket := range others {
		news := n.notificationFor(ticket)
		news.reconcile = true
		news.done = append(news.done, finish)
	}
	select {
	case n.now <- struct{}{}:
	default:
	}
	return finish
}

func (n *notifier) notificationFor(ticket string) *notification {
	news := n.waiting[ticket]
	if news == nil {
		news = &notification{}
		n.waiting[ticket] = news
	}
	return news
}

// notifyInterval is how long notifications are gathered: a group of a thousand members that close
// together takes a few appends and not a thousand.
const notifyInterval = 30 * time.Millisecond

// run reconciles the handoffs that have notifications, until ctx ends.
func (n *notifier) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-n.now:
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(notifyInterval):
		}
		n.mu.Lock()
		all := n.waiting
		n.waiting = map[string]*notification{}
		n.mu.Unlock()
		for _, ticket := range slices.Sorted(maps.Keys(all)) { // a simulation repeats it
			news := all[ticket]
			n.s.enqueue(ctx, request{ticket: ticket, closedChildren: news.closedChildren, andItself: news.reconcile, done: func() {
				for _, done := range news.done {
					done()
				}
			}})
		}
	}
}
