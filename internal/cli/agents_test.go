package cli

import (
	"testing"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
)

func TestStanding(t *testing.T) {
	gone := api.AgentStatus{Profile: protocol.Profile{ID: "a"}, Availability: api.Absent, AbsentSince: time.Unix(0, 0)}
	if got := standing(gone, time.Now()); got != "absent since 1970-01-01 00:00:00Z" {
		t.Errorf("an agent whose worker was seen to go is %q", got)
	}
}
