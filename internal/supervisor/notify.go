package supervisor

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// notifier reports ends to the handoffs that they concern: the end of a child to its parent, the
// end of a return or a chain to its first handoff. It gathers the reports for a handoff, then
// reconciles it.
type notifier struct {
	s *Supervisor

	mu      sync.Mutex
	waiting map[string]*notification // by the ticket of the receiver
	now     chan struct{}            // signals an entry in waiting
}

// notification has the reports for a handoff: closed children, and whether to reconcile it because
// its return or its chain has ended.
type notification struct {
	closedChildren []protocol.ChildClosed
	reconcile      bool
	done           []func()
}

func newNotifier(s *Supervisor) *notifier {
	return &notifier{s: s, waiting: map[string]*notification{}, now: make(chan struct{}, 1)}
}

// notifyRelatives records reports of a state: of a closed child for its parent, of a return's end
// for its origin, of a chain's end for its first handoff. It returns the function to call instead
// of done; done is called once all of them are reconciled.
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
	calls := int32(1 + len(others)) // one for the handoff itself, and one for each relative
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
	signal(n.now)
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

// signal leaves a signal in a channel with room for one, unless one waits there.
func signal(to chan<- struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// everyTick calls do at intervals, until ctx ends.
func everyTick(ctx context.Context, interval time.Duration, do func()) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			do()
		}
	}
}

// gathered waits for a signal, and then for the interval in which more is gathered.
func gathered(ctx context.Context, signal <-chan struct{}, interval time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-signal:
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(interval):
	}
	return nil
}

// run reconciles the handoffs that have notifications, until ctx ends.
func (n *notifier) run(ctx context.Context) error {
	for {
		if err := gathered(ctx, n.now, notifyInterval); err != nil {
			return err
		}
		n.mu.Lock()
		all := n.waiting
		n.waiting = map[string]*notification{}
		n.mu.Unlock()
		for _, ticket := range slices.Sorted(maps.Keys(all)) { // sorted, so that a simulation is repeatable
			news := all[ticket]
			n.s.enqueue(ctx, request{ticket: ticket, closedChildren: news.closedChildren, andItself: news.reconcile, done: func() {
				for _, done := range news.done {
					done()
				}
			}})
		}
	}
}
