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
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// reconcileFamily sees to the children of a handoff: that they exist, that it knows of
// those that closed, and that they end where they shall. What goes wrong with one
// of the three does not keep it from the others.
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
		failed = append(failed, s.b.CancelChildren(ctx, head, lifecycle.By, "its parent was cancelled, or needs it no more"))
	}
	return errors.Join(failed...)
}

// markChildren records the ends of children at their parent.
func (s *Supervisor) markChildren(ctx context.Context, head broker.Head, ends []protocol.ChildClosed) error {
	before := head.State
	head, appended, err := s.b.UpdateFrom(ctx, head, func(h broker.Head, d *lifecycle.Directory, now time.Time) (lifecycle.Step, error) {
		return lifecycle.MarkChildren(h.State, d, ends, now)
	})
	if err != nil {
		return err
	}
	if appended {
		s.logDecision(before, head)
	}
	return nil
}

// childCache holds the handoffs whose children were checked, so that one reconcile of a group of a
// thousand does not read a thousand heads each time. Children do not go away, and the notifier
// reports each that closes; only those that closed before the wait began must be read. To lose the
// cache costs reads and nothing else.
type childCache struct {
	mu     sync.Mutex
	checks map[string]childCheck
}

// childCheck is the children, and the wait, of a check.
type childCheck struct {
	made      protocol.Bits
	after     protocol.Bits // begin with its result
	received  protocol.Bits // whose ends a worker of the handoff got
	suspended time.Time     // when the handoff began to wait for them
	cancelled bool          // since their end was asked for
	closed    bool          // since it closed itself: ends that no worker of it got go elsewhere
}

// childCacheMax bounds the memory: 100,000 handoffs with children take some 30 MB.
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
// and closed children that a waiting parent does not know of. To read every child of every parent
// would cost a read each. A child is matched with its parent as soon as both were seen: only
// unmatched ones take memory.
type familyMatcher struct {
	expected   map[uuid.UUID]expectedChild // children that have not come by
	seen       map[uuid.UUID]bool          // children whose parent has not come by: whether they have ended
	uninformed map[uuid.UUID]struct{}      // parents of which one does not know that it has closed
}

// expectedChild is a child as its parent has it.
type expectedChild struct {
	parent      uuid.UUID
	closedKnown bool // that it has closed
	marksClose  bool // its end is to be recorded
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

// incompleteParents are those with a child that the sweep has not seen, or of whose end they do not
// know.
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
