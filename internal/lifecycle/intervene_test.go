package lifecycle

import (
	"errors"
	"testing"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// TestHandOff: what cannot be a child's ordinal is refused in words.
func TestHandOff(t *testing.T) {
	working := stateIn(t, "working")
	for _, n := range []int{-1, p.ChildrenMax} {
		_, err := HandOff(working, Next{HandedOff: p.HandedOff{N: n, Ticket: "child"}}, t0)
		wantError(t, err, p.CodeTooLarge)
	}
	if step, err := HandOff(working, Next{HandedOff: p.HandedOff{N: 0, Ticket: "child"}}, t0); err != nil || len(step.Events) > 0 {
		t.Errorf("a child that was handed off before: %s, %v", brief(step.Events), err)
	}
	step, err := HandOff(working, Next{HandedOff: p.HandedOff{N: p.ChildrenMax - 1, Ticket: "child"}}, t0)
	if err != nil || brief(step.Events) != "handed_off 999" {
		t.Fatalf("%s, %v", brief(step.Events), err)
	}
	if c := step.State.Children; c.Count != p.ChildrenMax || c.Made.Len() != 2 {
		t.Errorf("children %+v", c)
	}
}

// TestSuspendOutOfRange: an ordinal that no child can have is not waited for.
func TestSuspendOutOfRange(t *testing.T) {
	for _, children := range [][]int{nil, {-1}, {p.ChildrenMax}, {1}, {0, 1}} {
		_, err := Suspend(stateIn(t, "working"), "w1", children, t0)
		wantError(t, err, p.CodeIllegal)
	}
}

// TestOvertaken: what a holder says that has lost the handoff does not apply,
// and a result that it parks twice is kept once.
func TestOvertaken(t *testing.T) {
	d := fleet(agent("a"))
	l := submit(t, d, nil).accept("w1", sec)
	lost := l.state.Fence
	l.decide(d.At(t0.Add(time.Minute)))
	for name, speak := range map[string]func() (Step, error){
		"complete": func() (Step, error) { return Complete(l.state, d.At(t0), p.Completed{}, nil) },
		"hand off": func() (Step, error) {
			return Complete(l.state, d.At(t0), p.Completed{}, []Next{{HandedOff: p.HandedOff{N: 0, Ticket: "child"}}})
		},
	} {
		if step, err := speak(); !errors.Is(err, ErrStale) {
			t.Errorf("%s: %s, %v", name, brief(step.Events), err)
		}
	}
	late := p.ResultParked{Holder: "w1", Fence: lost, Status: p.Success}
	l.add(Park(l.state, late, t0.Add(time.Minute)).Events...)
	if again := Park(l.state, late, t0.Add(time.Hour)).Events; again != nil {
		t.Errorf("parked again: %s", brief(again))
	}
	if nobodys := Park(stateIn(t, "group"), late, t0).Events; nobodys != nil {
		t.Errorf("parked beside a group: %s", brief(nobodys))
	}
}

// TestLateResultsAreBounded: ten are kept, the last of them is the one used.
func TestLateResultsAreBounded(t *testing.T) {
	l := submit(t, fleet(agent("a")), nil)
	for i := range 2 * p.LateResultsMax {
		if events := Park(l.state, p.ResultParked{Fence: uint64(100 + i), Status: p.Success}, t0).Events; i < p.LateResultsMax {
			l.add(events...)
		} else if events != nil {
			t.Errorf("the %d. was parked", i+1)
		}
	}
	if len(l.state.LateFences) != p.LateResultsMax || l.state.LateSeq != l.seq {
		t.Errorf("late results %v, the last at %d", l.state.LateFences, l.state.LateSeq)
	}
}

// TestMarkChildrenOfNobody: ends that nobody waits for make no append.
func TestMarkChildrenOfNobody(t *testing.T) {
	d := fleet(agent("a"))
	ends := []p.ChildClosed{{N: 0, Outcome: p.OutcomeSuccess}}
	for _, s := range []p.State{stateIn(t, "pending"), stateIn(t, "working"), closedIn(t, "complete")} {
		if step, err := MarkChildren(s, d.At(t0), ends); err != nil || step.Events != nil {
			t.Errorf("%s: %s, %v", s.Phase, brief(step.Events), err)
		}
	}
	if step, err := MarkChildren(stateIn(t, "waiting"), d.At(t0), []p.ChildClosed{{N: 5}, {N: -1}}); err != nil || step.Events != nil {
		t.Errorf("ends of children it has not: %s, %v", brief(step.Events), err)
	}
	if step, err := MarkChildren(owingIn(t, "failed"), d.At(t0), ends); err != nil || brief(step.Events) != "children_closed 0:success" {
		t.Errorf("of a closed one that cancels its children: %s, %v", brief(step.Events), err)
	}
}

// TestAwaitingApproval: nobody takes or reroutes what may not be offered yet; it
// can be cancelled, rolled back, and runs out of time.
func TestAwaitingApproval(t *testing.T) {
	d, s := fleet(agent("a"), agent("b")), stateIn(t, "approval")
	_, err := TakeNow(s, d.At(t0), Claimant{Agent: "a", Holder: "w1", LeaseMS: lease}, "")
	wantError(t, err, p.CodeIllegal)
	_, err = RerouteTo(s, d.At(t0), "b", "src", "", time.Time{})
	wantError(t, err, p.CodeIllegal)
	if step, err := RollBack(s, d.At(t0.Add(sec)), "src", "never mind"); err != nil || brief(step.Events) != "rolled_back" {
		t.Errorf("%s, %v", brief(step.Events), err)
	}
	s.ReturnExpected, s.ReturnSince, s.Policy.ReturnTimeoutMS, s.Policy.OnReturnTimeout = true, t0, 60_000, p.OnTimeoutFail
	if got := brief(mustDecide(s, d, t0.Add(time.Minute)).Events); got != "closed timeout (return_timeout)" {
		t.Errorf("past its return timeout: %s", got)
	}
}

// TestWaitsFor: why a handoff waits for an agent or a person.
func TestWaitsFor(t *testing.T) {
	d := fleet(agent("a"), agent("src"))
	nobody := fleet(agent("a"))
	program := p.Holder{ID: "w1", Agent: "src", LeaseMS: 30_000, Slots: 1, Program: true}
	programs, others := fleet(agent("a"), agent("src")), fleet(agent("a"), agent("src"))
	programs.Holders = map[string]p.Holder{"w1": program}
	others.Holders = map[string]p.Holder{"w1": program, "w2": {ID: "w2", Agent: "src", LeaseMS: 30_000, Polling: true}}
	listed := owingIn(t, "failed")
	own := stateIn(t, "asking")
	own.Source = own.Agent
	cases := []struct {
		name  string
		state p.State
		agent string
		d     *Directory
		want  InboxReason
	}{
		{"asked whether another may have it", stateIn(t, "approval"), p.Human, d, InboxApproval},
		{"a person is asked, and no agent", stateIn(t, "approval"), "chief", d, InboxNone},
		{"in its queue", stateIn(t, "pending"), "a", d, InboxOffer},
		{"in another's", stateIn(t, "pending"), "b", d, InboxNone},
		{"passed up to it", stateIn(t, "above"), "chief", d, InboxEscalation},
		{"it was passed up", stateIn(t, "above"), "a", d, InboxNone},
		{"in its hands", stateIn(t, "working"), "a", d, InboxHeld},
		{"claimed by it", stateIn(t, "claimed"), "a", d, InboxHeld},
		{"an authority works on it", stateIn(t, "judged"), "chief", d, InboxHeld},
		{"a question to its source", stateIn(t, "asking"), "src", d, InboxQuestion},
		{"a question, but not to a person", stateIn(t, "asking"), p.Human, d, InboxNone},
		{"a question to a person: programs serve its source", stateIn(t, "asking"), p.Human, programs, InboxQuestion},
		{"a question to its source, which programs serve", stateIn(t, "asking"), "src", programs, InboxQuestion},
		{"a question to a source that programs and others serve", stateIn(t, "asking"), p.Human, others, InboxNone},
		{"a question to a person: its source is no agent", stateIn(t, "asking"), p.Human, nobody, InboxQuestion},
		{"what it asks itself, as the source", own, "a", d, InboxNone},
		{"what an agent asks itself goes to a person", own, p.Human, d, InboxQuestion},
		{"a deferral asks nobody", stateIn(t, "deferred"), "src", d, InboxNone},
		{"nor does one that waits for its children", stateIn(t, "waiting"), "src", d, InboxNone},
		{"a retry waits for time", stateIn(t, "retrying"), "a", d, InboxNone},
		{"a group waits for its members", stateIn(t, "group"), p.Human, d, InboxNone},
		{"closed, and to be seen", listed, p.Human, d, InboxReview},
		{"closed, and to be seen by somebody else", listed, "a", d, InboxNone},
		{"closed", closedIn(t, "failed"), p.Human, d, InboxNone},
	}
	for _, c := range cases {
		if got := InboxReasonFor(c.state, c.agent, c.d); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestTells: whose end is news to whom.
func TestTells(t *testing.T) {
	child := func(s p.State, change func(*p.State)) p.State {
		s.Parent, s.N = "parent", 1
		if change != nil {
			change(&s)
		}
		return s
	}
	closed := closedIn(t, "failed")
	for name, c := range map[string]struct {
		state p.State
		want  bool
	}{
		"a member":                    {child(closed, func(s *p.State) { s.Group = "parent" }), true},
		"one that is waited for":      {child(closed, func(s *p.State) { s.ReturnExpected = true }), true},
		"a group that was handed off": {child(closed, func(s *p.State) { s.Aggregate = &p.Aggregate{Size: 1} }), true},
		"one that was cancelled":      {child(closedIn(t, "cancelled"), nil), true},
		"one that follows":            {child(closed, nil), false},
		"one that is open":            {child(stateIn(t, "working"), func(s *p.State) { s.ReturnExpected = true }), false},
		"nobody's child":              {closed, false},
	} {
		if got := NotifiesParent(c.state); got != c.want {
			t.Errorf("%s tells its parent: %t", name, got)
		}
	}
	ret := func(s p.State) p.State { s.ReturnOf = ticket; return s }
	for name, c := range map[string]struct {
		state p.State
		want  bool
	}{
		"a return that its source has accepted": {ret(stateIn(t, "working")), true},
		"a return that has closed":              {ret(closed), true},
		"a return in the queue":                 {ret(stateIn(t, "pending")), false},
		"no return":                             {closed, false},
	} {
		if got := NotifiesOrigin(c.state); got != c.want {
			t.Errorf("%s tells its origin: %t", name, got)
		}
	}
}
