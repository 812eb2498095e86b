package lifecycle

import (
	"fmt"
	"slices"
	"testing"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

func TestDeadlocks(t *testing.T) {
	for name, c := range map[string]struct {
		waits []waitsFor
		want  [][]string
	}{
		"none":                         {},
		"a chain that moves":           {waits: []waitsFor{{Ticket: "a", All: []string{"b"}}, {Ticket: "b", Any: []string{"c"}}}},
		"itself":                       {waits: []waitsFor{{Ticket: "a", All: []string{"a"}}}, want: [][]string{{"a"}}},
		"two that wait for each other": {waits: []waitsFor{{Ticket: "b", Any: []string{"a"}}, {Ticket: "a", All: []string{"b"}}}, want: [][]string{{"a", "b"}}},
		"a slot that comes free":       {waits: []waitsFor{{Ticket: "a", All: []string{"b"}}, {Ticket: "b", Any: []string{"a", "c"}}}},
		"one of all that does not end": {waits: []waitsFor{{Ticket: "a", All: []string{"b", "c"}}, {Ticket: "b", Any: []string{"a"}}},
			want: [][]string{{"a", "b"}}},
		"one that waits for a circle is not in it": {waits: []waitsFor{{Ticket: "a", All: []string{"b"}}, {Ticket: "b", Any: []string{"a"}}, {Ticket: "c", All: []string{"a"}}},
			want: [][]string{{"a", "b"}}},
		"two circles": {waits: []waitsFor{{Ticket: "a", All: []string{"b"}}, {Ticket: "b", Any: []string{"a"}}, {Ticket: "d", All: []string{"c"}}, {Ticket: "c", Any: []string{"d"}}},
			want: [][]string{{"a", "b"}, {"c", "d"}}},
	} {
		if got := deadlocks(c.waits); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
		slices.Reverse(c.waits)
		if got := deadlocks(c.waits); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s, the other way round: %v, want %v", name, got, c.want)
		}
	}
}

// heldBy is a handoff in the hands of a holder, pendingChild one that its parent waits for.
func heldBy(ticket, agent, holder string) *p.State {
	return &p.State{Ticket: ticket, Agent: agent, Holder: holder, Fence: 2, Phase: p.Working}
}

func pendingChild(parent string, n int, agent string) *p.State {
	s := &p.State{Ticket: p.ChildTicketN(parent, n), Agent: agent, Phase: p.Pending, Offer: 5, OfferedAt: t0, SubmittedAt: t0.Add(time.Duration(n))}
	s.Parent, s.N, s.Wait, s.Policy = parent, n+1, p.WaitBlock, p.DefaultPolicy()
	return s
}

func TestWaitGraph(t *testing.T) {
	one := p.NewTicket()
	two := p.NewTicket()
	suspended := func() *p.State {
		s := &p.State{Ticket: one, Agent: "a", Phase: p.Conditional}
		s.Children = &p.Children{Made: p.Bits("").With(0), Awaited: p.Bits("").With(0)}
		return s
	}
	slots := func(name, holder string, n int) *Directory {
		d := fleet(agent(name))
		d.Holders[holder] = p.Holder{ID: holder, Agent: name, LeaseMS: lease, Slots: n}
		return d
	}
	chained := func() *p.State {
		s := &p.State{Ticket: p.NewTicket(), Agent: "a", Phase: p.Pending, Offer: 9, OfferedAt: t0}
		s.ChainOf, s.Parent, s.N, s.Policy = p.ChildTicketN(one, 0), p.ChildTicketN(one, 0), 1, p.DefaultPolicy()
		return s
	}
	first := pendingChild(one, 0, "b")
	first.Closed, first.Phase, first.Outcome = true, p.Complete, p.OutcomeSuccess
	first.ReturnExpected = true
	first.Children = &p.Children{Made: p.Bits("").With(0), Next: 1}
	continued := pendingChild(one, 0, "a")
	continued.Wait = p.WaitContinue
	inSlot := pendingChild(one, 0, "a")
	inSlot.Wait = p.WaitSlot
	polls := func(most int) *Directory {
		profile := agent("a")
		profile.MaxConcurrency = most
		d := fleet(profile)
		d.Holders["w1"] = p.Holder{ID: "w1", Agent: "a", LeaseMS: lease, Slots: 1, Busy: 1, Polling: true, PolledAt: t0}
		return d
	}
	for name, c := range map[string]struct {
		d      *Directory
		states []*p.State
		after  time.Duration
		want   int
	}{
		"a child for the slot of its parent":           {slots("a", "w1", 1), []*p.State{heldBy(one, "a", "w1"), pendingChild(one, 0, "a")}, time.Hour, 1},
		"there is a slot more":                         {slots("a", "w1", 2), []*p.State{heldBy(one, "a", "w1"), pendingChild(one, 0, "a")}, time.Hour, 0},
		"the other slot is worked in":                  {slots("a", "w1", 2), []*p.State{heldBy(one, "a", "w1"), heldBy(two, "a", "w1"), pendingChild(one, 0, "a")}, time.Hour, 0},
		"it has just been offered":                     {slots("a", "w1", 1), []*p.State{heldBy(one, "a", "w1"), pendingChild(one, 0, "a")}, time.Second, 0},
		"its parent goes on meanwhile":                 {slots("a", "w1", 1), []*p.State{heldBy(one, "a", "w1"), continued}, time.Hour, 0},
		"its parent is suspended and holds no slot":    {slots("a", "w1", 1), []*p.State{suspended(), pendingChild(one, 0, "a")}, time.Hour, 0},
		"its parent's program waits in its slot":       {slots("a", "w1", 1), []*p.State{heldBy(one, "a", "w1"), inSlot}, time.Hour, 1},
		"its agent polls, and has one slot":            {polls(1), []*p.State{heldBy(one, "a", "w1"), pendingChild(one, 0, "a")}, time.Hour, 1},
		"its agent polls, and has two":                 {polls(2), []*p.State{heldBy(one, "a", "w1"), pendingChild(one, 0, "a")}, time.Hour, 0},
		"its agent has no worker":                      {fleet(agent("a")), []*p.State{heldBy(one, "a", "w1"), pendingChild(one, 0, "a")}, time.Hour, 0},
		"the chain of a child comes back for the slot": {slots("a", "w1", 1), []*p.State{heldBy(one, "a", "w1"), first, chained()}, time.Hour, 1},
	} {
		var g WaitGraph
		for _, s := range c.states {
			g.Add(s, t0.Add(c.after))
		}
		if got := g.Deadlocks(c.d); len(got) != c.want {
			t.Errorf("%s: %d deadlocks, want %d: %+v", name, len(got), c.want, got)
		}
	}
}

// A child for which a program waits is known as that, and what its package has counts no less.
func TestRecordedWait(t *testing.T) {
	busy := fleet(agent("b"))
	busy.Holders["w2"] = p.Holder{ID: "w2", Agent: "b", LeaseMS: lease, Slots: 1, Busy: 1}
	for own, want := range map[string]string{"": p.WaitSlot, p.WaitContinue: p.WaitSlot, p.WaitBlock: p.WaitBlock} {
		pkg := p.Package{Source: "a", Target: p.Target{Agent: "b"}, Type: p.Sequential}
		if own != "" {
			pkg.Type, pkg.Return = p.Delegation, &p.ReturnProtocol{Expected: true, Wait: own}
		}
		parent := *heldBy(p.NewTicket(), "a", "w1")
		child := ChildOf(parent, &p.HandedOff{Type: pkg.Type, Target: "b", Waits: true}, pkg)
		child.OnOpen = ""
		s := p.State{Summary: child, Agent: "b", Phase: p.Pending, Offer: 5, OfferedAt: t0, Policy: p.DefaultPolicy()}
		if due := DeadlockDue(s, busy); s.Wait != want || !due.Equal(t0.Add(AckTimeout(s))) || !KeepsSlotFor(parent, s) {
			t.Errorf("with %q its wait is %q, due %v", own, s.Wait, due)
		}
	}
	if due := DeadlockDue(p.State{Agent: "b", Phase: p.Pending, Offer: 5, OfferedAt: t0}, busy); !due.IsZero() {
		t.Errorf("what follows from nothing is due at %v", due)
	}
}

// Two families cross: each waits for the slot that the other has.
func TestCrossedDeadlock(t *testing.T) {
	one, two := p.NewTicket(), p.NewTicket()
	d := fleet(agent("a"), agent("b"))
	d.Holders["w1"] = p.Holder{ID: "w1", Agent: "a", LeaseMS: lease, Slots: 1}
	d.Holders["w2"] = p.Holder{ID: "w2", Agent: "b", LeaseMS: lease, Slots: 1}
	var g WaitGraph
	youngest := pendingChild(two, 7, "a")
	for _, s := range []*p.State{heldBy(one, "a", "w1"), heldBy(two, "b", "w2"), pendingChild(one, 0, "b"), youngest} {
		g.Add(s, t0.Add(time.Hour))
	}
	found := g.Deadlocks(d)
	if len(found) != 1 || len(found[0].Cycle) != 4 || len(found[0].Agents) != 2 || found[0].Youngest.Ticket != youngest.Ticket {
		t.Errorf("found %+v", found)
	}
}
