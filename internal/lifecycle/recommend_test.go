package lifecycle

import (
	"fmt"
	"testing"

	p "github.com/agenthandoff/handoff/protocol"
)

// TestRecommend: by words times success; edges, itself, the paused and the person are left out.
func TestRecommend(t *testing.T) {
	d := &Directory{Agents: map[string]*p.Profile{
		"lead": {ID: "lead", HandsTo: []string{"t-*"}}, "t-good": {ID: "t-good", Description: "runs unit tests"}, "t-bad": {ID: "t-bad", Description: "runs unit tests"},
		"t-new": {ID: "t-new", Description: "runs unit tests"}, "t-shy": {ID: "t-shy", Description: "runs unit tests", AcceptsFrom: []string{"coder"}},
		"t-off": {ID: "t-off", Description: "runs unit tests", Paused: true}, "far": {ID: "far", Description: "runs unit tests"}, "t-docs": {ID: "t-docs", Description: "writes docs"},
	}}
	ends := map[string]Ends{"t-good": {Succeeded: 20}, "t-bad": {Succeeded: 1, Failed: 19}, "t-docs": {Succeeded: 100}, "t-shy": {Succeeded: 9}}
	for _, c := range []struct{ from, task, want string }{
		{"lead", "run the unit tests", "[t-good 0.90 t-new 0.50 t-bad 0.15]"},
		{"lead", "", "[t-docs 1.00 t-good 0.90 t-new 0.50 t-bad 0.15]"},
		{"coder", "run the unit tests", "[t-good 0.90 t-shy 0.85 far 0.50 t-new 0.50 t-bad 0.15]"},
		{p.Human, "", "[t-docs 1.00 t-good 0.90 t-shy 0.85 far 0.50 lead 0.50 t-new 0.50 t-bad 0.15]"},
		{"lead", "bake a cake", "[]"},
	} {
		var got []string
		for _, r := range Recommend(d, c.from, c.task, ends, 100) {
			got = append(got, fmt.Sprintf("%s %.2f", r.Agent, r.Rate))
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%s for %q: %v, want %s", c.from, c.task, got, c.want)
		}
	}
	if all := Recommend(d, "lead", "", ends, 2); len(all) != 2 {
		t.Errorf("at most two: %d", len(all))
	}
	if all := Recommend(nil, "lead", "x", nil, 2); len(all) != 0 {
		t.Errorf("no directory: %v", all)
	}
}
