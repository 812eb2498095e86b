package cli

import (
	"cmp"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
)

func TestDeadFilter(t *testing.T) {
	hourAgo := protocol.State{Agent: "a", Outcome: protocol.OutcomeFailed, ClosedAt: time.Now().Add(-time.Hour), Summary: protocol.Summary{Source: "s"}}
	again := hourAgo
	again.RedrivenAs = "r"
	parse := func(args ...string) (ask.DeadQuery, error) {
		var q ask.DeadQuery
		fs := newFlagPart()
		bind(fs, &q)
		err := fs.Parse(args)
		return q, cmp.Or(err, checkDead(q))
	}
	for name, c := range map[string]struct {
		args  []string
		state protocol.State
		keep  bool
	}{
		"no filter":               {nil, hourAgo, true},
		"redriven":                {nil, again, false},
		"of its agent":            {[]string{"--agent", "a"}, hourAgo, true},
		"of another agent":        {[]string{"--agent", "b"}, hourAgo, false},
		"from its source":         {[]string{"--source", "s"}, hourAgo, true},
		"from another source":     {[]string{"--source", "a"}, hourAgo, false},
		"of its outcome":          {[]string{"--outcome", "failed"}, hourAgo, true},
		"of another outcome":      {[]string{"--outcome", "timeout"}, hourAgo, false},
		"closed since":            {[]string{"--since", "2h"}, hourAgo, true},
		"closed before":           {[]string{"--since", "30m"}, hourAgo, false},
		"closed since an instant": {[]string{"--since", "2026-01-31T11:00:00Z"}, hourAgo, true},
	} {
		q, err := parse(c.args...)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := q.Selects(c.state); got != c.keep {
			t.Errorf("%s: kept %v, want %v", name, got, c.keep)
		}
	}
	if q := (ask.DeadQuery{Redriven: true}); !q.Selects(again) {
		t.Error("one that was redriven, and asked for, is not kept")
	}
	for _, wrong := range [][]string{{"--agent", "a b"}, {"--outcome", "success"}, {"--since", "-1h"}, {"--since", "soon"}, {"--limit", "-1"}} {
		if _, err := parse(wrong...); err == nil {
			t.Errorf("%v was not refused", wrong)
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
