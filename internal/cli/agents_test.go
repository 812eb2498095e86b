package cli

import (
	"testing"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

func TestAvailability(t *testing.T) {
	worker := protocol.Holder{ID: "w", Agent: "a", Slots: 2}
	with := func(change func(*protocol.Holder)) *lifecycle.Directory {
		h := worker
		change(&h)
		return &lifecycle.Directory{Agents: map[string]protocol.Profile{"a": {ID: "a"}}, Holders: map[string]protocol.Holder{"w": h}}
	}
	free := with(func(h *protocol.Holder) { h.Busy = 1 })
	for name, c := range map[string]struct {
		profile   protocol.Profile
		directory *lifecycle.Directory
		want      availability
	}{
		"a free slot":      {protocol.Profile{ID: "a"}, free, present},
		"none":             {protocol.Profile{ID: "a"}, with(func(h *protocol.Holder) { h.Busy = 2 }), busy},
		"on purpose":       {protocol.Profile{ID: "a", Paused: true}, free, paused},
		"about to go":      {protocol.Profile{ID: "a"}, with(func(h *protocol.Holder) { h.Draining = true }), draining},
		"somebody polls":   {protocol.Profile{ID: "a"}, with(func(h *protocol.Holder) { h.Polling = true }), polling},
		"another's worker": {protocol.Profile{ID: "b"}, free, absent},
		"a person":         {protocol.Profile{ID: protocol.Human}, &lifecycle.Directory{}, present},
	} {
		if got := availabilityOf(c.profile, c.directory); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	gone := agentView{Profile: protocol.Profile{ID: "a"}, Availability: absent, AbsentSince: time.Unix(0, 0)}
	if got := gone.standing(); got != "absent since 1970-01-01 00:00:00Z" {
		t.Errorf("an agent whose worker was seen to go is %q", got)
	}
}
