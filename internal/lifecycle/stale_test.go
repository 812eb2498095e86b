package lifecycle

import (
	"math/rand/v2"
	"testing"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// Apply is ApplyAll for one event.
func Apply(s p.State, e p.Event) (p.State, error) { return ApplyAll(s, []p.Event{e}) }

// wantStale applies an event that must be dropped quietly and change nothing.
func wantStale(t *testing.T, what string, s p.State, e p.Event) {
	t.Helper()
	was := asJSON(t, s)
	after, err := Apply(s, e)
	if got := result(s, after, err); got != "stale" {
		t.Errorf("%s: %s in phase %s: %s (%v), want stale", what, e.EventType(), s.Phase, got, err)
	}
	if asJSON(t, after) != was {
		t.Errorf("%s: %s changed the state", what, e.EventType())
	}
}

// TestWrongReference: each event that names an offer, holder, fence, attempt,
// agent, level or clock other than the current one.
func TestWrongReference(t *testing.T) {
	pending, claimed, working := stateIn(t, "pending"), stateIn(t, "claimed"), stateIn(t, "working")
	m := at(time.Minute)
	cases := []struct {
		what  string
		state p.State
		event p.Event
	}{
		{"another offer", pending, &p.Claimed{Meta: m, Offer: 9, Holder: "w1"}},
		{"another offer", pending, &p.Accepted{Meta: m, Offer: 9, Holder: "w1"}},
		{"another offer", pending, &p.Rejected{Meta: m, Offer: 9, Agent: "a"}},
		{"another offer", pending, &p.Conditioned{Meta: m, Offer: 9, Agent: "a"}},
		{"no offer", pending, &p.Accepted{Meta: m, Holder: "w1"}},
		{"no offer", pending, &p.Rejected{Meta: m, Agent: "a"}},
		{"no offer, while held", working, &p.Rejected{Meta: m, Agent: "a"}},
		{"no offer, while held", working, &p.Conditioned{Meta: m, Agent: "a"}},
		{"another holder", claimed, &p.Claimed{Meta: m, Offer: 1, Holder: "w2"}},
		{"another holder", claimed, &p.Accepted{Meta: m, Offer: 1, Holder: "w2"}},
		{"another holder", claimed, &p.Rejected{Meta: m, Offer: 1, Agent: "a", Holder: "w2"}},
		{"no holder", claimed, &p.Rejected{Meta: m, Offer: 1, Agent: "a"}},
		{"no holder", working, &p.Conditioned{Meta: m, Offer: 1, Agent: "a"}},
		{"a holder, where none has it", pending, &p.Rejected{Meta: m, Offer: 1, Agent: "a", Holder: "w1"}},
		{"the same holder again", working, &p.Accepted{Meta: m, Offer: 1, Holder: "w1"}},
		{"a fence before acceptance", claimed, &p.Completed{Meta: m, Fence: 2}},
		{"no fence", claimed, &p.Completed{Meta: m}},
		{"no fence", working, &p.Progressed{Meta: m}},
		{"another fence", working, &p.Progressed{Meta: m, Fence: 3}},
		{"another fence", working, &p.Completed{Meta: m, Fence: 1}},
		{"another fence", working, &p.Failed{Meta: m, Fence: 3, Attempt: 1}},
		{"another fence", working, &p.Reminded{Meta: m, Fence: 1}},
		{"another fence", working, &p.LeaseLost{Meta: m, Holder: "w1", Fence: 1}},
		{"another fence", working, &p.Released{Meta: m, Holder: "w1"}},
		{"another holder", working, &p.LeaseLost{Meta: m, Holder: "w2", Fence: 2}},
		{"another holder", working, &p.Released{Meta: m, Holder: "w2", Fence: 2}},
		{"another fence", stateIn(t, "accepted"), &p.Started{Meta: m, Fence: 1}},
		{"the next attempt", stateIn(t, "failed"), &p.RetryScheduled{Meta: m, Attempt: 2}},
		{"the attempt before", stateIn(t, "failed"), &p.RetryScheduled{Meta: m, Attempt: 0}},
		{"another agent", stateIn(t, "rejected"), &p.Rerouted{Meta: m, From: "b", To: "c"}},
		{"a level reached", stateIn(t, "rejected"), &p.Escalated{Meta: m, Level: 0, From: "a", To: "c"}},
		{"another attempt", working, &p.TimedOut{Meta: at(2 * time.Hour), Clock: p.ClockWork, Agent: "a", Attempt: 2}},
		{"another agent", working, &p.TimedOut{Meta: at(2 * time.Hour), Clock: p.ClockWork, Agent: "b", Attempt: 1}},
		{"another agent", pending, &p.TimedOut{Meta: m, Clock: p.ClockQueue, Agent: "b"}},
		{"another agent", stateIn(t, "asking"), &p.TimedOut{Meta: at(30 * 24 * time.Hour), Clock: p.ClockCondition, Agent: "b"}},
		{"another agent", stateIn(t, "retrying"), &p.Offered{Meta: m, Agent: "b"}},
		{"a level reached", stateIn(t, "above"), &p.Escalated{Meta: m, Level: 1, From: "chief", To: "boss"}},
		{"another fence", working, &p.Escalated{Meta: m, Level: 1, From: "a", To: "chief", Fence: 3}},
		{"another fence", working, &p.HandedOff{Meta: m, Fence: 1, N: 1, Ticket: "child"}},
		{"another fence", working, &p.Suspended{Meta: m, Fence: 1, Children: []int{0}}},
		{"another fence", working, &p.RolledBack{Meta: m, Fence: 1}},
		{"a fence, where none has it", pending, &p.RolledBack{Meta: m, Fence: 2}},
		{"no fence, while held", working, &p.RolledBack{Meta: m}},
		{"a child made already", working, &p.HandedOff{Meta: m, Fence: 2, N: 0, Ticket: "child"}},
		{"another agent", working, &p.Rerouted{Meta: m, From: "b", To: "c", Manual: true}},
		{"another question", stateIn(t, "asking"), &p.Answered{Meta: m, Answer: p.Answer{Question: 9}}},
		{"no question", stateIn(t, "asking"), &p.Answered{Meta: m}},
		{"a question before it went up", stateIn(t, "above"), &p.Answered{Meta: m, Answer: p.Answer{Question: 9}}},
		{"children it has not", stateIn(t, "waiting"), &p.ChildrenClosed{Meta: m, Children: []p.ChildClosed{{N: 7, Outcome: p.OutcomeSuccess}}}},
		{"no children", stateIn(t, "group"), &p.ChildrenClosed{Meta: m}},
		{"another late result", lateIn(t, "failed"), &p.LateResultUsed{Meta: m, Seq: 7}},
		{"parked already", lateIn(t, "failed"), &p.ResultParked{Meta: m, Fence: 77}},
		{"no queue clock", pending, &p.TimedOut{Meta: at(time.Hour), Clock: p.ClockQueue, Agent: "a"}},
		{"no progress clock", working, &p.TimedOut{Meta: at(time.Hour), Clock: p.ClockProgress, Agent: "a", Attempt: 1}},
		{"no return is expected", working, &p.TimedOut{Meta: at(time.Hour), Clock: p.ClockReturn, Agent: "a", Attempt: 1}},
		{"not timed out yet", clockedIn(t, "working"), &p.TimedOut{Meta: at(time.Minute - 1), Clock: p.ClockProgress, Agent: "a", Attempt: 1}},
		{"not timed out yet", clockedIn(t, "working"), &p.TimedOut{Meta: at(time.Minute - sec - 1), Clock: p.ClockReturn, Agent: "a", Attempt: 1}},
		{"not absent long enough", pending, &p.TimedOut{Meta: at(29 * sec), Clock: p.ClockAcknowledge, Agent: "a"}},
		{"not timed out yet", working, &p.TimedOut{Meta: at(time.Hour), Clock: p.ClockWork, Agent: "a", Attempt: 1}},
		{"not timed out yet", stateIn(t, "asking"), &p.TimedOut{Meta: at(time.Hour), Clock: p.ClockCondition, Agent: "a"}},
		{"not timed out yet", working, &p.TimedOut{Meta: at(24*time.Hour - 1), Clock: p.ClockDeadline}},
	}
	for _, c := range cases {
		wantStale(t, c.what, c.state, c.event)
	}
}

// TestDuplicates: the same event again, wherever it was legal, is stale. A
// report of progress alone may be applied again: it says the same.
func TestDuplicates(t *testing.T) {
	for _, table := range []struct {
		text  string
		state func(testing.TB, string) p.State
	}{{wantOpen, stateIn}, {wantVariants, lateIn}, {wantClosed, closedIn}, {wantOwing, owingIn}} {
		columns, rows, order := grid(table.text)
		for _, row := range order {
			for i, column := range columns {
				if cell := rows[row][i]; cell == "stale" || cell == "illegal" {
					continue
				}
				before := table.state(t, column)
				e := about(before, variantFor(row))
				once, err := Apply(before, e)
				if err != nil {
					t.Fatal(err)
				}
				once.Bind(9)
				if row == "progressed" {
					twice, err := Apply(once, e)
					if err != nil || asJSON(t, twice) != asJSON(t, once) {
						t.Errorf("progress in %s twice: %v, or it changed the state", column, err)
					}
					continue
				}
				wantStale(t, "again, from "+column, once, e)
			}
		}
	}
}

// life is a handoff through every kind of turn: retried, conditional, answered,
// refused, rerouted, claimed by hand, lost, released, escalated by the clock and
// by its holder, answered by an authority, suspended for a child, taken, reminded,
// with a result that comes late, asked to end, complete, and returned. It returns
// each append and the state after it.
func life(t testing.TB) (appends [][]p.Event, states []p.State) {
	t.Helper()
	d := fleet(with(agent("a", "review"), func(x *p.Profile) { x.EscalatesTo = "chief" }), agent("b", "review"), agent("chief"), agent("src"))
	l := submit(t, d, func(s *p.Summary) {
		s.Requires = []p.RequiredCapability{{ID: "review"}}
		s.Overrides.OnTimeout = ptr(p.OnTimeoutEscalate)
		s.ReturnExpected = true
	})
	submitted, err := Submit(ticket, l.state.Summary, p.Submitted{Package: []byte(`{}`)}, d.At(t0))
	if err != nil {
		t.Fatal(err)
	}
	appends, states = append(appends, submitted.Events), append(states, l.state)
	add := func(events ...p.Event) {
		t.Helper()
		l.add(events...)
		appends, states = append(appends, events), append(states, l.state)
	}
	do := func(step Step, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		add(step.Events...)
	}
	now := t0
	tick := func() p.Meta { now = now.Add(sec); return p.Meta{At: now, By: "test"} }
	accept := func(holder string) {
		t.Helper()
		do(Acknowledge(l.state, l.claimant(holder), p.Ack{Status: p.AckAccepted}, true, tick().At))
	}
	decide := func(after time.Duration) {
		t.Helper()
		now = now.Add(after)
		add(mustDecide(l.state, d, now).Events...)
	}
	accept("w1")
	add(&p.Failed{Meta: tick(), Fence: l.state.Fence, Attempt: 1, Code: "exit", Retryable: true})
	decide(0)        // retry scheduled
	decide(10 * sec) // offered
	do(Acknowledge(l.state, l.claimant("w1"), p.Ack{Status: p.AckConditional, NeedsContext: []string{"branch"}}, false, tick().At))
	do(Answer(l.state, d.At(tick().At), p.Answer{By: "src", Question: 1, Text: "main"}))
	do(Acknowledge(l.state, l.claimant("w1"), p.Ack{Status: p.AckRejected, Reason: "no"}, false, tick().At))
	decide(0) // rerouted to b
	add(&p.Claimed{Meta: tick(), Offer: l.state.Offer, Agent: "b", Holder: "cli", LeaseMS: lease})
	decide(time.Minute) // lease lost
	accept("w2")
	do(Release(l.state, d.At(tick().At), "w2", "drain", nil))
	accept("w3")
	add(&p.Reminded{Meta: tick(), Fence: l.state.Fence})
	d.live("b", "w3", 1)
	decide(2 * time.Hour)                                                                                                   // work timeout, escalated to a person
	do(Answer(l.state, d.At(tick().At), p.Answer{By: p.Human, Question: l.state.EscalationQuestion, Text: "as you think"})) // back to b
	accept("w4")
	lost := l.state.Fence
	do(HandOff(l.state, Next{HandedOff: p.HandedOff{N: 0, Ticket: p.ChildTicketN(ticket, 0)}}, tick().At))
	do(Suspend(l.state, "w4", []int{0}, tick().At))
	do(MarkChildren(l.state, d.At(tick().At), []p.ChildClosed{{N: 0, Outcome: p.OutcomeSuccess}}))
	accept("w5")
	do(Escalate(l.state, d.At(tick().At), "w5", "over my head", "it is one of two"))
	do(TakeNow(l.state, d.At(tick().At), Claimant{Agent: p.Human, Holder: "somebody", LeaseMS: lease}, ""))
	add(&p.Progressed{Meta: tick(), Fence: l.state.Fence, Progress: p.Progress{Percent: 50}})
	add(Park(l.state, p.ResultParked{Holder: "w4", Fence: lost, Status: p.Success}, tick().At).Events...)
	add(&p.CancelRequested{Meta: tick()})
	do(Complete(l.state, d.At(tick().At), p.Completed{Status: p.Success}, nil))
	add(&p.Returned{Meta: tick(), Delivered: true})
	if !l.state.Closed || l.state.Phase != p.PhaseReturned || l.state.EscalationLevel != 1 || l.state.Escalations != 2 || l.state.Reroutes != 1 || l.state.Supplements != 2 {
		t.Fatalf("the life took another turn: %s", asJSON(t, l.state))
	}
	return appends, states
}

// fencedByLedger tells of appends that name nothing by which the core could tell
// a late one from a new one: a request to end it, a report of progress (which
// repeats itself), an offer alone, as it follows a delay, and what somebody does
// with it by hand. A reroute or an escalation names the agent and the level that
// it leaves, and an authority's answer may have brought it back there. For those
// the ledger's compare-and-set is the fence.
func fencedByLedger(events []p.Event) bool {
	switch e := events[0].(type) {
	case *p.CancelRequested, *p.Progressed, *p.Offered, *p.Taken, *p.Rerouted:
		return true
	case *p.Escalated:
		return e.Fence == 0
	case *p.RolledBack:
		return e.Fence == 0
	case *p.TimedOut: // the question of an agent that has it anew may be over its limit at once
		return len(events) > 1 && events[1].EventType() == p.EventEscalated
	}
	return false
}

// TestReordering: every append of a life, come late at every later point of it,
// is stale and changes nothing.
func TestReordering(t *testing.T) {
	appends, states := life(t)
	for i, s := range states {
		was := asJSON(t, s)
		for j, events := range appends[:i+1] {
			if fencedByLedger(events) && !s.Closed {
				continue
			}
			after, err := ApplyAll(s, events)
			if got := result(s, after, err); got != "stale" {
				t.Errorf("append %d (%s), late after append %d (phase %s): %s (%v), want stale", j, types(events), i, s.Phase, got, err)
			}
			if asJSON(t, after) != was {
				t.Errorf("append %d (%s), late after append %d, changed the state", j, types(events), i)
			}
		}
	}
}

// TestShuffled: a life's appends delivered in any order, any number of times,
// each applied where it fits: what applies is a beginning of the life, or the
// life itself, never something else.
func TestShuffled(t *testing.T) {
	appends, states := life(t)
	legal := map[string]bool{asJSON(t, p.State{}): true}
	for _, s := range states {
		legal[asJSON(t, s)] = true
	}
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		s, done := p.State{}, 0
		for range 60 * len(appends) {
			j := rng.IntN(min(len(appends), done+1)) // anything delivered before, or the next
			if fencedByLedger(appends[j]) && j != done {
				continue
			}
			next, err := ApplyAll(s, appends[j])
			if err != nil {
				continue
			}
			if j != done {
				t.Fatalf("seed %d: append %d (%s) applied again after %d", seed, j, types(appends[j]), done-1)
			}
			done++
			next.Bind(uint64(done))
			s = next
			if !legal[asJSON(t, s)] {
				t.Fatalf("seed %d: a state that the life never had: %s", seed, asJSON(t, s))
			}
		}
		if done != len(appends) {
			t.Fatalf("seed %d: only %d of %d appends came through", seed, done, len(appends))
		}
	}
}

// TestFenceOfTheSameHolder: a holder that lost its claim and took the handoff
// again cannot speak with the fence it had before.
func TestFenceOfTheSameHolder(t *testing.T) {
	l := submit(t, fleet(agent("a")), nil).accept("w1", sec)
	old := l.state.Fence
	l.add(&p.LeaseLost{Meta: at(time.Minute), Holder: "w1", Fence: old, Attempt: 1})
	l.accept("w1", 2*time.Minute)
	for _, e := range []p.Event{
		&p.Completed{Meta: at(3 * time.Minute), Fence: old},
		&p.Failed{Meta: at(3 * time.Minute), Fence: old, Attempt: 1},
		&p.Progressed{Meta: at(3 * time.Minute), Fence: old},
		&p.LeaseLost{Meta: at(3 * time.Minute), Holder: "w1", Fence: old, Attempt: 1},
		&p.Released{Meta: at(3 * time.Minute), Holder: "w1", Fence: old},
	} {
		wantStale(t, "the fence before", l.state, e)
	}
	if l.state.Attempt != 2 || l.state.StartedAt != t0.Add(2*time.Minute) {
		t.Errorf("attempt %d started at %s", l.state.Attempt, l.state.StartedAt)
	}
}
