package lifecycle_test

import (
	"testing"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	p "github.com/agenthandoff/handoff/protocol"
)

// A parent that goes on hears of every child's end, for it may be waiting; one
// that closed when it handed off is told nothing, at each hop of each relay.
func TestTellsParentThatWentOn(t *testing.T) {
	for name, c := range map[string]struct {
		summary p.Summary
		want    bool
	}{
		"a hop of a relay":         {p.Summary{Parent: "x", N: 1}, false},
		"handed off from within":   {p.Summary{Parent: "x", N: 1, Wait: p.WaitContinue}, true},
		"that only names a parent": {p.Summary{Parent: "x", Wait: p.WaitContinue}, false},
	} {
		s := p.State{Phase: p.Complete, Closed: true, Outcome: p.OutcomeSuccess, Summary: c.summary}
		if got := lifecycle.NotifiesParent(s); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
		if s.Closed = false; lifecycle.NotifiesParent(s) {
			t.Errorf("%s: tells while it is open", name)
		}
	}
}
