package lifecycle

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// A held handoff may wait for another one that it handed off, and keep its slot meanwhile. If the
// other one needs that very slot, or a slot whose holder waits likewise, neither ever continues. A
// supervisor searches for such a circle when an offer has waited long for an agent, and moves the
// youngest handoff in it to another agent.

// waitsFor is the set of handoffs that a handoff waits for. A handoff without one continues by
// itself: by work, by a clock or by a person.
type waitsFor struct {
	Ticket string
	All    []string // all of these must end
	Any    []string // one of these must end; empty is none
}

// deadlocks returns the circles in which handoffs wait for one another: sorted sets of tickets,
// none of which can continue before another one of its set. A ticket without an entry in waits
// continues.
func deadlocks(waits []waitsFor) [][]string {
	stuck := make(map[string]waitsFor, len(waits))
	for _, w := range waits {
		stuck[w.Ticket] = w
	}
	isStuck := func(ticket string) bool { _, is := stuck[ticket]; return is }
	for moved := true; moved; {
		moved = false
		for ticket, w := range stuck {
			if slices.ContainsFunc(w.All, isStuck) || len(w.Any) > 0 && !slices.ContainsFunc(w.Any, func(t string) bool { return !isStuck(t) }) {
				continue
			}
			delete(stuck, ticket)
			moved = true
		}
	}
	reach := make(map[string]map[string]bool, len(stuck))
	for ticket := range stuck {
		reach[ticket] = reachable(stuck, ticket)
	}
	var circles [][]string
	for _, ticket := range slices.Sorted(maps.Keys(stuck)) {
		if !reach[ticket][ticket] { // it waits for a circle, but is not part of it
			continue
		}
		var circle []string
		for other := range reach[ticket] {
			if reach[other][ticket] {
				circle = append(circle, other)
			}
		}
		if slices.Sort(circle); circle[0] == ticket {
			circles = append(circles, circle)
		}
	}
	return circles
}

// reachable returns the handoffs that one waits for, directly or indirectly.
func reachable(stuck map[string]waitsFor, from string) map[string]bool {
	seen := map[string]bool{}
	next := []string{from}
	for len(next) > 0 {
		w := stuck[next[0]]
		next = next[1:]
		for _, ticket := range slices.Concat(w.All, w.Any) {
			if _, is := stuck[ticket]; is && !seen[ticket] {
				seen[ticket] = true
				next = append(next, ticket)
			}
		}
	}
	return seen
}

// WaitGraph collects the waits between handoffs. The zero value is empty. It keeps nothing of a
// handoff that has no holder and waits for no other.
type WaitGraph struct {
	// Early also counts offers that have waited less than their acknowledge timeout. Such an offer may
	// be taken in a moment, and is then no deadlock.
	Early bool

	hands   map[string][]string // by holder: the handoffs that it holds
	awaited map[string][]string // by suspended ticket: the children that it waits for
	blocks  map[string][]string // by parent: open children for which it keeps its slot
	members map[string][]string // by group: its open members
	links   map[string][]string // by the first of a chain: the open handoffs that continue it
	groups  map[string]bool     // open groups of which all members must end
	pending map[string]*p.State // handoffs that others wait for, and that wait for a slot
	agents  map[string]string   // by held ticket
}

// Deadlock is a circle in which handoffs wait for one another.
type Deadlock struct {
	Cycle    []string // tickets
	Agents   []string // that have them, or should get them
	Youngest p.State  // of those that wait for a slot
}

// Add adds a handoff. now is the instant for which the graph is evaluated.
func (g *WaitGraph) Add(s *p.State, now time.Time) {
	if g.hands == nil {
		*g = WaitGraph{g.Early, map[string][]string{}, map[string][]string{}, map[string][]string{}, map[string][]string{},
			map[string][]string{}, map[string]bool{}, map[string]*p.State{}, map[string]string{}}
	}
	if HasEnded(*s) {
		return
	}
	if keepsSlot(s) {
		g.blocks[s.Parent] = append(g.blocks[s.Parent], s.Ticket)
	}
	if s.Closed {
		return
	}
	if s.Group != "" {
		g.members[s.Group] = append(g.members[s.Group], s.Ticket)
	}
	if s.ChainOf != "" {
		g.links[s.ChainOf] = append(g.links[s.ChainOf], s.Ticket)
	}
	switch {
	case s.Aggregate != nil:
		g.groups[s.Ticket] = s.Aggregate.Mode == p.AggregateAll
	case s.Held():
		g.hands[s.Holder] = append(g.hands[s.Holder], s.Ticket)
		g.agents[s.Ticket] = s.Agent
	case isSuspended(*s):
		for _, n := range s.Children.Awaited.Without(s.Children.Closed).Numbers() {
			g.awaited[s.Ticket] = append(g.awaited[s.Ticket], s.ChildTicket(n))
		}
	case waitsForSlot(s) && (s.N > 0 || s.ChainOf != "") && (g.Early || hasPassed(now, s.OfferedAt.Add(AckTimeout(*s)))):
		kept := *s
		g.pending[s.Ticket] = &kept
	}
}

// keepsSlot reports whether the parent of a child keeps its slot while it waits for the child.
func keepsSlot(s *p.State) bool {
	return s.N > 0 && s.Group == "" && (s.Wait == p.WaitBlock || s.Wait == p.WaitSlot)
}

// DeadlockDue returns when a handoff that waits for a slot may be part of a deadlock. Zero is
// never: no other handoff waits for it, or its agent has a free slot.
func DeadlockDue(s p.State, d *Directory) time.Time {
	if _, waited := WaitedBy(s); !waited || !waitsForSlot(&s) || d == nil {
		return time.Time{}
	}
	live, slots, busy := d.Load(s.Agent)
	profile, _ := d.Agent(s.Agent)
	if _, polls := d.Polled(s.Agent); profile.MaxConcurrency == 0 && (live == 0 || polls || busy < slots) {
		return time.Time{}
	}
	return s.OfferedAt.Add(AckTimeout(s))
}

// WaitedBy returns the handoff that may wait for the end of this one: its group, the first of its
// chain, or its parent.
func WaitedBy(s p.State) (ticket string, waited bool) {
	switch {
	case s.Group != "":
		return s.Group, true
	case s.ChainOf != "":
		return s.ChainOf, true
	case s.N > 0 && s.Wait != "":
		return s.Parent, true
	}
	return "", false
}

// KeepsSlotFor reports whether an agent holds a handoff, and keeps its slot until a child ends.
func KeepsSlotFor(parent, child p.State) bool {
	return parent.Held() && parent.Ticket == child.Parent && keepsSlot(&child)
}

// waitsForSlot reports whether the handoff has an offer that no holder has taken.
func waitsForSlot(s *p.State) bool {
	return s.Phase == p.Pending && s.Offer != 0 && !s.Held() && s.Agent != p.Human && !s.CancelRequested
}

// Deadlocks returns the circles among the added handoffs, with the agents of d.
func (g *WaitGraph) Deadlocks(d *Directory) []Deadlock {
	if len(g.pending) == 0 || d == nil {
		return nil
	}
	var all []Deadlock
	for _, cycle := range deadlocks(g.waits(d)) {
		found := Deadlock{Cycle: cycle}
		for _, ticket := range cycle {
			if agent := g.agents[ticket]; agent != "" && !slices.Contains(found.Agents, agent) {
				found.Agents = append(found.Agents, agent)
			}
			if s := g.pending[ticket]; s != nil {
				if !slices.Contains(found.Agents, s.Agent) {
					found.Agents = append(found.Agents, s.Agent)
				}
				if found.Youngest.Ticket == "" || cmp.Or(s.SubmittedAt.Compare(found.Youngest.SubmittedAt), cmp.Compare(s.Ticket, found.Youngest.Ticket)) > 0 {
					found.Youngest = *s
				}
			}
		}
		if found.Youngest.Ticket != "" {
			all = append(all, found)
		}
	}
	return all
}

// waits returns the edges of the graph.
func (g *WaitGraph) waits(d *Directory) []waitsFor {
	var all []waitsFor
	add := func(ticket string, everyOne, anyOne []string) {
		if len(everyOne)+len(anyOne) > 0 {
			all = append(all, waitsFor{ticket, everyOne, anyOne})
		}
	}
	for ticket := range g.agents {
		add(ticket, g.blocks[ticket], nil)
	}
	for ticket, children := range g.awaited {
		add(ticket, children, nil)
	}
	for ticket, whole := range g.groups {
		if whole {
			add(ticket, g.members[ticket], nil)
		} else {
			add(ticket, nil, g.members[ticket])
		}
	}
	for first, links := range g.links {
		if g.pending[first] == nil && g.agents[first] == "" {
			add(first, links, nil)
		}
	}
	for ticket, s := range g.pending {
		add(ticket, nil, g.slotsOf(s.Agent, d))
	}
	return all
}

// slotsOf returns the handoffs in the slots of an agent if all are taken; nil if one may be free.
func (g *WaitGraph) slotsOf(agent string, d *Directory) []string {
	live, slots, _ := d.Load(agent)
	profile, _ := d.Agent(agent)
	limit := profile.MaxConcurrency
	_, polls := d.Polled(agent)
	if limit == 0 && (live == 0 || polls) {
		return nil
	}
	var served, held []string
	for id, tickets := range g.hands {
		for _, ticket := range tickets {
			if g.agents[ticket] != agent {
				continue
			}
			held = append(held, ticket)
			if d.Holders[id].Serves() {
				served = append(served, ticket)
			}
		}
	}
	switch {
	case limit > 0 && len(held) >= limit:
		return held
	case live > 0 && !polls && len(served) >= slots:
		return served
	}
	return nil
}

// BreakDeadlock moves a handoff out of a circle: to a fit agent outside of it, else to an
// authority. The step is empty if the handoff no longer waits for a slot.
func BreakDeadlock(s p.State, q Query, found Deadlock) (Step, error) {
	if s.Closed || !waitsForSlot(&s) || s.Offer != found.Youngest.Offer {
		return Step{}, nil
	}
	cycle := found.Cycle
	if len(cycle) > p.DeadlockMax {
		cycle = cycle[:p.DeadlockMax]
	}
	q.Reserved = q.Reserved.and(found.Agents)
	return decideAfter(s, q, &p.Deadlocked{Meta: p.Meta{At: q.Now, By: By}, Agent: s.Agent, Cycle: cycle})
}

// stepDeadlock moves a handoff that was taken out of a circle. It never returns to the queue, where
// it would continue to wait.
func stepDeadlock(s p.State, q Query, meta p.Meta) []p.Event {
	why := because(ReasonDeadlock, s)
	if !escalatesAtOnce(s, q) && s.Denied == "" {
		if events := reroute(s, q, meta, why); events != nil {
			return events
		}
		why = notRerouted(s, why)
	}
	return escalate(s, q, meta, why)
}

func staleDeadlocked(s *p.State, e *p.Deadlocked) string {
	if s.Agent != e.Agent || !waitsForSlot(s) {
		return fmt.Sprintf("it no longer waits for a slot of %s", e.Agent)
	}
	return ""
}

func applyDeadlocked(s *p.State, _ *p.Deadlocked) {
	s.TimedOut, s.Reason, s.Message = p.ClockQueue, ReasonDeadlock, ""
	endProbe(s)
	endQueueClock(s)
	endAttempt(s)
}
