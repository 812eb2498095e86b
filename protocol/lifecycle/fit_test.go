package lifecycle

import (
	"testing"

	p "github.com/agenthandoff/handoff/protocol"
)

// TestUnfit: each reason, and that what holds for good is named before what passes.
func TestUnfit(t *testing.T) {
	no := false
	d := fleet()
	d.Agents = map[string]p.Profile{
		"ready":   {ID: "ready", Capabilities: []p.Capability{{ID: "x", Proficiency: 1}}},
		"closed":  {ID: "closed", AcceptsHandoffs: &no, Paused: true},
		"careful": {ID: "careful", MaxRisk: p.RiskLow},
		"other":   {ID: "other", Capabilities: []p.Capability{{ID: "y", Proficiency: 1}}},
		"paused":  {ID: "paused", Paused: true, Capabilities: []p.Capability{{ID: "x", Proficiency: 1}}},
		"absent":  {ID: "absent", Capabilities: []p.Capability{{ID: "x", Proficiency: 1}}},
		"busy":    {ID: "busy", Capabilities: []p.Capability{{ID: "x", Proficiency: 1}}},
	}
	d.Holders = map[string]p.Holder{
		"w1": {ID: "w1", Agent: "ready", Slots: 2, Busy: 1},
		"w2": {ID: "w2", Agent: "busy", Slots: 2, Busy: 2},
	}
	s := p.Summary{Risk: p.RiskMedium, Requires: []p.RequiredCapability{{ID: "x"}}}
	for agent, want := range map[string]Unfitness{"ready": "", p.Human: "", "nobody": UnfitUnknown, "closed": UnfitRefuses, "careful": UnfitRisk,
		"other": UnfitCapability, "paused": UnfitPaused, "absent": UnfitAbsent, "busy": UnfitBusy} {
		if why, unfit := d.Unfit(agent, s); why != want || unfit != (want != "") {
			t.Errorf("%s: %q, %t; want %q", agent, why, unfit, want)
		}
	}
	if UnfitCapability.Temporary() || !UnfitBusy.Temporary() {
		t.Error("a queue waits for slots, and not for capabilities")
	}
}
