package lifecycle

import (
	"errors"
	"reflect"
	"testing"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// TestStepAppliesOnce: whatever makes an append applies each of its events once, and its
// state is what they make. Closing appends, with what follows from the end, are among them.
func TestStepAppliesOnce(t *testing.T) {
	applied := 0
	for kind, rule := range table {
		counted, apply := rule, rule.apply
		counted.apply = func(s *p.State, e p.Event) error { applied++; return apply(s, e) }
		table[kind] = counted
		defer func() { table[kind] = rule }()
	}
	d := fleet(agent("a", "go"), agent("b", "go"), agent("src"))
	made, closing := map[string]int{}, 0
	try := func(name string, s p.State, do func() (Step, error)) {
		applied = 0
		step, err := do()
		if err != nil || len(step.Events) == 0 {
			return
		}
		made[name]++
		if applied != len(step.Events) {
			t.Errorf("%s in %s: %s applied %d events", name, s.Phase, brief(step.Events), applied)
		}
		if next, err := ApplyAll(s, step.Events); err != nil || !reflect.DeepEqual(next, step.State) {
			t.Errorf("%s in %s: the state is not that of %s, %v", name, s.Phase, brief(step.Events), err)
		}
		if !s.Closed && step.State.Closed {
			closing++
		}
	}
	for _, column := range []string{"approval", "pending", "claimed", "accepted", "working", "asking", "deferred", "retrying", "timeout", "rejected", "failed", "waiting", "group", "owing", "closed"} {
		s := stateIn(t, "working")
		switch column {
		case "owing":
			s = owingIn(t, "failed")
		case "closed":
			s = closedIn(t, "cancelled")
			s.Inbox = p.Human
		default:
			s = stateIn(t, column)
		}
		for _, asked := range []bool{false, true} {
			s.CancelRequested = s.CancelRequested || asked && !s.Closed
			s.ReturnExpected = true
			for name, do := range constructors(s, d) {
				try(name, s, do)
			}
		}
	}
	group, awaiting := stateIn(t, "group"), stateIn(t, "pending")
	try("Assign", group, func() (Step, error) { return Assign(group, 1, []string{"a"}, t0) })
	awaiting.Phase, awaiting.Agent, awaiting.Offer, awaiting.AwaitsSource, awaiting.N = p.AwaitingSource, "", 0, true, 1
	try("FollowSource", awaiting, func() (Step, error) { return FollowSource(awaiting, p.State{}, d.At(t0)) })
	summary := p.Summary{Type: p.Sequential, Source: "src", Target: p.Target{Agent: "a"}, Priority: p.Normal, Digest: "sha256:0"}
	try("Submit", p.State{}, func() (Step, error) { return Submit(ticket, summary, p.Submitted{}, d.At(t0)) })
	summary.Target.Agent = "nobody"
	try("SubmitAnyway", p.State{}, func() (Step, error) { return SubmitAnyway(ticket, summary, p.Submitted{}, d.At(t0)) })
	for name := range constructors(p.State{}, d) {
		if made[name] == 0 {
			t.Errorf("%s made no append", name)
		}
	}
	if closing < 20 {
		t.Errorf("%d closing appends only", closing)
	}
	for _, name := range []string{"Assign", "FollowSource", "Submit", "SubmitAnyway"} {
		if made[name] != 1 {
			t.Errorf("%s made %d appends", name, made[name])
		}
	}
}

// constructors are the functions of the core that make an append from a state, by name.
func constructors(s p.State, d *Directory) map[string]func() (Step, error) {
	now, holder := t0.Add(40*time.Second), s.Holder
	c := Claimant{Agent: s.Agent, Holder: "next", LeaseMS: lease, Offer: s.Offer}
	ends := []p.ChildClosed{{N: 0, Outcome: p.OutcomeSuccess}, {N: 1, Outcome: p.OutcomeFailed}, {N: 2, Outcome: p.OutcomeFailed}}
	answer := func(ack p.Ack) func() (Step, error) {
		return func() (Step, error) { return Acknowledge(s, c, ack, true, now) }
	}
	return map[string]func() (Step, error){
		"Decide":      func() (Step, error) { return Decide(s, d.At(now)) },
		"Decide late": func() (Step, error) { return Decide(s, d.At(now.Add(31*24*time.Hour))) },
		"Claim":       func() (Step, error) { _, step, err := Claim(s, c, d.At(now)); return step, err },
		"Claim, then": func() (Step, error) {
			verdict, step := mustClaim(s, c, d, now)
			if verdict != Take {
				return Step{}, nil
			}
			next, err := Acknowledge(step.State, c, p.Ack{Status: p.AckAccepted}, true, now)
			return step.Then(next), err
		},
		"accept":    answer(p.Ack{Status: p.AckAccepted}),
		"reject":    answer(p.Ack{Status: p.AckRejected}),
		"ask":       answer(p.Ack{Status: p.AckConditional, NeedsContext: []string{"x"}}),
		"ClaimOnly": func() (Step, error) { return ClaimOnly(s, c, 0, now) },
		"Release":   func() (Step, error) { return Release(s, d.At(now), holder, "drain", nil) },
		"Extend":    func() (Step, error) { return Extend(s, holder, time.Minute, "more", now) },
		"Progress":  func() (Step, error) { return Progress(s, holder, p.Progress{Percent: 1}, now) },
		"Fail":      func() (Step, error) { return Fail(s, holder, Failure{Code: "exit"}, now) },
		"Complete": func() (Step, error) {
			return Complete(s, d.At(now), p.Completed{Status: p.Success}, []Next{{HandedOff: p.HandedOff{N: 7, Ticket: "child"}}})
		},
		"RollBackHeld": func() (Step, error) { return RollBackHeld(s, d.At(now), p.RolledBack{Reason: "no"}) },
		"HandOff":      func() (Step, error) { return HandOff(s, Next{HandedOff: p.HandedOff{N: 7, Ticket: "child"}}, now) },
		"Suspend":      func() (Step, error) { return Suspend(s, holder, []int{0}, now) },
		"Escalate":     func() (Step, error) { return Escalate(s, d.At(now), holder, "why", "") },
		"Answer": func() (Step, error) {
			return Answer(s, d.At(now), p.Answer{By: p.Human, Question: QuestionOf(s).N, Text: "so", Permit: true})
		},
		"deny": func() (Step, error) {
			return Answer(s, d.At(now), p.Answer{By: p.Human, Question: QuestionOf(s).N, Deny: true})
		},
		"Cancel":   func() (Step, error) { return Cancel(s, d.At(now), "src", "enough", true) },
		"RollBack": func() (Step, error) { return RollBack(s, d.At(now), "src", "enough") },
		"TakeNow": func() (Step, error) {
			return TakeNow(s, d.At(now), Claimant{Agent: "b", Holder: "h2", LeaseMS: lease}, "")
		},
		"RerouteTo":    func() (Step, error) { return RerouteTo(s, d.At(now), "b", "src", "", time.Time{}) },
		"MarkChildren": func() (Step, error) { return MarkChildren(s, d.At(now), ends) },
		"Park": func() (Step, error) {
			return Park(s, p.ResultParked{Holder: "old", Fence: 99, Status: p.Success}, now), nil
		},
		"Redrive":      func() (Step, error) { return Redrive(s, "src", now) },
		"Dismiss":      func() (Step, error) { return Dismiss(s, "src", "", now) },
		"RecordStuck":  func() (Step, error) { return RecordStuck(s, errors.New("broken"), now) },
		"SettleReturn": func() (Step, error) { return SettleReturn(s, true, "", now) },
	}
}
