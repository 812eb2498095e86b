package lifecycle

import (
	"slices"
	"testing"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// TestClaim is the table of DESIGN §5, Claiming, a row at a time.
func TestClaim(t *testing.T) {
	present := fleet(agent("a"), agent("b")).live("a", "w1", 1).live("a", "me", 0)
	gone := fleet(agent("a"), agent("b")).live("a", "me", 0)
	lately := fleet(agent("a"), agent("b")).live("a", "me", 0)
	lately.ConnectedSince = t0.Add(50 * sec)
	cutOff := fleet(agent("a"))
	cutOff.ConnectedSince = time.Time{}
	mine := func(s p.State) p.State {
		if s.Held() {
			s.Holder = "me"
		}
		return s
	}
	in := func(column string) p.State { return stateIn(t, column) }
	cancelled := func(s p.State) p.State {
		next, err := Apply(s, &p.CancelRequested{Meta: at(30 * sec)})
		if err != nil {
			t.Fatal(err)
		}
		return next
	}
	last := func(s p.State) p.State {
		s.Policy.MaxAttempts = 1
		return s
	}
	lapsed := func(s p.State) p.State {
		s.LapsedClaims = LapsedClaimsMax - 1
		return s
	}
	reminded := func(s p.State) p.State { // the head moved on, the offer did not
		next, err := Apply(s, &p.Stuck{Meta: at(sec), Reason: "once"})
		if err != nil {
			t.Fatal(err)
		}
		return next
	}
	cases := []struct {
		name   string
		state  p.State
		change func(*Claimant)
		d      *Directory
		now    time.Duration
		want   Verdict
		events string
	}{
		{"closed", closedIn(t, "complete"), nil, present, time.Minute, Drop, "nothing"},
		{"never submitted", p.State{}, nil, present, time.Minute, Drop, "nothing"}, // the shell lets go before it comes here
		{"another offer is current", in("pending"), func(c *Claimant) { c.Offer = 9 }, present, time.Minute, Drop, "nothing"},
		{"it is with another agent", in("pending"), func(c *Claimant) { c.Agent = "b" }, present, time.Minute, Drop, "nothing"},
		{"my offer is the current one", in("pending"), nil, present, time.Minute, Take, "nothing"},
		{"the same, on a head that moved", reminded(in("pending")), nil, present, time.Minute, Take, "nothing"},
		{"the same, and no directory", in("pending"), nil, nil, time.Minute, Take, "nothing"},
		{"I have it", mine(in("working")), nil, present, time.Minute, Mine, "nothing"},
		{"I have it, and am not in the directory", mine(in("accepted")), nil, fleet(), time.Minute, Mine, "nothing"},
		{"I have it, not acknowledged", mine(in("claimed")), nil, present, time.Minute, Mine, "nothing"},
		{"another has it", in("working"), nil, present, time.Minute, LetGo, "nothing"},
		{"another has it, not acknowledged", in("claimed"), nil, present, 30 * sec, LetGo, "nothing"},
		{"another has it, and has not acknowledged in time", in("claimed"), nil, present, 31 * sec, Take, "lease_lost w1 (not_acknowledged)"},
		{"another let the last claim lapse that may lapse: a supervisor moves it", lapsed(in("claimed")), nil, present, 31 * sec, LetGo, "nothing"},
		{"another is gone, but I came lately", in("working"), nil, lately, 79 * sec, LetGo, "nothing"},
		{"another is gone, and I have been here for a lease", in("working"), nil, lately, 80 * sec, Take, "lease_lost w1"},
		{"another is gone, but I am cut off", in("working"), nil, cutOff, time.Minute, LetGo, "nothing"},
		{"another is gone, and I have no directory", in("working"), nil, nil, time.Minute, LetGo, "nothing"},
		{"another is gone that had only claimed", in("claimed"), nil, gone, time.Minute, Take, "lease_lost w1"},
		{"another is gone with the last attempt", last(in("working")), nil, gone, time.Minute, Drop, "lease_lost w1; escalated 1 a>human; offered human (escalation)"},
		{"another is gone that had only claimed, one attempt allowed", last(in("claimed")), nil, gone, time.Minute, Take, "lease_lost w1"},
		{"to be cancelled", cancelled(in("pending")), nil, present, time.Minute, Drop, "closed cancelled (cancelled)"},
		{"to be cancelled, and another has it", cancelled(in("working")), nil, present, 31 * sec, LetGo, "nothing"},
		{"to be cancelled, and another is gone", cancelled(in("working")), nil, gone, 31 * sec, Drop, "lease_lost w1; closed cancelled (cancelled)"},
		{"past its deadline", in("pending"), nil, present, 24 * time.Hour, Drop, "timed_out deadline; escalated 1 a>human; offered human (escalation)"},
		{"past its deadline, and another is gone", in("working"), nil, gone, 24 * time.Hour, Drop, "timed_out deadline; escalated 1 a>human; offered human (escalation)"},
		{"past its deadline, and I have it", mine(in("working")), nil, present, 24 * time.Hour, Mine, "nothing"},
		{"refused", in("rejected"), nil, present, time.Minute, Drop, "nothing"},
		{"conditional", in("asking"), nil, present, time.Minute, Drop, "nothing"},
		{"failed", in("failed"), nil, present, time.Minute, Drop, "nothing"},
		{"retrying", in("retrying"), nil, present, time.Minute, Drop, "nothing"},
		{"timed out", in("timeout"), nil, present, time.Minute, Drop, "nothing"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			me := Claimant{Agent: "a", Holder: "me", LeaseMS: lease, Offer: 1}
			if c.change != nil {
				c.change(&me)
			}
			verdict, step := mustClaim(c.state, me, c.d, t0.Add(c.now))
			if verdict != c.want || brief(step.Events) != c.events {
				t.Fatalf("verdict %d with %s, want %d with %s", verdict, brief(step.Events), c.want, c.events)
			}
			if verdict == Take { // what Claim says and an acceptance go together
				answer, err := Acknowledge(step.State, me, p.Ack{Status: p.AckAccepted}, true, t0.Add(c.now))
				if err != nil {
					t.Fatal(err)
				}
				step = step.Then(answer)
			}
			next := step.State
			if verdict == Take && (next.Holder != "me" || next.Fence != p.Self || next.Phase != p.Working) {
				t.Errorf("after taking it: %s", asJSON(t, next))
			}
			if verdict == Drop && len(step.Events) > 0 && !next.Closed && next.Offer == c.state.Offer {
				t.Errorf("dropped with %s, and it is still the offer", brief(step.Events))
			}
		})
	}
}

// TestTakeoverCountsAttempts: the successor's is the next attempt, until there is none.
func TestTakeoverCountsAttempts(t *testing.T) {
	d := fleet(agent("a"))
	l := submit(t, d, nil).accept("w1", sec)
	offer := l.state.Offer
	for attempt := 2; attempt <= 3; attempt++ {
		verdict, lost := mustClaim(l.state, l.claimant("next"+string(rune('0'+attempt))), d, t0.Add(time.Minute))
		if verdict != Take {
			t.Fatalf("attempt %d: verdict %d", attempt, verdict)
		}
		c := l.claimant("next" + string(rune('0'+attempt)))
		answer, err := Acknowledge(lost.State, c, p.Ack{Status: p.AckAccepted}, true, t0.Add(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		if got := answer.Events[0].(*p.Accepted).Attempt; got != attempt {
			t.Errorf("the event says attempt %d, want %d", got, attempt)
		}
		l.take(lost.Then(answer))
		if l.state.Attempt != attempt || l.state.Offer != offer || l.state.Fence != l.seq {
			t.Errorf("attempt %d, offer %d, fence %d", l.state.Attempt, l.state.Offer, l.state.Fence)
		}
	}
	verdict, step := mustClaim(l.state, l.claimant("last"), d, t0.Add(time.Minute))
	if verdict != Drop || brief(step.Events) != "lease_lost next3; escalated 1 a>human; offered human (escalation)" {
		t.Errorf("verdict %d, %s", verdict, brief(step.Events))
	}
}

func TestAcknowledge(t *testing.T) {
	now := t0.Add(time.Minute)
	me := Claimant{Agent: "a", Holder: "w1", LeaseMS: lease, Offer: 1}
	reject := p.Ack{Status: p.AckRejected, ReasonCode: "unable", Reason: "no", SuggestedAlternative: "b"}
	ask := p.Ack{Status: p.AckConditional, NeedsContext: []string{"x"}, NeedsPermission: []string{"y"}, Reason: "why", RetryAfterMS: 5}
	for _, c := range []struct {
		name, column string
		ack          p.Ack
		start        bool
		want, phase  string
	}{
		{"accept", "pending", p.Ack{Status: p.AckAccepted}, false, "accepted", "accepted"},
		{"accept and start", "pending", p.Ack{Status: p.AckAccepted}, true, "accepted started", "working"},
		{"accept what I claimed", "claimed", p.Ack{Status: p.AckAccepted}, false, "accepted", "accepted"},
		{"accept and start what I claimed", "claimed", p.Ack{Status: p.AckAccepted}, true, "accepted started", "working"},
		{"refuse", "pending", reject, false, "rejected", "rejected"},
		{"refuse what I claimed", "claimed", reject, true, "rejected", "rejected"},
		{"refuse out of the work", "working", reject, false, "rejected", "rejected"},
		{"ask", "pending", ask, false, "conditioned", "conditional"},
		{"ask out of the work", "working", ask, true, "conditioned", "conditional"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := stateIn(t, c.column)
			step, err := Acknowledge(s, me, c.ack, c.start, now)
			if err != nil || types(step.Events) != c.want || string(step.State.Phase) != c.phase {
				t.Fatalf("%s to %s, %v; want %s to %s", types(step.Events), step.State.Phase, err, c.want, c.phase)
			}
			for _, e := range step.Events {
				if !e.When().Equal(now) {
					t.Errorf("%s at %s", e.EventType(), e.When())
				}
			}
		})
	}
	s := stateIn(t, "pending")
	first := func(step Step, err error) p.Event {
		if err != nil {
			t.Fatal(err)
		}
		return step.Events[0]
	}
	accepted := first(Acknowledge(s, me, p.Ack{Status: p.AckAccepted, EstimatedCompletionMS: 60_000}, false, now)).(*p.Accepted)
	if accepted.EstimatedCompletion != now.Add(time.Minute) || accepted.LeaseMS != lease || accepted.Attempt != 1 {
		t.Errorf("accepted %+v", accepted)
	}
	rejected := first(Acknowledge(s, me, reject, false, now)).(*p.Rejected)
	if rejected.Alternative != "b" || rejected.ReasonCode != "unable" || rejected.Reason != "no" || rejected.Holder != "" {
		t.Errorf("rejected %+v", rejected)
	}
	asked := first(Acknowledge(stateIn(t, "claimed"), me, ask, false, now)).(*p.Conditioned)
	if !slices.Equal(asked.NeedsContext, []string{"x"}) || !slices.Equal(asked.NeedsPermission, []string{"y"}) || asked.RetryAfterMS != 5 || asked.Holder != "w1" {
		t.Errorf("asked %+v", asked)
	}
}

// TestRelease: a drain releases what it has, at no charge and under a new offer.
func TestRelease(t *testing.T) {
	for _, column := range []string{"claimed", "accepted", "working"} {
		s := stateIn(t, column)
		step, err := Release(s, fleet().At(t0.Add(time.Minute)), "w1", "drain", nil)
		if err != nil || types(step.Events) != "released offered" {
			t.Fatalf("%s: %s, %v", column, types(step.Events), err)
		}
		if next := step.State; next.Phase != p.Pending || next.Held() || next.Attempt != 0 || next.AttemptsTotal != 0 || next.Offer != p.Self || next.Agent != "a" {
			t.Errorf("%s: %s", column, asJSON(t, next))
		}
	}
	if _, err := Release(stateIn(t, "pending"), fleet().At(t0), "w1", "drain", nil); err == nil {
		t.Error("released what nobody has")
	}
}

func TestCancel(t *testing.T) {
	d := fleet(agent("a")).live("a", "w1", 1)
	atOnce := "cancel_requested; closed cancelled (cancelled)"
	for column, want := range map[string]string{"approval": atOnce, "pending": atOnce, "asking": atOnce, "deferred": atOnce,
		"retrying": atOnce, "timeout": atOnce, "rejected": atOnce, "failed": atOnce,
		"claimed": "cancel_requested", "accepted": "cancel_requested", "working": "cancel_requested"} {
		s := stateIn(t, column)
		step, err := Cancel(s, d.At(t0.Add(time.Minute)), "src", "enough", false)
		if err != nil || brief(step.Events) != want {
			t.Errorf("%s: %s, %v; want %s", column, brief(step.Events), err, want)
		}
		next := step.State
		if !next.CancelRequested || next.Closed != (want == atOnce) {
			t.Errorf("%s: %s", column, asJSON(t, next))
		}
		if next.Closed {
			_, err = Cancel(next, d.At(t0.Add(2*time.Minute)), "src", "enough", false)
			wantError(t, err, p.CodeClosed)
		} else if again, err := Cancel(next, d.At(t0.Add(2*time.Minute)), "src", "enough", false); err != nil || len(again.Events) > 0 {
			t.Errorf("%s again: %s, %v", column, brief(again.Events), err)
		}
	}
	if step, err := Cancel(p.State{}, d.At(t0), "src", "enough", false); err == nil {
		t.Errorf("cancelled what was never submitted: %s", brief(step.Events))
	}
}

func TestAnswer(t *testing.T) {
	d := fleet(agent("a"))
	for _, column := range []string{"pending", "claimed", "accepted", "working", "retrying", "deferred", "timeout", "rejected", "failed"} {
		step, err := Answer(stateIn(t, column), d.At(t0), p.Answer{By: "src", Question: 1, Text: "so"})
		if wantError(t, err, p.CodeIllegal); step.Events != nil {
			t.Errorf("%s: events beside the error", column)
		}
	}
	_, err := Answer(closedIn(t, "complete"), d.At(t0), p.Answer{By: "src", Question: 1, Text: "so"})
	wantError(t, err, p.CodeClosed)

	asking := stateIn(t, "pending")
	asking, err = Apply(asking, &p.Conditioned{Meta: at(sec), Offer: 1, Agent: "a", NeedsContext: []string{"c"}, NeedsPermission: []string{"deploy"}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = Answer(asking, d.At(t0), p.Answer{By: "src", Question: 1, Text: "so"})
	wantError(t, err, p.CodeMissing)
	for answer, want := range map[*p.Answer]string{
		{By: "src", Question: 1, Text: "so", Permit: true}:    "answered; offered a (answer)",
		{By: "src", Question: 1, Deny: true}:                  "answered; closed rejected (permission_denied)",
		{By: "src", Question: 1, Deny: true, Permit: true}:    "answered; closed rejected (permission_denied)",
		{By: "src", Question: 1, Deny: true, LetOthers: true}: "answered; escalated 1 a>human; offered human (escalation)",
	} {
		step, err := Answer(asking, d.At(t0.Add(time.Minute)), *answer)
		if err != nil || brief(step.Events) != want {
			t.Errorf("%+v: %s, %v; want %s", answer, brief(step.Events), err, want)
		}
	}
	often := stateIn(t, "asking")
	often.ConditionRounds = often.Policy.MaxConditions + 1
	_, err = Answer(often, d.At(t0), p.Answer{By: "src", Question: 1, Text: "so"})
	wantError(t, err, p.CodeIllegal)
	// An answer whose append held no offer is followed up by the next reconcile.
	l := &line{t: t, state: stateIn(t, "asking"), seq: 5}
	l.add(&p.Answered{Meta: at(time.Minute), Answer: p.Answer{By: "src", Question: 1, Text: "so"}})
	if got := brief(l.decide(d.At(t0.Add(time.Minute)))); got != "offered a (answer)" {
		t.Errorf("decided %s", got)
	}
}

// A claim whose queue clock runs out is taken from its holder before the handoff goes
// up, though no attempt is left.
func TestClaimWithoutAttemptsLeft(t *testing.T) {
	s := stateIn(t, "claimed")
	s.Attempt, s.AttemptsTotal, s.Policy.MaxAttempts = 1, 1, 1
	s.Policy.QueueTimeoutMS = 60_000
	step := mustDecide(s, fleet(agent("a")).live("a", "w1", 1), t0.Add(time.Hour))
	if got := brief(step.Events); got != "timed_out queue; escalated 1 a>human; offered human (escalation)" {
		t.Error(got)
	}
}
