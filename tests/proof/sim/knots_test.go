//go:build proof

package sim

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// Planted bugs of deadlocks.
const (
	knotKept   bug = "a deadlock found and not broken"
	knotFalse  bug = "a long wait broken as a deadlock"
	knotUntold bug = "a wait in a slot that is not recorded"
)

func init() { bugs = append(bugs, knotUntold) }

// The agents that wait in their only slot for what they hand off, in every fourth simulation.
const (
	tie = "tie"
	bow = "bow"

	knotAck      = 8 * time.Second
	knotPrefix   = "knot "
	knotBrokenIn = 2*knotAck + settledAfter/2 // after peace
)

func (l *simulation) hasKnots() bool { return l.seed%4 == 1 || l.circling() }

// circling reports whether the planted bug is one of circles: its simulations have little else.
func (l *simulation) circling() bool {
	return l.bug == savedKept || l.bug == roundsForgot || l.bug == returnUnhinged
}

// knotWork makes the two agents equivalent to all others, or to each other alone: what is taken out
// of a deadlock of both has to go up then.
func (l *simulation) knotWork() string {
	return []string{"work", "knots"}[l.seed/4%2]
}

// planKnot makes some packages ones whose handoffs wait for each other's slots. Each letter of the
// description is an agent that the work is handed off to, one after the other.
func (l *simulation) planKnot(p *protocol.Package, d uint64) {
	if !l.hasKnots() || d%5 > 1 {
		return
	}
	ways := []string{"b", "t", "bt", "tb", "bbt"}
	first := []string{tie, bow}[d>>8%2]
	if i := d >> 16 % 8; i < uint64(len(ways)) && !l.circling() {
		*p = l.knot(first, ways[i], *p)
	} else {
		first, task := l.planRing(d >> 24)
		*p = l.knot(first, "", *p)
		p.Task.Description = task
		if l.bug == savedKept { // the fourth round of a long ring is deeper than a lineage is by default
			deep := int64(protocol.MaxDepthMax)
			p.Limits, p.Constraints.Deadline = &protocol.Limits{MaxDepth: &deep}, protocol.Time{}
		}
	}
	p.Type, p.Return = "", nil
}

// knot is a package of a handoff that waits in its slot for the next one of the way.
func (l *simulation) knot(to, way string, from protocol.Package) protocol.Package {
	wait := knotAck.Milliseconds()
	p := l.newPackage(0, to)
	p.Type, p.Return = protocol.Delegation, &protocol.ReturnProtocol{Expected: true, TimeoutMS: 1_800_000, Wait: protocol.WaitBlock}
	p.Task.Description, p.Policy.AckTimeoutMS = knotPrefix+way, &wait
	p.Limits, p.Constraints.Deadline = from.Limits, from.Constraints.Deadline
	return p
}

func isKnot(of worker.Handoff) bool {
	return strings.HasPrefix(of.Package.Task.Description, knotPrefix) || isBounced(of)
}

// tangle hands off what follows, and waits for it without giving the slot back.
func (h *handler) tangle(ctx context.Context, of worker.Handoff) (protocol.Result, error) {
	way := strings.TrimPrefix(of.Package.Task.Description, knotPrefix)
	done := protocol.Result{Body: []byte(`"untied"`)}
	if isBounced(of) && h.l.faultsOn() {
		return h.bounce(ctx, of)
	}
	length, at, ring := ringAt(of.Package.Task.Description)
	if ring && (h.l.faultsOn() || h.l.bug == savedKept) { // a long ring takes longer than the faults
		return h.goRound(ctx, of, length, at)
	}
	if way == "" || h.agent != tie && h.agent != bow || !h.l.faultsOn() || of.Package.Returned != nil {
		select {
		case <-time.After(time.Duration(h.dice(of, "knot")%4_000_000) * time.Microsecond):
			return done, nil
		case <-ctx.Done():
			return protocol.Result{}, context.Cause(ctx)
		}
	}
	if of.Package.Task.Description == bounceTask {
		return h.bounce(ctx, of)
	}
	to := tie
	if way[0] == 'b' {
		to = bow
	}
	next := h.l.knot(to, way[1:], protocol.Package{})
	if h.l.bug == knotUntold {
		next.Return.Wait = protocol.WaitContinue
	}
	ticket, err := of.HandOff(ctx, next)
	if err == nil {
		h.l.judge.waitsInSlot(ticket)
		_, err = of.Wait(ctx, ticket)
	}
	if err != nil && !isBarred(err) {
		return protocol.Result{}, err
	}
	return done, nil
}

// circle is a set of handoffs that wait for one another, as the judge sees it.
type circle struct {
	youngest string // that waits for a slot
	agents   map[string]bool
	since    time.Time
}

// knotsKnown are the circles that stand by their tickets, and all that ever stood.
type knotsKnown struct {
	awaited map[string]bool // tickets for which a program has begun to wait in its slot
	stand   map[string]circle
	stood   map[string][]circle
}

// waitsInSlot notes that a program waits for a handoff in its slot.
func (j *judge) waitsInSlot(ticket string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.knots.awaited == nil {
		j.knots.awaited = map[string]bool{}
	}
	j.knots.awaited[ticket] = true
}

// waiting tells whether a handoff waits for a slot of its agent.
func waiting(s protocol.State) bool {
	return s.Phase == protocol.Pending && s.Offer != 0 && !s.Held() && s.N > 0 && s.Agent != protocol.Human && !s.CancelRequested
}

// seeKnots notes the circles that stand now.
func (j *judge) seeKnots() {
	if !j.l.hasKnots() {
		return
	}
	if j.knots.stood == nil {
		j.knots.stood = map[string][]circle{}
	}
	stand := map[string]circle{}
	// A supervisor counts a holder that is gone until it knows: such circles may be broken, too.
	for key, c := range j.circles(true) {
		if !slices.ContainsFunc(j.knots.stood[key], func(s circle) bool { return s.youngest == c.youngest }) {
			j.knots.stood[key] = append(j.knots.stood[key], c)
		}
	}
	for key, c := range j.circles(false) {
		if before, stood := j.knots.stand[key]; stood && before.youngest == c.youngest {
			c.since = before.since
		} else {
			j.knots.stood[key] = append(j.knots.stood[key], c)
		}
		stand[key] = c
	}
	j.knots.stand = stand
}

// circles are the circles among what waits for slots and for children, by their tickets. gone counts
// holders that are gone and have lost nothing yet.
func (j *judge) circles(gone bool) map[string]circle {
	all := map[string]circle{}
	after := j.waits(gone)
	for from := range after {
		ahead := reach(after, from)
		if !ahead[from] {
			continue
		}
		c := circle{agents: map[string]bool{}, since: time.Now()}
		var tickets []string
		for _, ticket := range slices.Sorted(maps.Keys(ahead)) {
			if !reach(after, ticket)[from] {
				continue
			}
			s := j.heads[ticket].state
			tickets, c.agents[s.Agent] = append(tickets, ticket), true
			if y := j.heads[c.youngest].state; waiting(s) && (c.youngest == "" || !s.SubmittedAt.Before(y.SubmittedAt)) {
				c.youngest = ticket
			}
		}
		all[strings.Join(tickets, " ")] = c
	}
	return all
}

// waits is what each handoff that cannot go on waits for.
func (j *judge) waits(gone bool) map[string][]string {
	after, slots, hands := map[string][]string{}, map[string]int{}, map[string][]string{}
	for _, p := range j.presence {
		if p.holder.Serves() && !time.Now().After(p.until) {
			slots[p.holder.Agent] += p.holder.Slots
		}
	}
	var wait []protocol.State
	for ticket, h := range j.heads {
		s := h.state
		if s.Closed {
			continue
		}
		if parent := j.heads[s.Parent].state; s.N > 0 && s.Group == "" && (s.Wait == protocol.WaitBlock || j.knots.awaited[ticket]) && parent.Held() {
			after[s.Parent] = append(after[s.Parent], ticket)
		}
		if p := j.presence[s.Holder]; s.Held() && (gone || p != nil && p.holder.Serves() && !time.Now().After(p.until)) {
			hands[s.Agent] = append(hands[s.Agent], ticket)
		}
		if waiting(s) {
			wait = append(wait, s)
		}
	}
	for _, s := range wait {
		if n := len(hands[s.Agent]); n > 0 && n >= slots[s.Agent] {
			after[s.Ticket] = hands[s.Agent]
		}
	}
	for moved := true; moved; { // what waits for a slot goes on with any, what waits for children with all
		moved = false
		for ticket, others := range after {
			goesOn := func(other string) bool { return after[other] == nil }
			if free := slices.ContainsFunc(others, goesOn); waiting(j.heads[ticket].state) && free || !slices.ContainsFunc(others, func(o string) bool { return !goesOn(o) }) {
				delete(after, ticket)
				moved = true
			}
		}
	}
	return after
}

// reach is what a handoff waits for, directly or not.
func reach(after map[string][]string, from string) map[string]bool {
	seen := map[string]bool{}
	for next := slices.Clone(after[from]); len(next) > 0; next = next[1:] {
		if !seen[next[0]] && after[next[0]] != nil {
			seen[next[0]] = true
			next = append(next, after[next[0]]...)
		}
	}
	return seen
}

// checkKnot: only the youngest of a circle that stood is taken out of it, to an agent outside of it.
func (j *judge) checkKnot(after protocol.State, events []protocol.Event) {
	var broken *protocol.Deadlocked
	to := ""
	for _, e := range events {
		switch e := e.(type) {
		case *protocol.Deadlocked:
			broken = e
		case *protocol.Rerouted:
			to = e.To
		case *protocol.Escalated:
			to = e.To
		case *protocol.Gated:
			to = e.Agent
		}
	}
	if broken == nil {
		return
	}
	j.l.untied.Add(1)
	tickets := slices.Sorted(slices.Values(broken.Cycle))
	var stood []circle // a supervisor may not know yet that a holder is gone, whose slot it counts then
	for key, all := range j.knots.stood {
		if !slices.ContainsFunc(strings.Fields(key), func(t string) bool { return !slices.Contains(tickets, t) }) {
			stood = append(stood, all...)
		}
	}
	i := slices.IndexFunc(stood, func(c circle) bool { return c.youngest == after.Ticket })
	switch {
	case len(stood) == 0:
		j.faultLocked("%s is taken out of a deadlock of %v, which never stood", after.Ticket, tickets)
	case i < 0:
		j.faultLocked("%s is taken out of a deadlock of %v, and is not the youngest there", after.Ticket, tickets)
	case to == "" || stood[i].agents[to]:
		j.faultLocked("%s is taken out of a deadlock of %v, and goes to %q", after.Ticket, stood[i].agents, to)
	}
}

// checkKnots: after peace no deadlock stands for longer than sweeps take.
func (j *judge) checkKnots() {
	j.seeKnots()
	for tickets, c := range j.knots.stand {
		if j.l.since() > faultsFor+knotBrokenIn && time.Since(c.since) > knotBrokenIn {
			j.faultLocked("%s wait for one another since %v", tickets, c.since.Sub(epoch))
		}
	}
}

// tieKnots leaves deadlocks as they are, or breaks what is none.
func (f *faultyBroker) tieKnots(ctx context.Context, head broker.Head, decide broker.Decider) (broker.Head, bool, error) {
	return f.Broker.Update(ctx, head, func(h broker.Head, q lifecycle.Query) (lifecycle.Step, error) {
		step, err := decide(h, q)
		if err != nil {
			return step, err
		}
		if len(step.Events) == 0 {
			if f.bug == knotFalse && waiting(h.State) && q.Now.Sub(h.State.OfferedAt) > lifecycle.AckTimeout(h.State) {
				cycle := []string{h.State.Parent, h.State.Ticket}
				return lifecycle.BreakDeadlock(h.State, q, lifecycle.Deadlock{Cycle: cycle, Youngest: h.State})
			}
			return step, nil
		}
		if _, broken := step.Events[0].(*protocol.Deadlocked); broken && f.bug == knotKept {
			return lifecycle.Step{}, nil
		}
		return step, nil
	})
}
