package lifecycle

import (
	"maps"

	p "github.com/agenthandoff/handoff/protocol"
)

// With returns a directory in which the holder is also present.
func (d *Directory) With(h p.Holder) *Directory {
	next := *d
	next.counted, next.Holders = nil, map[string]p.Holder{h.ID: h}
	for id, other := range d.Holders {
		if id != h.ID {
			next.Holders[id] = other
		}
	}
	return &next
}

// WithHealth returns a directory with another health of one agent.
func (d *Directory) WithHealth(agent string, h AgentHealth) *Directory {
	next := *d
	next.Health = maps.Clone(d.Health)
	if next.Health == nil {
		next.Health = map[string]AgentHealth{}
	}
	next.Health[agent] = h
	return &next
}
