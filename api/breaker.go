package api

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// Breakers lists and resets the breakers of agents.
type Breakers interface {
	// Breakers returns the breakers of all agents that have one, by the agents' names.
	Breakers(ctx context.Context) ([]BreakerStatus, error)
	// ResetBreaker closes the breaker of an agent, and forgets its failures.
	ResetBreaker(ctx context.Context, agent string) (BreakerStatus, error)
}

// BreakerStatus is the breaker of an agent, as it stands at the moment of the answer.
type BreakerStatus struct {
	Agent string                 `json:"agent"`
	State lifecycle.BreakerState `json:"state"`
	// Until is when it changes by time alone: when it is half-open, or a probe's place is free.
	Until       time.Time              `json:"until,omitzero"`
	Failed      int                    `json:"failed"` // different handoffs since the last success
	Trips       int                    `json:"trips,omitempty"`
	OpenedAt    time.Time              `json:"opened_at,omitzero"`
	LastFailure *protocol.LastFailure  `json:"last_failure,omitempty"`
	Failures    []string               `json:"failures,omitempty"` // their tickets
	Probes      []string               `json:"probes,omitempty"`   // of a breaker that is not closed
	Policy      protocol.BreakerPolicy `json:"policy"`
}

// BreakerOf judges the breaker of an agent by a directory; false is that the agent has none.
func BreakerOf(agent string, d *lifecycle.Directory, now time.Time) (BreakerStatus, bool) {
	policy := d.BreakerPolicy(agent)
	if policy.Threshold == 0 {
		return BreakerStatus{Agent: agent, State: lifecycle.BreakerClosed, Policy: policy}, false
	}
	h := d.Health[agent]
	v := BreakerStatus{Agent: agent, Failed: len(h.Failures), Trips: h.Trips, OpenedAt: h.OpenedAt, LastFailure: h.LastFailure, Policy: policy}
	v.State, v.Until = lifecycle.Breaker(h.Health, policy, now)
	for _, f := range h.Failures {
		v.Failures = append(v.Failures, f.Ticket)
	}
	for _, p := range h.Probes {
		v.Probes = append(v.Probes, p.Ticket)
	}
	return v, true
}

// Breakers implements Breakers.
func (c *Session) Breakers(ctx context.Context) ([]BreakerStatus, error) {
	if err := c.may("Breakers"); err != nil {
		return nil, err
	}
	d, err := c.s.b.Directory(ctx)
	if err != nil {
		return nil, err
	}
	var all []BreakerStatus
	for _, id := range slices.Sorted(maps.Keys(d.Agents)) {
		if v, has := BreakerOf(id, d, c.s.b.Now()); has {
			all = append(all, v)
		}
	}
	return all, nil
}

// ResetBreaker implements Breakers.
func (c *Session) ResetBreaker(ctx context.Context, agent string) (BreakerStatus, error) {
	p, err := c.profile(ctx, "ResetBreaker", agent)
	if err == nil {
		err = noPerson(p.ID, "reset", ", and has no breaker")
	}
	if err == nil {
		err = c.s.b.ResetBreaker(ctx, p.ID)
	}
	if err != nil {
		return BreakerStatus{}, err
	}
	d, err := c.s.b.Directory(ctx)
	if err != nil {
		return BreakerStatus{}, err
	}
	return BreakerStatus{Agent: p.ID, State: lifecycle.BreakerClosed, Policy: d.BreakerPolicy(p.ID)}, nil
}
