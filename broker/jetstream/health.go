package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// healthIn reads the health of an agent out of its entry.
func healthIn(agent string, body []byte) (protocol.Health, error) {
	var h protocol.Health
	if len(body) > protocol.HealthBytesMax {
		return h, fmt.Errorf("it has %s", protocol.OverSize(len(body), protocol.HealthBytesMax))
	}
	err := json.Unmarshal(body, &h)
	if err == nil {
		err = h.Validate()
	}
	if err == nil && h.Agent != agent {
		err = fmt.Errorf("it is of another agent, %q", h.Agent)
	}
	return h, err
}

// Health implements broker.Engine. An entry that cannot be read is none: the breaker is closed.
func (j *Engine) Health(ctx context.Context, agent string) (protocol.Health, uint64, error) {
	if err := protocol.CheckID("agent", agent); err != nil {
		return protocol.Health{}, 0, err
	}
	msg, err := j.getMessage(ctx, holderStream, getRequest{LastFor: healthSubject(agent)})
	switch {
	case errors.Is(err, broker.ErrNotFound):
		return protocol.Health{}, 0, nil
	case err != nil:
		return protocol.Health{}, 0, fmt.Errorf("health of %s: %w", agent, err)
	case msg.header(operationHeader) != "" || msg.header(jetstream.MarkerReasonHeader) != "":
		return protocol.Health{}, msg.Seq, nil
	}
	h, err := healthIn(agent, msg.Data)
	if err != nil {
		j.cfg.Log.Warn("health of an agent not readable; its breaker is closed", "agent", agent, "seq", msg.Seq, "err", err)
		return protocol.Health{}, msg.Seq, nil
	}
	return h, msg.Seq, nil
}

// PutHealth implements broker.Engine. A time-out is tried again for 12 s; where that was stored
// after all, the answer is ErrConflict.
func (j *Engine) PutHealth(ctx context.Context, agent string, h protocol.Health, rev uint64) (uint64, error) {
	h.Agent = agent
	body, err := json.Marshal(h)
	if err != nil {
		return 0, err
	}
	seq, err := j.putAfterFor(ctx, healthSubject(agent), body, rev, broker.HealthTTL(h, j.Now()))
	if err != nil {
		return 0, fmt.Errorf("put health of %s after %d: %w", agent, rev, err)
	}
	return seq, nil
}

// healthOf is the agent of a key of the holders' bucket, if it is that of an agent's health.
func healthOf(key string) (agent string, ok bool) { return strings.CutPrefix(key, "health.") }

// health takes in the health of an agent.
func (s *session) health(agent string, e jetstream.KeyValueEntry) {
	delete(s.healths, agent)
	if e.Operation() != jetstream.KeyValuePut {
		return
	}
	h, err := healthIn(agent, e.Value())
	switch {
	case err != nil:
		s.w.j.cfg.Log.Warn("health left out of the directory", "key", e.Key(), "seq", e.Revision(), "err", err)
	case !h.IsZero():
		s.healths[agent] = lifecycle.AgentHealth{Health: h, Rev: e.Revision()}
	}
}

// healthSnapshot is a copy; nil where all agents are healthy, as a rule.
func healthSnapshot(all map[string]lifecycle.AgentHealth) map[string]lifecycle.AgentHealth {
	if len(all) == 0 {
		return nil
	}
	return maps.Clone(all)
}
