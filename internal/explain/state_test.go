package explain

import (
	"testing"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

func TestGroupText(t *testing.T) {
	group := func(closed, succeeded []int) protocol.State {
		s := protocol.State{Ticket: "t", Phase: protocol.Pending, Children: &protocol.Children{Count: 5, Made: protocol.AllBits(5),
			Closed: protocol.Bits("").With(closed...), Succeeded: protocol.Bits("").With(succeeded...)}}
		s.Aggregate = &protocol.Aggregate{Size: 5, Mode: protocol.AggregateMajority}
		return s
	}
	for want, s := range map[string]protocol.State{
		"group of 5: 0 closed":                          group(nil, nil),
		"group of 5: 2 closed (2 in favour)":            group([]int{0, 4}, []int{0, 4}),
		"group of 5: 1 closed (1 against)":              group([]int{3}, nil),
		"group of 5: 3 closed (2 in favour, 1 against)": group([]int{0, 1, 2}, []int{0, 2}),
		"": {},
	} {
		if got := Group(s); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := WaitingFor(group([]int{0, 1}, nil)).Words; got != "3 of its 5 members to end" {
		t.Errorf("it waits for %q", got)
	}
	if got := Aggregation(group(nil, nil)); got != "when more than half are in favour" {
		t.Errorf("it succeeds %q", got)
	}
}

// shown is a phrase with the operations of its actions.
func shown(p Phrase) string {
	words := p.Words
	for _, action := range p.Actions {
		words += " [" + action.Op + "]"
	}
	return words
}

// TestReturnText: wherever a return is, a reader is told how to get at it.
func TestReturnText(t *testing.T) {
	at := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	state := func(change func(*protocol.State)) protocol.State {
		s := protocol.State{Ticket: "t", Phase: protocol.Complete, Closed: true, Outcome: protocol.OutcomeSuccess,
			Summary: protocol.Summary{Source: "lead", ReturnExpected: true}}
		change(&s)
		return s
	}
	for want, s := range map[string]protocol.State{
		"":                 state(func(s *protocol.State) { s.ReturnExpected = false }),
		"lead expects one": state(func(s *protocol.State) { s.Closed = false }),
		"lead expects one by 2026-01-31 12:01:00Z": state(func(s *protocol.State) {
			s.Closed, s.ReturnSince, s.Policy.ReturnTimeoutMS = false, at, 60_000
		}),
		"waits for lead to take it in, as r":     state(func(s *protocol.State) { s.ReturnTicket = "r" }),
		"lead has it since 2026-01-31 12:00:00Z": state(func(s *protocol.State) { s.ReturnedAt, s.Phase = at, protocol.PhaseReturned }),
		"could not be delivered [return]":        state(func(s *protocol.State) { s.ReturnedAt = at }),
		" [return]":                              state(func(*protocol.State) {}),
	} {
		if got := shown(Return(s)); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestEveryPhaseSaysWhatItWaitsFor, in words that are not empty.
func TestEveryPhaseSaysWhatItWaitsFor(t *testing.T) {
	for _, phase := range protocol.Phases {
		if got := WaitingFor(protocol.State{Phase: phase, Agent: "a"}).Words; got == "" {
			t.Errorf("%s has no words for what it waits for", phase)
		}
	}
	human := protocol.State{Phase: protocol.Pending, Agent: protocol.Human}
	if got := shown(WaitingFor(human)); got != "a person [take]" {
		t.Errorf("a person is told %q, not what to do", got)
	}
}
