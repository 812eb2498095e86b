package supervisor

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// hop is a closed handoff of a relay that handed off to one other.
func hop(ticket, parent string) protocol.State {
	s := protocol.State{Ticket: ticket, Phase: protocol.Complete, Closed: true, Outcome: protocol.OutcomeSuccess,
		Children: &protocol.Children{Count: 1, Made: protocol.AllBits(1)}}
	if parent != "" {
		s.Parent, s.N = parent, 1
	}
	return s
}

// A sweep over a long relay keeps hardly anything in memory, for a hop and its
// child come by one behind the other; and it finds the one child that is missing.
func TestKinOfALongRelay(t *testing.T) {
	const hops = 200_000
	k, most, begun := newFamilyMatcher(), 0, time.Now()
	ticket, parent := protocol.NewTicket(), ""
	for i := range hops {
		if i != hops/2 { // it was never submitted: so that nothing follows from it, the relay begins anew
			k.add(hop(ticket, parent))
			parent, ticket = ticket, protocol.ChildTicketN(ticket, 0)
		} else {
			parent, ticket = "", protocol.NewTicket()
		}
		most = max(most, len(k.expected)+len(k.seen))
	}
	k.add(protocol.State{Ticket: ticket, Phase: protocol.Pending, Summary: protocol.Summary{Parent: parent, N: 1}})
	t.Logf("%d hops took %v", hops, time.Since(begun))
	if most > 2 || len(k.incompleteParents()) != 1 {
		t.Errorf("%d unmatched at most, %d parents to reconcile; want 2 and 1", most, len(k.incompleteParents()))
	}
}

// In whatever order heads come by, a sweep finds exactly the parents
// that lack a child, or wait for one and do not know that it has closed.
func TestKinInAnyOrder(t *testing.T) {
	for seed := range uint64(200) {
		chance := rand.New(rand.NewPCG(seed, 0))
		var heads []protocol.State
		want := map[string]bool{}
		for p := range 10 {
			parent := protocol.State{Ticket: protocol.TicketForKey("p", fmt.Sprint(seed, p)), Phase: protocol.Conditional,
				Children: &protocol.Children{Count: 5, Made: protocol.AllBits(5), Awaited: protocol.AllBits(5)}}
			waits := chance.IntN(2) == 0
			if !waits {
				parent.Phase, parent.Children.Awaited, parent.Holder, parent.Fence = protocol.Working, "", "h", 1
			}
			for n := range 5 {
				child := protocol.State{Ticket: protocol.ChildTicketN(parent.Ticket, n), Phase: protocol.Pending,
					Summary: protocol.Summary{Parent: parent.Ticket, N: n + 1}}
				if child.Closed = chance.IntN(2) == 0; child.Closed {
					child.Phase, child.Outcome = protocol.Complete, protocol.OutcomeSuccess
				}
				known := child.Closed && chance.IntN(8) > 0
				if known {
					parent.Children.Closed = parent.Children.Closed.With(n)
				}
				absent := chance.IntN(16) == 0
				switch {
				case absent && !known, !absent && child.Closed && !known && waits:
					want[parent.Ticket] = true
				}
				if !absent {
					heads = append(heads, child)
				}
			}
			heads = append(heads, parent)
		}
		chance.Shuffle(len(heads), func(i, j int) { heads[i], heads[j] = heads[j], heads[i] })
		k := newFamilyMatcher()
		for _, s := range heads {
			k.add(s)
		}
		got := k.incompleteParents()
		if len(got) != len(want) {
			t.Errorf("seed %d: %d parents to reconcile, want %d", seed, len(got), len(want))
		}
		for parent := range want {
			if !slices.Contains(got, parent) {
				t.Errorf("seed %d: %s was not found", seed, parent)
			}
		}
	}
}
