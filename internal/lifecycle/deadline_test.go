package lifecycle

import (
	"testing"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// openStates are handoffs in every open phase, and in every way of being there
// in which something may keep them open: a worker that beats, a person, a queue
// that is told to wait, a group, children, a cancel in its grace.
func openStates(t *testing.T, change func(*p.Summary)) map[string]p.State {
	t.Helper()
	d := fleet(agent("a"), agent("b")).live("a", "w1", 1)
	with := func(more func(*p.Summary), steps func(l *line)) p.State {
		l := submit(t, d, func(s *p.Summary) {
			s.Overrides = p.PolicyOverrides{WorkTimeoutMS: ptr(int64(p.WorkTimeoutMaxMS)), CancelGraceMS: ptr(int64(p.CancelGraceMaxMS)),
				ConditionTimeoutMS: ptr(int64(p.ConditionTimeoutMaxMS)), OnNoTaker: ptr(p.NoTakerQueue)}
			if more != nil {
				more(s)
			}
			change(s)
		})
		if steps != nil {
			steps(l)
		}
		return l.state
	}
	states := map[string]p.State{
		"in a queue": with(nil, nil),
		"with a person": with(nil, func(l *line) {
			l.add(&p.Rerouted{Meta: at(sec), From: "a", To: p.Human, Manual: true}, &p.Offered{Meta: at(sec), Agent: p.Human})
		}),
		"claimed": with(nil, func(l *line) {
			l.add(&p.Claimed{Meta: at(sec), Offer: l.state.Offer, Agent: "a", Holder: "w1", LeaseMS: lease})
		}),
		"accepted": with(nil, func(l *line) {
			l.add(&p.Accepted{Meta: at(sec), Offer: l.state.Offer, Agent: "a", Holder: "w1", LeaseMS: lease, Attempt: 1})
		}),
		"at work": with(nil, func(l *line) { l.accept("w1", sec) }),
		"taken by a person": with(nil, func(l *line) {
			l.add(&p.Taken{Meta: at(sec), Agent: p.Human, Holder: "w1", LeaseMS: lease})
		}),
		"at work, asked to stop": with(nil, func(l *line) {
			l.accept("w1", sec).add(&p.CancelRequested{Meta: p.Meta{At: Deadline(l.state).Add(-time.Second), By: "test"}})
		}),
		"asking": with(nil, func(l *line) {
			l.add(&p.Conditioned{Meta: at(sec), Offer: l.state.Offer, Agent: "a", NeedsContext: []string{"which branch"}})
		}),
		"deferred": with(nil, func(l *line) {
			l.add(&p.Conditioned{Meta: at(sec), Offer: l.state.Offer, Agent: "a", RetryAfterMS: p.RetryAfterMaxMS})
		}),
		"waiting for a child": with(nil, func(l *line) {
			l.accept("w1", sec)
			l.add(&p.HandedOff{Meta: at(sec), Fence: l.state.Fence, N: 0, Ticket: p.ChildTicketN(ticket, 0)})
			l.add(&p.Suspended{Meta: at(sec), Fence: l.state.Fence, Children: []int{0}})
		}),
		"between attempts": with(nil, func(l *line) {
			l.accept("w1", sec)
			l.add(&p.Failed{Meta: at(sec), Fence: l.state.Fence, Attempt: 1, Code: "x", Retryable: true})
			l.add(&p.RetryScheduled{Meta: at(sec), Attempt: 1, Due: t0.Add(1000 * 24 * time.Hour)})
		}),
		"failed, undecided": with(nil, func(l *line) {
			l.accept("w1", sec)
			l.add(&p.Failed{Meta: at(sec), Fence: l.state.Fence, Attempt: 1, Code: "x", Retryable: true})
		}),
		"refused by all": with(nil, func(l *line) {
			l.add(&p.Rejected{Meta: at(sec), Offer: l.state.Offer, Agent: "a", Reason: "no"})
		}),
		"a group": with(func(s *p.Summary) {
			s.Type, s.Target, s.Aggregate = p.Broadcast, p.Target{}, &p.Aggregate{Size: 2, Mode: p.AggregateAll}
		}, nil),
		"stuck": with(nil, func(l *line) { l.add(&p.Stuck{Meta: at(sec), Reason: "bodies are gone"}) }),
	}
	late := states["in a queue"] // a clock ran out, and what follows is not decided
	late.Phase, late.TimedOut = p.PhaseTimeout, p.ClockAcknowledge
	states["timed out, undecided"] = late
	states["waiting for an approval"] = with(func(s *p.Summary) { s.Approval = &p.Approval{Required: true} }, nil)
	states["waiting for its source"] = with(func(s *p.Summary) { s.AwaitsSource, s.Parent, s.N = true, "parent", 1 }, nil)
	return states
}

// Nothing keeps a handoff open past its deadline and the time to intervene after
// it: not a worker that beats, not a person, not a policy. So none is open for longer than a package may ask for,
// however its state came to be, and none is open when the ledger drops it.
func TestTheDeadlineClosesEverything(t *testing.T) {
	most := t0.Add(millis(p.DeadlineMaxMS))
	for _, c := range []struct {
		name   string
		asked  func(*p.Summary)
		tamper func(*p.State)
		due    time.Time
	}{
		{"its own", func(s *p.Summary) { s.Deadline = t0.Add(72 * time.Hour) }, nil, t0.Add(72 * time.Hour)},
		{"by default", func(s *p.Summary) { s.Deadline = p.Time{} }, nil, t0.Add(millis(p.DeadlineDefaultMS))},
		{"the longest", func(s *p.Summary) { s.Deadline = most }, nil, most},
		{"longer than allowed", func(s *p.Summary) { s.Deadline = t0.AddDate(10, 0, 0) }, nil, most},
		{"forgotten by who wrote the state", func(*p.Summary) {}, func(s *p.State) { s.Deadline = p.Time{} }, most},
	} {
		t.Run(c.name, func(t *testing.T) {
			seen := map[p.Phase]bool{}
			for name, s := range openStates(t, c.asked) {
				if c.tamper != nil {
					c.tamper(&s)
				}
				seen[s.Phase] = true
				d := fleet(agent("a"), agent("b")).live("a", "w1", 1)
				if wake := wakeAfter(s, c.due.Add(-time.Microsecond)); !wake.Equal(c.due) {
					t.Errorf("%s: reconciled again at %v, not at %v", name, wake, c.due)
				}
				at, after := c.due, s
				for rounds := 0; !after.Closed && rounds < 2; rounds++ { // the second time it has been overdue
					after = mustDecide(after, d, at).State
					after.Bind(uint64(100 + rounds))
					if !after.Closed {
						at = Deadline(after)
					}
				}
				if !after.Closed || at.After(most) || at.After(c.due.Add(millis(s.Policy.InterventionTimeoutMS))) || after.Inbox != p.Human && after.Outcome != p.OutcomeCancelled {
					t.Errorf("%s: at %v it is %s, closed %t, in the inbox of %q", name, at, after.Phase, after.Closed, after.Inbox)
				}
			}
			for _, phase := range open {
				if !seen[phase] {
					t.Errorf("no state in phase %s", phase)
				}
			}
		})
	}
}
