package brokertest

import (
	"context"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// agentHealth is an agent's health, and when it expires.
type agentHealth struct {
	protocol.Health
	expires time.Time
}

// Health implements broker.Engine.
func (m *Memory) Health(ctx context.Context, agent string) (h protocol.Health, rev uint64, err error) {
	err = m.with(ctx, "health of "+agent, func(d *directory) error {
		known := d.healths[agent]
		if rev = known.rev; time.Now().Before(known.value.expires) {
			h = known.value.Health
		}
		return nil
	})
	return h, rev, err
}

// PutHealth implements broker.Engine.
func (m *Memory) PutHealth(ctx context.Context, agent string, h protocol.Health, rev uint64) (next uint64, err error) {
	err = m.with(ctx, "put health of "+agent, func(d *directory) (err error) {
		h.Agent = agent
		if next, err = replace(d.healths, agent, agentHealth{h, time.Now().Add(broker.HealthTTL(h, time.Now()))}, rev); err == nil {
			d.revision++
		}
		return err
	})
	return next, err
}

// healthSnapshot wants the store's lock held.
func (d *directory) healthSnapshot() (all map[string]lifecycle.AgentHealth) {
	now := time.Now()
	for agent, h := range d.healths {
		if h.value.IsZero() || !now.Before(h.value.expires) {
			continue
		}
		if all == nil {
			all = map[string]lifecycle.AgentHealth{}
		}
		all[agent] = lifecycle.AgentHealth{Health: h.value.Health, Rev: h.rev}
	}
	return all
}
