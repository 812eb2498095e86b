package lifecycle

import (
	"testing"

	p "github.com/agenthandoff/handoff/protocol"
)

// What goes up from a person to a person does not go back: it would be offered anew for ever.
func TestEscalatedForAbsence(t *testing.T) {
	for from, want := range map[string]bool{"a": true, p.Human: false, "": false, "b": false} {
		s := p.State{Agent: "a", Phase: p.PhaseTimeout, TimedOut: p.ClockAcknowledge}
		if from == p.Human {
			s.Agent = p.Human
		}
		if got := escalatedForAbsence(&s, &p.Escalated{From: from, To: p.Human}); got != want {
			t.Errorf("from %q to a person: %v", from, got)
		}
	}
}
