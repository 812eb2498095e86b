package cli

import (
	"testing"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

func TestDeadFilter(t *testing.T) {
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	dead := protocol.State{Agent: "a", Outcome: protocol.OutcomeFailed, ClosedAt: now.Add(-time.Hour), Summary: protocol.Summary{Source: "s"}}
	again := dead
	again.RedrivenAs = "r"
	for name, c := range map[string]struct {
		filter deadFilter
		state  protocol.State
		keep   bool
	}{
		"no filter":                {deadFilter{}, dead, true},
		"redriven":                 {deadFilter{}, again, false},
		"redriven, and asked for":  {deadFilter{redriven: true}, again, true},
		"of its agent":             {deadFilter{agent: "a"}, dead, true},
		"of another agent":         {deadFilter{agent: "b"}, dead, false},
		"from its source":          {deadFilter{source: "s"}, dead, true},
		"from another source":      {deadFilter{source: "a"}, dead, false},
		"of its outcome":           {deadFilter{outcome: "failed"}, dead, true},
		"of another outcome":       {deadFilter{outcome: "timeout"}, dead, false},
		"closed since":             {deadFilter{since: "2h"}, dead, true},
		"closed before":            {deadFilter{since: "30m"}, dead, false},
		"closed since an instant":  {deadFilter{since: "2026-01-31T11:00:00Z"}, dead, true},
		"closed before an instant": {deadFilter{since: "2026-01-31T11:00:01Z"}, dead, false},
	} {
		if err := c.filter.check(now); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := c.filter.query().Selects(c.state); got != c.keep {
			t.Errorf("%s: kept %v, want %v", name, got, c.keep)
		}
	}
	for _, wrong := range []deadFilter{{agent: "a b"}, {outcome: "success"}, {since: "-1h"}, {since: "soon"}, {limit: -1}} {
		if err := wrong.check(now); err == nil {
			t.Errorf("%+v was not refused", wrong)
		}
	}
}

func TestRedriveTakesGroupsWhole(t *testing.T) {
	group := protocol.State{Ticket: "g", Summary: protocol.Summary{Aggregate: &protocol.Aggregate{Size: 1}}}
	member := protocol.State{Ticket: "m", Summary: protocol.Summary{Group: "g"}}
	alone := protocol.State{Ticket: "a", Summary: protocol.Summary{Group: "another"}}
	got := withoutMembers([]protocol.State{member, group, alone})
	if len(got) != 2 || got[0].Ticket != "g" || got[1].Ticket != "a" {
		t.Errorf("redriven would be %v", got)
	}
}
