//go:build proof

package process

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	trail "github.com/agenthandoff/handoff/internal/audit"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// handoffHistory is one handoff as the ledger tells it, from its first entry to its last.
type handoffHistory struct {
	ticket   string
	state    protocol.State // replayed
	hash     string         // of the last entry
	closings int
	holder   string   // who accepted or took it last
	fence    uint64   // and the sequence of that
	children []string // tickets, as promised
	redriven string
	members  int
	log      []string // when, after its submission, what happened
	// refused counts rejections and denials, moved what came of them.
	refused, moved int
}

// lostLease is a lost lease.
type lostLease struct {
	ticket, holder string
	fence          uint64
	at             time.Time
}

// audit is all of the ledger, read once and applied event by event.
type audit struct {
	t        *testing.T
	stories  map[string]*handoffHistory
	entries  int
	events   map[protocol.EventType]int
	outcomes map[protocol.Outcome]int
	began    map[protocol.EventType]int // a holder got a handoff by it
	ended    map[protocol.EventType]int // a holder lost it, or let it go, by it
	// from is, for closing and for moving on, the phases they happened in.
	from      map[protocol.EventType]map[protocol.Phase]int
	failures  map[string]int // by code
	reasons   map[string]int // of closing without success
	losses    []lostLease
	parked    map[uint64]string // by fence: the holder
	released  map[uint64]bool   // fences that were given back
	offers    map[string]int    // by reason
	asked     int               // conditions that need an answer
	answered  int               // of those
	denied    int               // answers
	unrefused int               // reroutes by a person, and from an absent agent
	timedOut  int               // clocks, but for those of claims that were not acknowledged
	succeeded int               // groups
}

func readRelay(t *testing.T, ctx context.Context, b *broker.Broker) *audit {
	t.Helper()
	a := &audit{t: t, stories: map[string]*handoffHistory{}, events: map[protocol.EventType]int{}, outcomes: map[protocol.Outcome]int{},
		began: map[protocol.EventType]int{}, ended: map[protocol.EventType]int{}, from: map[protocol.EventType]map[protocol.Phase]int{},
		failures: map[string]int{}, reasons: map[string]int{}, offers: map[string]int{}, parked: map[uint64]string{}, released: map[uint64]bool{}}
	err := b.Entries(ctx, broker.From(1), func(e broker.Entry) error {
		change, err := broker.DecodeChange(e)
		if err == nil {
			a.read(e.Ticket, change)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	report, err := trail.VerifyLedger(ctx, b, nil, trail.CheckWriters)
	if err != nil {
		t.Fatal(err)
	}
	if report.Found != 0 || report.Entries != uint64(a.entries) {
		t.Errorf("the ledger does not verify: %+v", report)
	}
	for _, s := range a.stories {
		a.outcomes[s.state.Outcome]++
	}
	return a
}

// read replays one entry, and compares what comes of it with the state that it holds.
func (a *audit) read(ticket string, c protocol.Change) {
	s := a.stories[ticket]
	if s == nil {
		s = &handoffHistory{ticket: ticket}
		a.stories[ticket] = s
	}
	a.entries++
	s.state.PrevHash = s.hash
	for _, e := range c.Record.Events {
		before := s.state
		after, err := lifecycle.ApplyAll(before, []protocol.Event{e})
		if err != nil {
			a.t.Errorf("%s at %d: %v", ticket, c.Seq, err)
			return
		}
		s.state = after
		a.count(s, c.Seq, before, after, e)
	}
	s.state.Bind(c.Seq)
	s.hash = c.Hash
	replayed, _ := json.Marshal(s.state)
	stored, _ := json.Marshal(c.Record.State)
	if string(replayed) != string(stored) {
		a.t.Errorf("%s at %d: the replay gives\n%s, the ledger has\n%s", ticket, c.Seq, replayed, stored)
	}
	a.bounds(s.state, c.Seq)
}

// count takes note of one event, and of what it did to the handoff's holder.
func (a *audit) count(s *handoffHistory, seq uint64, before, after protocol.State, event protocol.Event) {
	kind := event.EventType()
	a.events[kind]++
	s.log = append(s.log, fmt.Sprintf("%v %s", event.When().Sub(after.SubmittedAt).Round(time.Millisecond), kind))
	if before.Fence != 0 && after.Fence != before.Fence {
		a.ended[kind]++
	}
	if after.Fence != 0 && after.Fence != before.Fence {
		a.began[kind]++
		s.fence, s.holder = seq, after.Holder
	}
	if a.from[kind] == nil {
		a.from[kind] = map[protocol.Phase]int{}
	}
	a.from[kind][before.Phase]++
	a.refusals(s, before, event)
	switch e := event.(type) {
	case *protocol.Submitted:
		if e.Summary.Aggregate != nil {
			s.members = e.Summary.Aggregate.Size
		}
	case *protocol.Completed:
		s.closings++
		if e.Fence != s.fence || e.By != s.holder {
			a.t.Errorf("%s at %d: completed by %s under fence %d; it was last taken by %s, %d", s.ticket, seq, e.By, e.Fence, s.holder, s.fence)
		}
	case *protocol.Closed, *protocol.RolledBack, *protocol.LateResultUsed:
		s.closings++
	case *protocol.HandedOff:
		s.children = append(s.children, e.Ticket)
	case *protocol.Redriven:
		s.redriven = e.Ticket
	case *protocol.LeaseLost:
		if e.Fence != 0 {
			a.losses = append(a.losses, lostLease{s.ticket, e.Holder, e.Fence, e.At})
		}
	case *protocol.Released:
		a.released[e.Fence] = true
	case *protocol.ResultParked:
		if a.parked[e.Fence] != "" {
			a.t.Errorf("%s at %d: the result of fence %d was parked twice", s.ticket, seq, e.Fence)
		}
		a.parked[e.Fence] = e.Holder
	}
	a.sort(before, event)
}

// refusals counts, for one handoff, what checkSums compares for all.
func (a *audit) refusals(s *handoffHistory, before protocol.State, event protocol.Event) {
	switch e := event.(type) {
	case *protocol.Rejected:
		s.refused++
	case *protocol.Answered:
		if e.Answer.Deny {
			s.refused++
		}
	case *protocol.Rerouted:
		if !e.Manual && before.Phase == protocol.PhaseRejected {
			s.moved++
		}
	case *protocol.Escalated, *protocol.Closed:
		if before.Phase == protocol.PhaseRejected {
			s.moved++
		}
	}
}

// sort counts events by more than their type, as the sums need it.
func (a *audit) sort(before protocol.State, event protocol.Event) {
	switch e := event.(type) {
	case *protocol.Offered:
		a.offers[e.Reason]++
	case *protocol.Failed:
		a.failures[e.Code]++
		if e.Code != "handler" && e.Code != "panic" {
			a.t.Logf("failed with %s: %s", e.Code, e.Message)
		}
	case *protocol.Closed:
		if e.Outcome == protocol.OutcomeSuccess {
			a.succeeded++
		} else {
			a.reasons[e.Reason]++
		}
	case *protocol.Conditioned:
		if len(e.NeedsContext)+len(e.NeedsPermission) > 0 {
			a.asked++
		}
	case *protocol.Answered:
		if before.Phase == protocol.Conditional { // else an escalation
			a.answered++
		}
		if e.Answer.Deny { // of an escalation, too: an answer that came second, when the first had sent it up
			a.denied++
		}
	case *protocol.Rerouted:
		if e.Manual || before.Phase != protocol.PhaseRejected {
			a.unrefused++
		}
	case *protocol.TimedOut: // three workers may be killed between their claim and its acknowledgement
		if e.Clock != protocol.ClockAcknowledge {
			a.timedOut++
		}
	}
}

// bounds checks what no handoff may exceed, whatever happens to it.
func (a *audit) bounds(s protocol.State, seq uint64) {
	if s.Attempt > s.Policy.MaxAttempts || s.Reroutes > s.Policy.MaxReroutes || s.EscalationLevel > s.Policy.MaxEscalations ||
		s.Escalations > protocol.EscalationsTotalMax || s.ConditionRounds > s.Policy.MaxConditions+1 {
		a.t.Errorf("%s at %d: attempt %d, %d reroutes, level %d, %d escalations, %d questions", s.Ticket, seq,
			s.Attempt, s.Reroutes, s.EscalationLevel, s.Escalations, s.ConditionRounds)
	}
}

// check compares the ledger with itself, with what the driver submitted, and
// with what the crew did.
func (a *audit) check(r *relayDriver, c *relayWorkers) {
	a.t.Helper()
	for _, s := range a.stories {
		if !s.state.Closed || s.closings != 1 {
			a.t.Errorf("%s closed %d times; it is %s with %s, attempt %d", s.ticket, s.closings, s.state.Phase, s.state.Agent, s.state.Attempt)
		}
	}
	a.checkChains(r)
	a.checkInjections(c)
	a.checkSums(r)
	for kind, n := range a.faults(c) {
		if n < r.size.least {
			a.t.Errorf("%s happened %d times, want at least %d", kind, n, r.size.least)
		}
	}
}

// checkChains follows every chain from its first handoff. Each leg has one
// successor: the next leg, or the same once more where it failed for good. The
// last leg has none. Beside the legs there are the errands, the members of their
// groups, and the returns; each is there, and nothing else.
func (a *audit) checkChains(r *relayDriver) {
	seen := map[string]bool{}
	for chain, ticket := range r.roots {
		for leg := 0; ticket != ""; {
			s := a.stories[ticket]
			if s == nil || seen[ticket] {
				a.t.Errorf("chain %d, leg %d: %s is not in the ledger, or was here before", chain, leg, ticket)
				break
			}
			at, isLeg, err := placeOf(s.state.WorkflowID, s.state.TaskID, false)
			if err != nil || !isLeg || at != (place{chain, leg}) {
				a.t.Errorf("chain %d, leg %d: %s is %+v: %v", chain, leg, ticket, at, err)
				break
			}
			next := a.visitRelated(s, seen)
			if s.redriven != "" {
				next = append(next, s.redriven)
			}
			switch {
			case leg == relayLegs-1 && s.state.Outcome == protocol.OutcomeSuccess && len(next) == 0:
				ticket = ""
			case len(next) == 1 && (s.redriven != "") == (s.state.Outcome != protocol.OutcomeSuccess):
				if ticket = next[0]; s.redriven == "" {
					leg++
				}
			default:
				a.t.Errorf("chain %d, leg %d: %s closed as %s and is followed by %v", chain, leg, ticket, s.state.Outcome, next)
				ticket = ""
			}
		}
	}
	if len(seen) != len(a.stories) || len(r.roots) != r.size.chains {
		a.t.Errorf("%d chains have %d handoffs, and the ledger has %d", len(r.roots), len(seen), len(a.stories))
	}
}

// visitRelated sees a handoff and all that hangs on it, and returns those of its
// children that are legs.
func (a *audit) visitRelated(s *handoffHistory, seen map[string]bool) (legs []string) {
	seen[s.ticket] = true
	tickets := slices.Clone(s.children)
	for n := range s.members {
		tickets = append(tickets, protocol.ChildTicketN(s.ticket, n))
	}
	if s.state.ReturnTicket != "" {
		tickets = append(tickets, s.state.ReturnTicket)
	}
	for _, ticket := range tickets {
		child := a.stories[ticket]
		if child == nil || seen[ticket] {
			a.t.Errorf("%s, which belongs to %s, is not in the ledger, or was here before", ticket, s.ticket)
			continue
		}
		if child.state.Reason == lifecycle.ReasonSourceEnded { // an attempt that was lost handed it off, and it never began
			seen[ticket] = true
			continue
		}
		if _, isLeg, _ := placeOf(child.state.WorkflowID, child.state.TaskID, child.state.ReturnOf != ""); isLeg {
			legs = append(legs, ticket)
		} else if more := a.visitRelated(child, seen); len(more) > 0 {
			a.t.Errorf("%s is no leg, and is followed by %v", ticket, more)
		}
	}
	return legs
}

// checkInjections checks that each stopped or killed worker lost its lease, that the late result of
// each stopped worker is parked, and that no other result is.
func (a *audit) checkInjections(c *relayWorkers) {
	lost := map[uint64]string{}
	for _, l := range a.losses {
		if lost[l.fence] != "" {
			a.t.Errorf("%s: the lease of fence %d was lost twice", l.ticket, l.fence)
		}
		lost[l.fence] = l.holder
	}
	for _, d := range c.injections {
		if lost[d.fence] != d.holder {
			a.t.Errorf("%s of holder %s with %s, fence %d: the ledger has no lost lease of it", d.fault, d.holder, d.ticket, d.fence)
		}
		if d.fault == sleeps && a.parked[d.fence] != d.holder {
			a.t.Errorf("holder %s slept over its lease of %s, fence %d, and its result is not parked", d.holder, d.ticket, d.fence)
		}
	}
	for fence, holder := range a.parked {
		if lost[fence] != holder && !a.released[fence] {
			a.t.Errorf("a result of holder %s is parked, and its lease %d was neither lost nor released", holder, fence)
		}
	}
}

// checkSums compares counts of events over the whole ledger: every attempt that begins must end.
func (a *audit) checkSums(r *relayDriver) {
	e, handoffs := a.events, len(a.stories)
	members, returns, legs := 0, 0, 0
	for _, s := range a.stories {
		members += s.members
		_, isLeg, _ := placeOf(s.state.WorkflowID, s.state.TaskID, s.state.ReturnOf != "")
		switch {
		case s.state.ReturnOf != "":
			returns++
		case isLeg && s.state.Outcome == protocol.OutcomeSuccess:
			legs++
		}
	}
	rejected := a.from[protocol.EventEscalated][protocol.PhaseRejected] + a.from[protocol.EventClosed][protocol.PhaseRejected]
	failed := a.from[protocol.EventRetryScheduled][protocol.PhaseFailed] + a.from[protocol.EventEscalated][protocol.PhaseFailed] + a.from[protocol.EventClosed][protocol.PhaseFailed]
	for _, sum := range []struct {
		what        string
		left, right int
	}{
		{"handoffs, and what began them", handoffs, len(r.roots) + e[protocol.EventHandedOff] + members + e[protocol.EventRedriven] + e[protocol.EventReturnSent]},
		{"handoffs, and submissions", handoffs, e[protocol.EventSubmitted]},
		{"handoffs, and what closed them", handoffs, e[protocol.EventCompleted] + e[protocol.EventClosed] + e[protocol.EventRolledBack]},
		{"handoffs, and outcomes", handoffs, total(a.outcomes)},
		{"results and groups, and successes", e[protocol.EventCompleted] + a.succeeded, a.outcomes[protocol.OutcomeSuccess]},
		{"legs of all chains, and those that were run", r.size.chains * relayLegs, legs},
		{"accepted or taken, and let go", e[protocol.EventAccepted] + e[protocol.EventTaken], total(a.ended)},
		{"completed, and by their holders", e[protocol.EventCompleted], a.ended[protocol.EventCompleted]},
		{"failed, and tried again, passed up or closed", e[protocol.EventFailed], failed},
		{"rejected or denied, and moved on or closed", e[protocol.EventRejected] + a.denied, e[protocol.EventRerouted] - a.unrefused + rejected},
		{"asked, and answered", a.asked, a.answered},
		{"waited for returns, and woken", e[protocol.EventSuspended], a.offers["return"]},
		{"returns, and those sent", returns, e[protocol.EventReturnSent]},
		{"redriven, and by the driver", e[protocol.EventRedriven], r.redriven},
		{"late results used, clocks run out, handoffs stuck", 0, e[protocol.EventLateResultUsed] + a.timedOut + e[protocol.EventStuck]},
	} {
		if sum.left != sum.right {
			a.t.Errorf("%s: %d, and %d", sum.what, sum.left, sum.right)
		}
	}
	for _, s := range a.stories {
		if s.refused != s.moved {
			a.t.Errorf("%s was refused %d times, and moved on or closed for it %d times: %s", s.ticket, s.refused, s.moved, strings.Join(s.log, ", "))
		}
	}
	for code := range a.failures {
		if code != "handler" && code != "panic" {
			a.t.Errorf("%d attempts failed with the code %s, which no dice asked for", a.failures[code], code)
		}
	}
}

func total[K comparable](counts map[K]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// faults counts each kind by what the ledger says. That a lease was lost by a
// stop or by a kill, only the crew knows.
func (a *audit) faults(c *relayWorkers) map[fault]int {
	counts := map[fault]int{refuse: a.events[protocol.EventRejected], ask: a.asked,
		fails: a.failures["handler"], panics: a.failures["panic"], sleeps: 0, dies: 0}
	for _, d := range c.injections {
		if !d.overtaken {
			counts[d.fault]++
		}
	}
	return counts
}

// causes counts the lost leases by what was done to their holders.
func (a *audit) causes(c *relayWorkers) (slept, killed, neither int) {
	for _, l := range a.losses {
		cause := nothing
		for _, d := range c.injections {
			if d.holder == l.holder && !d.at.After(l.at) && (cause == nothing || d.fault == dies) {
				cause = d.fault
			}
		}
		switch cause {
		case sleeps:
			slept++
		case dies:
			killed++
		default:
			neither++
		}
	}
	return slept, killed, neither
}

// summary prints what happened.
func (a *audit) summary(r *relayDriver, c *relayWorkers, took time.Duration) {
	a.t.Helper()
	var times []time.Duration
	var slowest *handoffHistory
	for _, s := range a.stories {
		times = append(times, s.state.ClosedAt.Sub(s.state.SubmittedAt))
		if times[len(times)-1] >= slices.Max(times) {
			slowest = s
		}
	}
	slices.Sort(times)
	at := func(share float64) time.Duration {
		return times[min(len(times)-1, int(share*float64(len(times))))].Round(time.Millisecond)
	}
	slept, killed, neither := a.causes(c)
	a.t.Logf("%d chains of %d legs, %d handoffs (%d handed in again), %d ledger entries, in %v, by %d worker processes",
		r.size.chains, relayLegs, len(a.stories), r.redriven, a.entries, took.Round(100*time.Millisecond), c.started)
	a.t.Logf("outcomes: %s", counted(a.outcomes))
	a.t.Logf("closed without success: %s", counted(a.reasons))
	a.t.Logf("events: %s", counted(a.events))
	a.t.Logf("taken up: %s; let go: %s", counted(a.began), counted(a.ended))
	a.t.Logf("faults: %s (at least %d each)", counted(a.faults(c)), r.size.least)
	a.t.Logf("leases lost: %d by stopped workers, %d by killed ones, %d by neither; %d late results parked", slept, killed, neither, len(a.parked))
	a.t.Logf("from submission to close: half %v, 99 of 100 %v, longest %v:\n%s: %s", at(0.5), at(0.99), at(1),
		slowest.ticket, strings.Join(slowest.log, ", "))
}

// counted writes counts in the order of their names.
func counted[K ~string](counts map[K]int) string {
	var words []string
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		words = append(words, fmt.Sprintf("%s %d", k, counts[k]))
	}
	return strings.Join(words, ", ")
}
