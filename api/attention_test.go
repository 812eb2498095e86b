package api

import (
	"slices"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

var attendNoon = time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)

// TestAttend: the most urgent first, and few that are only old.
func TestAttend(t *testing.T) {
	state := func(ticket string, change func(*protocol.State)) protocol.State {
		s := protocol.State{Phase: protocol.Working, Agent: "clerk", Offer: 1, Holder: "h"}
		s.Ticket, s.SubmittedAt, s.UpdatedAt = ticket, attendNoon.Add(-time.Hour), attendNoon.Add(-time.Hour)
		change(&s)
		return s
	}
	gated := func(ticket string, kind protocol.GateKind) protocol.State {
		return state(ticket, func(s *protocol.State) {
			s.Phase, s.Holder = protocol.Pending, ""
			s.Gate = &protocol.Gate{GateTerms: protocol.GateTerms{Waits: []protocol.GateKind{kind}, Agent: "clerk", Approver: protocol.Human, Until: attendNoon.Add(time.Hour)}}
			if kind == protocol.GateApproval {
				s.Phase = protocol.AwaitingApproval
			}
			s.SubmittedAt = s.SubmittedAt.Add(time.Minute)
		})
	}
	none := func(*protocol.State) {}
	states := []protocol.State{
		state("old-1", none), state("old-2", none), state("old-3", none), state("old-4", none),
		state("closed", func(s *protocol.State) { s.Closed = true }),
		state("person", func(s *protocol.State) { s.Phase, s.Agent, s.Holder = protocol.Pending, protocol.Human, "" }),
		state("question", func(s *protocol.State) {
			s.Phase, s.Conditions, s.ConditionedAt = protocol.Conditional, &protocol.Conditions{NeedsContext: []string{"which?"}}, attendNoon
			s.Policy.ConditionTimeoutMS = 1000_000
		}),
		gated("budget", protocol.GateBudget), gated("approval", protocol.GateApproval), gated("old-5", protocol.GateBreaker),
		state("stuck", func(s *protocol.State) { s.StuckReason = "no package" }),
	}
	later := gated("later", protocol.GateStart) // for a person, who has nothing to do before its start
	later.Phase, later.Agent, later.StartAt = protocol.AwaitingApproval, protocol.Human, attendNoon.Add(time.Hour)
	later.SubmittedAt = attendNoon.Add(-2 * time.Hour)
	states = append(states, later)
	d := &lifecycle.Directory{Agents: map[string]*protocol.Profile{"clerk": {ID: "clerk"}}}
	var got []string
	for _, item := range attend(states, d, attendNoon) {
		got = append(got, string(item.Need)+" "+item.State.Ticket)
		if item.Words.Words == "" {
			t.Errorf("no words for %s", item.State.Ticket)
		}
	}
	if want := []string{"stuck stuck", "person person", "approval approval", "budget budget", "question question", "oldest later", "oldest old-1", "oldest old-2"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
