package supervisor

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// reconcileFamily makes sure that a handoff's children exist, that it knows of those that closed,
// and that those to be cancelled end. An error in one part does not prevent the others.
func (s *Supervisor) reconcileFamily(ctx context.Context, head broker.Head, duties lifecycle.Duties) error {
	var failed []error
	if duties.Children && !s.childCache.has(head.State) {
		ended, err := s.b.EnsureChildren(ctx, head)
		if duties.Mark && len(ended) > 0 {
			err = errors.Join(err, s.markChildren(ctx, head, ended))
		}
		if err == nil {
			s.childCache.add(head.State)
		}
		failed = append(failed, err)
	}
	if duties.CancelChildren {
		failed = append(failed, s.b.CancelChildren(ctx, head, lifecycle.By, "its parent was cancelled, or no longer needs it"))
	}
	return errors.Join(failed...)
}

// markChildren records the ends of children at their parent.
func (s *Supervisor) markChildren(ctx context.Context, head broker.Head, ends []protocol.ChildClosed) error {
	_, _, err := s.update(ctx, head, func(h broker.Head, q lifecycle.Query) (lifecycle.Step, error) {
		return lifecycle.MarkChildren(h.State, q, ends)
	})
	return err
}

// childCache holds the handoffs whose children were checked, so that one reconcile of a group of a
// thousand does not read a thousand heads each time. Children are never removed, and the notifier
// reports each that closes; only those that closed before the wait began must be read. Losing the
// cache only costs reads.
type childCache struct {
	mu     sync.Mutex
	checks map[string]childCheck
}

// childCheck is the part of a state on which a check depends.
type childCheck struct {
	made      protocol.Bits
	after     protocol.Bits // submitted with the handoff's result
	received  protocol.Bits // children whose ends a worker has received
	suspended time.Time     // when the handoff began to wait for them
	cancelled bool          // since the children were to be cancelled
	closed    bool          // since it closed: ends that no worker received are then sent elsewhere
}

// childCacheMax bounds the memory: 100,000 handoffs with children take about 30 MB.
const childCacheMax = 100_000

func newChildCache() *childCache { return &childCache{checks: map[string]childCheck{}} }

func childCheckOf(s protocol.State) childCheck {
	c := childCheck{made: s.Children.Made, after: s.Children.After, received: s.Children.Received, cancelled: s.CancelChildren, closed: s.Closed && s.Aggregate == nil}
	if s.Phase == protocol.Conditional && s.Children.Awaited != "" {
		c.suspended = s.ConditionedAt
	}
	return c
}

func (c *childCache) has(s protocol.State) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.checks[s.Ticket] == childCheckOf(s)
}

func (c *childCache) add(s protocol.State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.checks) >= childCacheMax {
		clear(c.checks)
	}
	c.checks[s.Ticket] = childCheckOf(s)
}

func (c *childCache) forget(ticket string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.checks, ticket)
}

// familyMatcher finds, by the heads of one sweep, children that were recorded and never submitted,
// and closed children that a waiting parent does not know of. Reading every child of every parent
// would cost a read each. A child is matched with its parent as soon as both were seen: only
// unmatched ones take memory.
type familyMatcher struct {
	expected   map[uuid.UUID]expectedChild // children that were not seen yet
	seen       map[uuid.UUID]bool          // children whose parent was not seen yet, and whether they have ended
	uninformed map[uuid.UUID]struct{}      // parents that do not know of a closed child
}

// expectedChild is the parent's record of a child.
type expectedChild struct {
	parent      uuid.UUID
	closedKnown bool // the parent knows of its end
	marksClose  bool // the parent must record its end
}

func newFamilyMatcher() *familyMatcher {
	return &familyMatcher{expected: map[uuid.UUID]expectedChild{}, seen: map[uuid.UUID]bool{}, uninformed: map[uuid.UUID]struct{}{}}
}

func (k *familyMatcher) add(s protocol.State) {
	if s.N == 0 && s.Children == nil {
		return
	}
	id, err := uuid.Parse(s.Ticket)
	if err != nil {
		return
	}
	if s.N > 0 {
		if r, awaited := k.expected[id]; awaited {
			delete(k.expected, id)
			k.match(r, lifecycle.HasEnded(s))
		} else {
			k.seen[id] = lifecycle.HasEnded(s)
		}
	}
	if s.Children == nil {
		return
	}
	marks := lifecycle.DutiesOf(s).Mark
	k.addChildren(s, s.Children.Made.And(s.Children.Closed), expectedChild{parent: id, closedKnown: true})
	k.addChildren(s, s.Children.Made.Without(s.Children.Closed), expectedChild{parent: id, marksClose: marks})
}

func (k *familyMatcher) addChildren(s protocol.State, those protocol.Bits, r expectedChild) {
	for _, n := range those.Numbers() {
		child, err := uuid.Parse(s.ChildTicket(n))
		if err != nil {
			continue
		}
		if closed, there := k.seen[child]; there {
			delete(k.seen, child)
			k.match(r, closed)
		} else {
			k.expected[child] = r
		}
	}
}

func (k *familyMatcher) match(r expectedChild, closed bool) {
	if closed && r.marksClose {
		k.uninformed[r.parent] = struct{}{}
	}
}

// incompleteParents returns the parents with a child that the sweep has not seen, or whose end they
// do not know.
func (k *familyMatcher) incompleteParents() []string {
	parents := map[string]struct{}{}
	for _, r := range k.expected {
		if !r.closedKnown {
			parents[r.parent.String()] = struct{}{}
		}
	}
	for parent := range k.uninformed {
		parents[parent.String()] = struct{}{}
	}
	return slices.Sorted(maps.Keys(parents))
}

// suspectDeadlock requests a sweep for circles if a handoff keeps its slot for one that has waited
// long in a queue.
func (s *Supervisor) suspectDeadlock(ctx context.Context, head broker.Head) error {
	_, keepsSlot, err := broker.WaitersOf(ctx, s.b.Head, head.State)
	if err == nil && keepsSlot {
		signal(s.suspects)
	}
	return err
}

// resolveDeadlocks requests the resolution of the circles that a sweep has found.
func (s *Supervisor) resolveDeadlocks(ctx context.Context, waits *lifecycle.WaitGraph) {
	directory, err := s.b.Directory(ctx)
	if err != nil {
		return // the next sweep finds them again
	}
	for _, found := range waits.Deadlocks(directory) {
		s.enqueue(ctx, request{ticket: found.Youngest.Ticket, deadlock: &found, childrenSwept: true})
	}
}

// breakDeadlock takes the youngest handoff out of a circle. A sweep reads one head after the other,
// and some handoffs may have moved on before it read the last. So the circle is read again; if it
// no longer exists, the next sweep decides.
func (s *Supervisor) breakDeadlock(ctx context.Context, r *request) error {
	var waits lifecycle.WaitGraph
	var youngest broker.Head
	for _, ticket := range r.deadlock.Cycle {
		head, err := s.b.Head(ctx, ticket, 0)
		if err != nil {
			return err
		}
		if waits.Add(&head.State, s.b.Now()); ticket == r.ticket {
			youngest = head
		}
	}
	directory, err := s.b.Directory(ctx)
	if err != nil {
		return err
	}
	for _, found := range waits.Deadlocks(directory) {
		if found.Youngest.Ticket != r.ticket {
			continue
		}
		head, appended, err := s.update(ctx, youngest, func(h broker.Head, q lifecycle.Query) (lifecycle.Step, error) {
			return lifecycle.BreakDeadlock(h.State, q, found)
		})
		if err != nil || !appended {
			return err
		}
		return s.reconcileOpen(ctx, head, &request{ticket: r.ticket, childrenSwept: true})
	}
	return nil
}
