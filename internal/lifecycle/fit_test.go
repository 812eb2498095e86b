package lifecycle

import (
	"testing"

	p "github.com/agenthandoff/handoff/protocol"
)

// TestUnavailable: each reason, and that a person is always there.
func TestUnavailable(t *testing.T) {
	d := fleet(agent("ready"), p.Profile{ID: "paused", Paused: true}, agent("absent"), agent("busy"), agent("polls")).
		live("ready", "w1", 1).live("paused", "w2", 1)
	d.Holders["w3"] = p.Holder{ID: "w3", Agent: "busy", Slots: 2, Busy: 2}
	d.Holders["w4"] = p.Holder{ID: "w4", Agent: "polls", Polling: true}
	for agent, want := range map[string]Unfitness{"ready": "", p.Human: "", "polls": "", "unknown": UnfitAbsent,
		"paused": UnfitPaused, "absent": UnfitAbsent, "busy": UnfitBusy} {
		profile, _ := d.Agent(agent)
		if why, unavailable := d.Unavailable(profile); why != want || unavailable != (want != "") {
			t.Errorf("%s: %q, %t; want %q", agent, why, unavailable, want)
		}
	}
}
