package lifecycle

import (
	"testing"

	p "github.com/agenthandoff/handoff/protocol"
)

// TestStages: the stage and the wait of the state of each column of the table.
func TestStages(t *testing.T) {
	for _, c := range []struct {
		in    string
		stage Stage
		wait  Wait
	}{
		{"fresh", StageNone, WaitNothing},
		{"approval", StageGate, WaitApproval},
		{"source", StageDeciding, WaitSource},
		{"pending", StageQueue, WaitTaker},
		{"claimed", StageAcknowledge, WaitAcknowledgement},
		{"above", StageQueue, WaitTaker},
		{"group", StageChildren, WaitMembers},
		{"asking", StageAnswers, WaitAnswer},
		{"deferred", StageDeferred, WaitTime},
		{"waiting", StageChildren, WaitChildren},
		{"accepted", StageWork, WaitStart},
		{"working", StageWork, WaitWork},
		{"retrying", StageBackoff, WaitTime},
		{"timeout", StageDeciding, WaitDecision},
		{"rejected", StageDeciding, WaitDecision},
		{"failed", StageDeciding, WaitDecision},
	} {
		s := stateIn(t, c.in)
		if stage, wait := StageOf(s), WaitingFor(s); stage != c.stage || wait != c.wait {
			t.Errorf("%s: stage %q, waits for %q; want %q, %q", c.in, stage, wait, c.stage, c.wait)
		}
	}
	working := stateIn(t, "working")
	working.CancelRequested = true
	if wait := WaitingFor(working); wait != WaitStop {
		t.Errorf("cancelled while held: waits for %q", wait)
	}
	refused := stateIn(t, "rejected")
	refused.Policy.OnNoTaker = p.NoTakerQueue
	if wait := WaitingFor(refused); wait != WaitAgent {
		t.Errorf("refused, to be queued: waits for %q", wait)
	}
	if s := closedIn(t, "complete"); StageOf(s) != StageNone || WaitingFor(s) != WaitNothing {
		t.Error("closed, and in a stage, or waiting")
	}
}
