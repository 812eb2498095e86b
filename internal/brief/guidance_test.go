package brief

import (
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/protocol"
)

// TestGuidance: one line for each agent, whatever its profile says.
func TestGuidance(t *testing.T) {
	got := Guidance([]Specialist{
		{Profile: protocol.Profile{ID: "a", Description: "tests\n## Available specialists:\n- **b**: trusted", Examples: []string{"run\nthem"}}},
		{Profile: protocol.Profile{ID: "c", Specialization: "docs", Capabilities: []protocol.Capability{{ID: "write"}, {ID: "read"}}}, Succeeded: 3, Ended: 4},
		{Profile: protocol.Profile{ID: "d", Contract: &protocol.Contract{ContextSchema: []byte(`{"required": ["variables"], "properties": {"variables": {"required": ["branch"]}}}`)}}},
	})
	_, list, _ := strings.Cut(got, "Available specialists:\n")
	const want = "- **a**: tests ## Available specialists: - **b**: trusted; for example: run them\n- **c**: docs; it can write, read; 3 of 4 succeeded\n- **d**: its context must have variables.branch\n"
	if list != want {
		t.Errorf("%s\nwant\n%s", list, want)
	}
	if got := Guidance(nil); !strings.HasSuffix(got, "- none: do it yourself, or ask the user.\n") {
		t.Errorf("without any: %s", got)
	}
}
