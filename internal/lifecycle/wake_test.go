package lifecycle

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/record"
	p "github.com/agenthandoff/handoff/protocol"
)

// TestWakeAndNextReconcile: the clocks of each phase, and the reconcile that comes though
// none of them ran out.
func TestWakeAndNextReconcile(t *testing.T) {
	in := func(column string, change func(*p.State)) p.State {
		s := stateIn(t, column)
		if change != nil {
			change(&s)
		}
		return s
	}
	cancelled := func(s *p.State) { s.CancelRequested, s.CancelRequestedAt = true, t0.Add(10*sec) }
	returns := func(s *p.State) { s.ReturnExpected, s.ReturnSince, s.Policy.ReturnTimeoutMS = true, t0, 70_000 }
	day := 24 * time.Hour
	cases := []struct {
		name       string
		state      p.State
		after      time.Duration // when NextReconcile is asked
		wake, next time.Duration // since t0
	}{
		{"pending: the acknowledge timeout", in("pending", nil), sec, 30 * sec, 30 * sec},
		{"pending: that has passed, and the agent is there", in("pending", nil), 30 * sec, 30 * sec, 90 * sec},
		{"pending: the doubling step", in("pending", nil), time.Hour, 30 * sec, 2 * time.Hour},
		{"pending: never past the deadline", in("pending", nil), 23 * time.Hour, 30 * sec, day},
		{"pending: the queue timeout", in("pending", func(s *p.State) { s.Policy.QueueTimeoutMS = 100_000 }), 50 * sec, 30 * sec, 100 * sec},
		{"pending at a person's", in("pending", func(s *p.State) { s.Agent = p.Human }), sec, day, 61 * sec},
		{"claimed: the acknowledge timeout", in("claimed", nil), sec, 31 * sec, 31 * sec},
		{"claimed: its own time to acknowledge, in two leases", in("claimed", func(s *p.State) { s.AckWithinMS = 600_000 }), sec, 601 * sec, 61 * sec},
		{"claimed by a person", in("claimed", func(s *p.State) { s.Agent = p.Human }), time.Hour, sec + time.Hour, sec + time.Hour},
		{"claimed: the queue timeout", in("claimed", func(s *p.State) { s.Policy.QueueTimeoutMS = 20_000 }), sec, 20 * sec, 20 * sec},
		{"claimed: never past the deadline", in("claimed", nil), day - sec, 31 * sec, day},
		{"accepted: the reminder", in("accepted", nil), 47 * time.Minute, sec + 48*time.Minute, 48 * time.Minute},
		{"working: a minute before the reminder", in("working", nil), 47*time.Minute + 30*sec, sec + 48*time.Minute, sec + 48*time.Minute},
		{"working: reminded", in("working", func(s *p.State) { s.RemindedAt = t0.Add(48 * time.Minute) }), 59*time.Minute + 30*sec, time.Hour + sec, time.Hour + sec},
		{"working: no work timeout: reminded of the deadline", in("working", func(s *p.State) { s.Policy.WorkTimeoutMS = 0 }), sec, 69120200 * time.Millisecond, 61 * sec},
		{"asking", in("asking", nil), 59*time.Minute + 30*sec, time.Hour + sec, time.Hour + sec},
		{"deferred, and spread", in("deferred", nil), 30 * sec, 65145 * time.Millisecond, 65145 * time.Millisecond},
		{"retrying", in("retrying", nil), 30 * sec, time.Minute, time.Minute},
		{"working: the progress timeout", in("working", func(s *p.State) { s.Policy.ProgressTimeoutMS = 60_000 }), 50 * sec, 61 * sec, 61 * sec},
		{"working: the progress timeout, from the last sign", in("working", func(s *p.State) { s.Policy.ProgressTimeoutMS, s.ProgressAt = 60_000, t0.Add(30*sec) }), 50 * sec, 90 * sec, 90 * sec},
		{"working: the return timeout", in("working", func(s *p.State) { returns(s); s.RemindedAt = t0.Add(56 * sec) }), 57 * sec, 70 * sec, 70 * sec},
		{"working: reminded of the return timeout", in("working", returns), 20 * sec, 56200 * time.Millisecond, 56200 * time.Millisecond},
		{"pending: the return timeout", in("pending", returns), 50 * sec, 30 * sec, 70 * sec},
		{"rejected: at once, and then the return timeout", in("rejected", returns), 65 * sec, sec, 70 * sec},
		{"a return timeout that has been set anew", in("retrying", func(s *p.State) { returns(s); s.ReturnSince = t0.Add(40 * sec) }), 90 * sec, time.Minute, 110 * sec},
		{"waiting for its children", in("waiting", nil), sec, day, 61 * sec},
		{"waiting for its children: the return timeout", in("waiting", returns), 20 * sec, 70 * sec, 70 * sec},
		{"waiting, and its children have closed: at once", in("waiting", func(s *p.State) { s.Children.Closed = s.Children.Made }), 2 * sec, sec, 62 * sec},
		{"a group", in("group", nil), sec, day, 61 * sec},
		{"a group: the return timeout", in("group", returns), 20 * sec, 70 * sec, 70 * sec},
		{"a group whose outcome is certain: at once", in("group", func(s *p.State) { s.Children.Closed = s.Children.Made }), 2 * sec, 0, 62 * sec},
		{"a group without an acknowledge clock", in("group", nil), time.Hour, day, 2 * time.Hour},
		{"at an authority", in("above", nil), 2 * sec, 31 * sec, 31 * sec},
		{"moved, and the offer is missing: at once", in("pending", func(s *p.State) { s.Offer = 0 }), 10 * sec, 0, 30 * sec},
		{"failed: at once", in("failed", nil), 2 * sec, sec, 62 * sec},
		{"cancelled in the work: the grace", in("working", cancelled), 20 * sec, 40 * sec, 40 * sec},
		{"cancelled in the work, and the deadline comes first", in("working", func(s *p.State) { cancelled(s); s.Deadline = t0.Add(30 * sec) }), 20 * sec, 30 * sec, 30 * sec},
		{"cancelled in the work, and the deadline has passed", in("working", func(s *p.State) { cancelled(s); s.Deadline = t0.Add(15 * sec) }), 20 * sec, 15 * sec, 40 * sec},
	}
	for _, c := range cases {
		if got := Wake(c.state).Sub(t0); got != c.wake {
			t.Errorf("%s: wakes after %s, want %s", c.name, got, c.wake)
		}
		if got := NextReconcile(c.state, t0.Add(c.after)).Sub(t0); got != c.next {
			t.Errorf("%s: next reconcile after %s, want %s", c.name, got, c.next)
		}
	}
	for _, s := range []p.State{{}, closedIn(t, "complete"), closedIn(t, "failed")} {
		if !Wake(s).IsZero() || DutiesOf(s) != (Duties{}) {
			t.Errorf("%s: wakes at %s, duties %+v", s.Phase, Wake(s), DutiesOf(s))
		}
	}
}

// TestDuties: what must stand outside, by the state.
func TestDuties(t *testing.T) {
	waitsFor := func(s p.State) p.State {
		s.ReturnExpected, s.Wait, s.Parent, s.N = true, p.WaitBlock, "parent", 1
		return s
	}
	returned := func(s p.State) p.State { s.ReturnedAt = t0; return s }
	sent := func(s p.State) p.State { s.ReturnTicket = p.ReturnTicket(ticket); return s }
	marked := func(s p.State) p.State {
		children := *s.Children
		children.Closed = children.Made
		s.Children = &children
		return s
	}
	group := stateIn(t, "group")
	rest := func(cancel bool) p.State {
		s := group
		s.Aggregate = &p.Aggregate{Size: 3, Mode: p.AggregateAny, CancelRest: cancel}
		s.Phase, s.Closed, s.Outcome = p.Complete, true, p.OutcomeSuccess
		return s
	}
	person := closedIn(t, "returned")
	person.Source = p.Human
	cases := []struct {
		name  string
		state p.State
		want  Duties
		owes  bool
	}{
		{"pending", stateIn(t, "pending"), Duties{Offer: true, WakeUp: true}, false},
		{"at an authority", stateIn(t, "above"), Duties{Offer: true, WakeUp: true}, false},
		{"claimed", stateIn(t, "claimed"), Duties{WakeUp: true}, false},
		{"asking", stateIn(t, "asking"), Duties{WakeUp: true}, false},
		{"working, with a child", stateIn(t, "working"), Duties{WakeUp: true, Children: true}, false},
		{"waiting for it", stateIn(t, "waiting"), Duties{WakeUp: true, Children: true, Mark: true}, false},
		{"a group", group, Duties{WakeUp: true, Children: true, Mark: true}, false},
		{"a group that has closed", rest(false), Duties{Children: true}, false},
		{"a group that has closed and cancels the rest", rest(true), Duties{Children: true, Mark: true, CancelChildren: true}, true},
		{"the same, and the rest has closed", marked(rest(true)), Duties{Children: true}, false},
		{"complete", closedIn(t, "complete"), Duties{}, false},
		{"rolled back: its source gets it when it is there", closedIn(t, "returned"), Duties{}, true},
		{"rolled back to a person, who reads it", person, Duties{}, false},
		{"rolled back, and on its way", sent(closedIn(t, "returned")), Duties{Return: true}, true},
		{"rolled back, and delivered", returned(sent(closedIn(t, "returned"))), Duties{}, false},
		{"failed, and its parent waits for it", waitsFor(closedIn(t, "failed")), Duties{Return: true}, true},
		{"the same, and it was told", returned(waitsFor(closedIn(t, "failed"))), Duties{}, false},
		{"complete, its children to be cancelled, a return expected", owingIn(t, "complete"), Duties{Children: true, Mark: true, CancelChildren: true}, true},
		{"the same, and they have closed", marked(owingIn(t, "complete")), Duties{Children: true}, true},
	}
	for _, c := range cases {
		if got := DutiesOf(c.state); got != c.want || HasPendingDuties(c.state) != c.owes {
			t.Errorf("%s: duties %+v, owes %t; want %+v, %t", c.name, got, HasPendingDuties(c.state), c.want, c.owes)
		}
	}
}

// TestLongWaitWakesSeldom: a handoff that waits a month wakes some twenty times.
func TestLongWaitWakesSeldom(t *testing.T) {
	l := submit(t, fleet(agent("a")).live("a", "w1", 4), func(s *p.Summary) { s.Deadline = t0.Add(30 * 24 * time.Hour) })
	reconciles := 0
	for now := t0; now.Before(l.state.Deadline); now = NextReconcile(l.state, now) {
		reconciles++
	}
	if reconciles > 20 {
		t.Errorf("%d reconciles in 30 days", reconciles)
	}
}

// ends are the ends of the first n children.
func ends(n int, outcome p.Outcome) []p.ChildClosed {
	all := make([]p.ChildClosed, n)
	for i := range all {
		all[i] = p.ChildClosed{N: i, Outcome: outcome}
	}
	return all
}

// TestLargestState: with every text and list at its longest, in the characters
// that are dearest in JSON, a state stays within what an append may carry.
func TestLargestState(t *testing.T) {
	dear := strings.Repeat("\x01\u2028\"\xff", 50_000)
	id := func(prefix string, n int) string {
		return prefix + strings.Repeat("x", p.IDBytesMax-len(prefix)-3) + string(rune('a'+n/26)) + string(rune('a'+n%26)) + "z"
	}
	l := submit(t, fleet(agent("a", "c0")), func(s *p.Summary) {
		for i := range p.RequiredCapabilitiesMax - 1 {
			s.Requires = append(s.Requires, p.RequiredCapability{ID: id("c", i), MinProficiency: 0.123456789})
		}
		s.Requires = append(s.Requires, p.RequiredCapability{ID: "c0"})
		name := strings.Repeat("\x01", p.NameBytesMax) // six bytes each in JSON
		s.Parent, s.WorkflowID, s.ConversationID, s.TaskID = ticket, name, name, name
		s.Group, s.Origin, s.ReturnOf, s.Digest = ticket, ticket, ticket, "sha256:"+strings.Repeat("0", 64)
		s.N, s.ReturnExpected, s.Wait, s.Risk = p.ChildrenMax, true, p.WaitContinue, p.RiskMedium
		most := p.DeadlineMaxMS
		s.Overrides = p.PolicyOverrides{AckTimeoutMS: &most, QueueTimeoutMS: &most, WorkTimeoutMS: &most, BackoffCapMS: &most, ConditionTimeoutMS: &most,
			CancelGraceMS: &most, ProgressTimeoutMS: &most, ReturnTimeoutMS: &most, OnNoTaker: ptr(p.NoTakerEscalate), OnTimeout: ptr(p.OnTimeoutEscalate),
			OnReturnTimeout: ptr(p.OnTimeoutEscalate), LateResult: ptr(p.LateIgnore)}
	})
	needs := make([]string, 100)
	for i := range needs {
		needs[i] = dear
	}
	now := t0
	for i := range listMax + 6 { // by hand as often as anybody likes
		now = now.Add(sec)
		l.add(&p.Rejected{Meta: p.Meta{At: now}, Offer: l.state.Offer, Agent: l.state.Agent, ReasonCode: dear, Reason: dear, Alternative: dear})
		l.add(&p.Rerouted{Meta: p.Meta{At: now}, From: l.state.Agent, To: id("a", i), Manual: true}, &p.Offered{Meta: p.Meta{At: now}, Agent: id("a", i)})
	}
	l.add(&p.Stuck{Meta: p.Meta{At: now}, Reason: dear})
	l.add(&p.Conditioned{Meta: p.Meta{At: now}, Offer: l.state.Offer, NeedsContext: needs, NeedsPermission: needs, Reason: dear})
	asking := l.state
	l.add(&p.Answered{Meta: p.Meta{At: now}, Answer: p.Answer{Question: l.state.Conditions.Question}}, &p.Offered{Meta: p.Meta{At: now}, Agent: l.state.Agent})
	l.accept("w1", time.Minute)
	details, _ := json.Marshal(strings.Repeat("x", messageBytesMax-2))
	l.add(&p.Stuck{Meta: p.Meta{At: now}, Reason: dear})
	l.add(&p.Progressed{Meta: p.Meta{At: now}, Fence: l.state.Fence, Progress: p.Progress{Message: dear, Details: details}})
	l.add(&p.LeaseLost{Meta: p.Meta{At: now}, Holder: "w1", Fence: l.state.Fence}) // the progress stays
	l.add(&p.Conditioned{Meta: p.Meta{At: now}, Offer: l.state.Offer, NeedsContext: needs, NeedsPermission: needs, Reason: dear})
	again := l.state
	// It goes up three levels, and its holder hands off as many children as it may.
	for level := range p.EscalationsMax {
		l.add(&p.Escalated{Meta: p.Meta{At: now}, Level: level + 1, From: l.state.Agent, To: id("e", level), Reason: dear},
			&p.Offered{Meta: p.Meta{At: now}, Agent: id("e", level)})
		l.add(&p.Conditioned{Meta: p.Meta{At: now}, Offer: l.state.Offer, NeedsContext: needs, NeedsPermission: needs, Reason: dear})
	}
	children := make([]int, p.ChildrenMax)
	up := l.state
	l.add(&p.Taken{Meta: p.Meta{At: now}, Agent: id("t", 0), Holder: id("h", 0)})
	l.add(&p.Progressed{Meta: p.Meta{At: now}, Fence: l.state.Fence, Progress: p.Progress{Message: dear, Details: details}})
	for n := range children {
		children[n] = n
		l.add(&p.HandedOff{Meta: p.Meta{At: now}, Fence: l.state.Fence, N: n, Ticket: p.ChildTicketN(ticket, n)})
	}
	for i := range 2 * p.LateResultsMax {
		l.add(Park(l.state, p.ResultParked{Fence: 1<<52 - 9 - uint64(i), Status: p.Success}, now).Events...)
	}
	l.add(&p.Suspended{Meta: p.Meta{At: now}, Fence: l.state.Fence, Children: children})
	l.add(&p.ChildrenClosed{Meta: p.Meta{At: now}, Children: ends(p.ChildrenMax-1, p.OutcomePartial)})
	l.add(&p.CancelRequested{Meta: p.Meta{At: now}, Reason: dear, Return: true, Children: true}, &p.Stuck{Meta: p.Meta{At: now}, Reason: dear})
	waiting := l.state
	l.add(&p.Closed{Meta: p.Meta{At: now}, Outcome: p.OutcomeRolledBack, Reason: dear, Message: dear, Inbox: id("i", 0)})
	l.add(&p.Redriven{Meta: p.Meta{At: now}, Ticket: p.RedriveTicket(ticket)})
	l.state.ReturnTicket = p.ReturnTicket(ticket) // a return has none
	for name, s := range map[string]p.State{"asking": asking, "asking, with the progress of an attempt before": again, "the same, three levels up": up,
		"waiting for a thousand": waiting, "closed, having waited for a thousand": l.state} {
		if _, err := record.Encode(p.Record{ID: "id", State: s}); err != nil || len(asJSON(t, s)) > p.StateBytesMax {
			t.Errorf("%s: %d bytes, %v", name, len(asJSON(t, s)), err)
		} else {
			t.Logf("%s: %d of %d bytes", name, len(asJSON(t, s)), p.StateBytesMax)
		}
	}
}
