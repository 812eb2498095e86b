package explain_test

import (
	"testing"
	"time"

	"github.com/agenthandoff/handoff/explain"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// TestBrief: one word and one sentence need a state and a directory, and no engine.
func TestBrief(t *testing.T) {
	at := time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)
	directory := &lifecycle.Directory{Revision: 1, Agents: map[string]protocol.Profile{"reviewer": {ID: "reviewer"}}, ConnectedSince: at.Add(-time.Hour)}
	step, err := lifecycle.Submit("7d0f2c55-6f0e-4a52-9d53-0a6c7a3f7c11", protocol.Summary{Type: protocol.Sequential, Source: "lead",
		Target: protocol.Target{Agent: "reviewer"}, Priority: protocol.Normal, Deadline: at.Add(24 * time.Hour), Digest: "sha256:00"},
		protocol.Submitted{Package: []byte(`{}`)}, directory, at)
	if err != nil {
		t.Fatal(err)
	}
	word, sentence := explain.Brief(step.State, directory, at.Add(4*time.Minute))
	if want := "It has waited 4 min for reviewer, but no worker is running there."; word != explain.WaitWorker || sentence != want {
		t.Errorf("%s: %s; want %s", word, sentence, want)
	}
}
