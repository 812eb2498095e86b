package lifecycle_test

import (
	"fmt"
	"testing"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	p "github.com/agenthandoff/handoff/protocol"
)

func testExperiment() p.Fleet {
	five, two := 5, 2
	return p.Fleet{Experiments: []p.Experiment{
		{Name: "models", When: p.ApprovalWhen{Target: "coder"}, Unit: p.UnitConversation, Variants: []p.Variant{
			{Name: "old", Weight: 3},
			{Name: "new", Weight: 1, Target: p.Target{Agent: "coder-2"}, Policy: p.PolicyOverrides{MaxAttempts: &five, MaxReroutes: &two}, Routing: &p.FleetRouting{By: p.RouteByLoad}},
			{Name: "off", Weight: 0},
		}},
		{Name: "rest", Variants: []p.Variant{{Name: "all", Weight: 1}}},
	}}
}

// A unit has one variant, whatever its tickets, and units have the variants by their weights.
func TestExperiment(t *testing.T) {
	t.Parallel()
	f, counts, one := testExperiment(), map[string]int{}, 1
	const units = 4000
	for i := range units {
		s := p.Summary{Source: "lead", Target: p.Target{Agent: "coder"}, ConversationID: fmt.Sprint("c", i), Overrides: p.PolicyOverrides{MaxAttempts: &one}}
		first := lifecycle.InExperiment("t1", s, &f)
		if again := lifecycle.InExperiment("t2", s, &f); again.Variant != first.Variant {
			t.Fatalf("%s and %s of one conversation", first.Variant, again.Variant)
		}
		counts[first.Variant]++
		switch first.Variant {
		case "models/new":
			if first.Target.Agent != "coder-2" || first.RouteBy != p.RouteByLoad || *first.Overrides.MaxAttempts != 1 || *first.Overrides.MaxReroutes != 2 {
				t.Fatalf("got %+v", first)
			}
		case "models/old":
			if first.Target.Agent != "coder" || first.RouteBy != "" || first.Overrides.MaxReroutes != nil {
				t.Fatalf("got %+v", first)
			}
		}
	}
	if n := counts["models/new"]; n < units/4-150 || n > units/4+150 || counts["models/old"]+n != units {
		t.Errorf("got %v of %d, want a quarter of them new", counts, units)
	}
}

// The first experiment that fits counts; what follows from another handoff is in none.
func TestExperimentFits(t *testing.T) {
	f := testExperiment()
	for name, c := range map[string]struct {
		s    p.Summary
		want string
	}{
		"another target":    {p.Summary{Source: "lead", Target: p.Target{Agent: "tester"}, ConversationID: "c"}, "rest/all"},
		"no conversation":   {p.Summary{Source: "lead", Target: p.Target{Agent: "coder"}}, "rest/all"},
		"its source is one": {p.Summary{Source: "coder-2", Target: p.Target{Agent: "coder"}, ConversationID: "c"}, "rest/all"},
		"with a parent":     {p.Summary{Source: "lead", Target: p.Target{Agent: "tester"}, Parent: "x"}, ""},
		"a member":          {p.Summary{Source: "lead", Target: p.Target{Agent: "tester"}, Group: "x"}, ""},
		"a group":           {p.Summary{Source: "lead", Aggregate: &p.Aggregate{Size: 2}}, ""},
		"a return":          {p.Summary{Source: "lead", Target: p.Target{Agent: "tester"}, ReturnOf: "x"}, ""},
		"a call for a bid":  {p.Summary{Source: p.System, Target: p.Target{Agent: "tester"}, CallOf: "x"}, ""},
		"what redrives":     {p.Summary{Source: "lead", Target: p.Target{Agent: "tester"}, Origin: "x"}, ""},
		"an escalation":     {p.Summary{Source: "lead", Type: p.Escalation}, ""},
	} {
		if got := lifecycle.InExperiment("t", c.s, &f).Variant; got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	s := p.Summary{Source: "lead", Target: p.Target{Agent: "coder"}}
	if n := testing.AllocsPerRun(100, func() { lifecycle.InExperiment("t", s, nil) }); n != 0 {
		t.Errorf("without experiments it costs %v allocations", n)
	}
}
