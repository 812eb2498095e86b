package api_test

import (
	"testing"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

func TestAvailability(t *testing.T) {
	worker := protocol.Holder{ID: "w", Agent: "a", Slots: 2}
	with := func(change func(*protocol.Holder)) *lifecycle.Directory {
		h := worker
		change(&h)
		return &lifecycle.Directory{Agents: map[string]*protocol.Profile{"a": {ID: "a"}}, Holders: map[string]protocol.Holder{"w": h}}
	}
	free := with(func(h *protocol.Holder) { h.Busy = 1 })
	for name, c := range map[string]struct {
		profile   protocol.Profile
		directory *lifecycle.Directory
		want      api.Availability
	}{
		"a free slot":         {protocol.Profile{ID: "a"}, free, api.Present},
		"none":                {protocol.Profile{ID: "a"}, with(func(h *protocol.Holder) { h.Busy = 2 }), api.Busy},
		"on purpose":          {protocol.Profile{ID: "a", Paused: true}, free, api.Paused},
		"about to go":         {protocol.Profile{ID: "a"}, with(func(h *protocol.Holder) { h.Draining = true }), api.Draining},
		"an agent that polls": {protocol.Profile{ID: "a"}, with(func(h *protocol.Holder) { h.Polling = true }), api.Polling},
		"another's worker":    {protocol.Profile{ID: "b"}, free, api.Absent},
		"a person":            {protocol.Profile{ID: protocol.Human}, &lifecycle.Directory{}, api.Present},
	} {
		if got := api.AvailabilityOf(&c.profile, c.directory); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
