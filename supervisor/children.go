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

// family sees to the children of a handoff: that they exist, that it knows of
// those that closed, and that they end where they shall. What goes wrong with one
// of the three does not keep it from the others.
func (s *Supervisor) family(ctx context.Context, head broker.Head, duties lifecycle.Duties) error {
	var failed []error
	if duties.Children && !s.kept.has(head.State) {
		ended, err := s.b.EnsureChildren(ctx, head)
		if duties.Mark && len(ended) > 0 {
			err = errors.Join(err, s.mark(ctx, head, ended))
		}
		if err == nil {
			s.kept.add(head.State)
		}
		failed = append(failed, err)
	}
	if duties.CancelChildren {
		failed = append(failed, s.b.CancelChildren(ctx, head, lifecycle.By, "its parent was cancelled, or needs it no more"))
	}
	return errors.Join(failed...)
}

// mark records the ends of children at their parent. A child whose return its
// parent had waited for is looked at then: its return is delivered.
func (s *Supervisor) mark(ctx context.Context, head broker.Head, ends []protocol.ChildClosed) error {
	before := head.State
	head, appended, err := s.b.UpdateFrom(ctx, head, func(h broker.Head, d *lifecycle.Directory, now time.Time) ([]protocol.Event, error) {
		return lifecycle.MarkChildren(h.State, d, ends, now), nil
	})
	if err != nil {
		return err
	}
	if appended {
		s.logDecision(before, head)
	}
	if head.State.Children == nil || head.State.Aggregate != nil {
		return nil
	}
	// Also where it was not us who marked them: whoever did may have died then.
	for _, end := range ends {
		if !head.State.Children.Closed.Has(end.N) {
			continue
		}
		child, err := s.b.Head(ctx, protocol.ChildTicketN(head.Ticket, end.N), 0)
		if err == nil && lifecycle.Owes(child.State) {
			err = s.afterEnd(ctx, child)
		}
		if err != nil && !errors.Is(err, broker.ErrNotFound) && !broker.Unreadable(err) {
			return err
		}
	}
	return nil
}

// kept remembers of which handoffs the children were looked after, so that a look
// at a group of a thousand does not read a thousand heads each time: children that
// exist do not go away, and the follower is told of each that closes. Only what
// closed before a handoff began to wait for it must be found by reading. Losing
// this memory costs reads and nothing else.
type kept struct {
	mu  sync.Mutex
	all map[string]cared
}

// cared is for which children, and for which wait, it was done.
type cared struct {
	made      protocol.Bits
	after     protocol.Bits // begin with its result
	suspended time.Time     // when the handoff began to wait for them
	cancelled bool          // since their end was asked for
	closed    bool          // since it closed itself, which settles the returns that it did not wait for
}

// keptMax bounds the memory: 100,000 handoffs with children take some 30 MB.
const keptMax = 100_000

func newKept() *kept { return &kept{all: map[string]cared{}} }

func caredOf(s protocol.State) cared {
	c := cared{made: s.Children.Made, after: s.Children.After, cancelled: s.CancelChildren, closed: s.Closed && s.Aggregate == nil}
	if s.Phase == protocol.Conditional && s.Children.Awaited != "" {
		c.suspended = s.ConditionedAt
	}
	return c
}

func (k *kept) has(s protocol.State) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.all[s.Ticket] == caredOf(s)
}

func (k *kept) add(s protocol.State) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.all) >= keptMax {
		clear(k.all)
	}
	k.all[s.Ticket] = caredOf(s)
}

func (k *kept) forget(ticket string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.all, ticket)
}

// kin finds, by what one pass sees, children that were recorded and never
// submitted, and children that have closed of which a parent that waits does not
// know: a parent says which children it has, and each child's own head shows that
// it is there. Asking for every child of every parent would cost a read each. A
// child is matched with its parent as soon as both were seen, so that only the
// unmatched take memory.
type kin struct {
	awaited map[uuid.UUID]relation // children that have not come by
	seen    map[uuid.UUID]bool     // children whose parent has not come by: whether they are closed
	unsure  map[uuid.UUID]struct{} // parents of which one does not know that it has closed
}

// relation is a child as its parent has it.
type relation struct {
	parent uuid.UUID
	known  bool // that it has closed
	marks  bool // its end is to be recorded
}

func newKin() *kin {
	return &kin{awaited: map[uuid.UUID]relation{}, seen: map[uuid.UUID]bool{}, unsure: map[uuid.UUID]struct{}{}}
}

func (k *kin) see(s protocol.State) {
	if s.N == 0 && s.Children == nil {
		return
	}
	id, err := uuid.Parse(s.Ticket)
	if err != nil {
		return
	}
	if s.N > 0 {
		if r, awaited := k.awaited[id]; awaited {
			delete(k.awaited, id)
			k.match(r, s.Closed)
		} else {
			k.seen[id] = s.Closed
		}
	}
	if s.Children == nil {
		return
	}
	marks := lifecycle.DutiesOf(s).Mark
	k.children(s, s.Children.Made.And(s.Children.Closed), relation{parent: id, known: true})
	k.children(s, s.Children.Made.Without(s.Children.Closed), relation{parent: id, marks: marks})
}

func (k *kin) children(s protocol.State, those protocol.Bits, r relation) {
	for _, n := range those.Numbers() {
		child, err := uuid.Parse(protocol.ChildTicketN(s.Ticket, n))
		if err != nil {
			continue
		}
		if closed, there := k.seen[child]; there {
			delete(k.seen, child)
			k.match(r, closed)
		} else {
			k.awaited[child] = r
		}
	}
}

func (k *kin) match(r relation, closed bool) {
	if closed && r.marks {
		k.unsure[r.parent] = struct{}{}
	}
}

// parents are those with a child that the pass has not seen, or of whose end
// they do not know.
func (k *kin) parents() []string {
	parents := map[string]struct{}{}
	for _, r := range k.awaited {
		if !r.known {
			parents[r.parent.String()] = struct{}{}
		}
	}
	for parent := range k.unsure {
		parents[parent.String()] = struct{}{}
	}
	return slices.Sorted(maps.Keys(parents))
}
