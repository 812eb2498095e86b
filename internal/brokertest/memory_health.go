package brokertest

import (
	"context"
	"fmt"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// agentHealth is an agent's health, its revision and when it expires.
type agentHealth struct {
	health  protocol.Health
	rev     uint64
	expires time.Time
}

// Health implements broker.Engine.
func (m *Memory) Health(ctx context.Context, agent string) (protocol.Health, uint64, error) {
	if err := m.checkUsable(ctx); err != nil {
		return protocol.Health{}, 0, fmt.Errorf("health of %s: %w", agent, err)
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	h := m.s.directory.healths[agent]
	if !time.Now().Before(h.expires) {
		h.health = protocol.Health{}
	}
	return h.health, h.rev, nil
}

// PutHealth implements broker.Engine.
func (m *Memory) PutHealth(ctx context.Context, agent string, h protocol.Health, rev uint64) (uint64, error) {
	if err := m.checkUsable(ctx); err != nil {
		return 0, fmt.Errorf("put health of %s: %w", agent, err)
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	d := &m.s.directory
	if last := d.healths[agent].rev; last != rev {
		return 0, fmt.Errorf("put health of %s after %d: %w", agent, rev, broker.ErrConflict)
	}
	h.Agent = agent
	d.healths[agent] = agentHealth{h, rev + 1, time.Now().Add(broker.HealthTTL(h, time.Now()))}
	d.revision++
	return rev + 1, nil
}

// healthSnapshot wants the store's lock held.
func (d *directory) healthSnapshot() (all map[string]lifecycle.AgentHealth) {
	now := time.Now()
	for agent, h := range d.healths {
		if h.health.IsZero() || !now.Before(h.expires) {
			continue
		}
		if all == nil {
			all = map[string]lifecycle.AgentHealth{}
		}
		all[agent] = lifecycle.AgentHealth{Health: h.health, Rev: h.rev}
	}
	return all
}
