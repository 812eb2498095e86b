package lifecycle

import (
	"testing"

	p "github.com/agenthandoff/handoff/protocol"
)

// A person is never absent: what goes up from one would be offered anew for ever.
func TestRecordAbsence(t *testing.T) {
	for agent, want := range map[string]int{"a": 1, p.Human: 0, "": 0} {
		s := p.State{Agent: agent, Phase: p.PhaseTimeout, TimedOut: p.ClockAcknowledge}
		if recordAbsence(&s, p.Time{}); len(s.Absent) != want {
			t.Errorf("the absence of %q is recorded: %v", agent, s.Absent)
		}
	}
}
