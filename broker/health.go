package broker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// The health of an agent is one entry in the holders' bucket. Supervisors alone write it, by
// compare-and-set: the ends of attempts that writers announce, and the places of probes. A change
// that is lost leaves a breaker closed that would be open.

// HealthTTL is how long the entry of an agent's health lives after a write at now: an hour, and for
// as long as its breaker is open before that. It is in whole seconds.
func HealthTTL(h protocol.Health, now time.Time) time.Duration {
	return protocol.HealthTTL + max(0, h.OpenUntil.Sub(now)).Round(time.Second)
}

// healthFresh is how long the health that was read serves the submissions of this process.
const healthFresh = profileFresh

// healthCache remembers the health of agents that this process has read or written.
type healthCache struct {
	used atomic.Bool // as a rule no agent has a breaker, and nothing is remembered
	mu   sync.Mutex
	of   map[string]knownHealth
}

type knownHealth struct {
	lifecycle.AgentHealth
	at time.Time
}

func (c *healthCache) remember(agent string, h lifecycle.AgentHealth, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil || len(c.of) >= profilesMax {
		c.of = map[string]knownHealth{}
	}
	c.of[agent] = knownHealth{h, at}
	c.used.Store(true)
}

func (c *healthCache) lookup(agent string, now time.Time) (lifecycle.AgentHealth, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known, ok := c.of[agent]
	age := now.Sub(known.at)
	return known.AgentHealth, ok && age >= 0 && age < healthFresh
}

// over lays what this process knows better over a snapshot, and forgets what the snapshot knows.
func (c *healthCache) over(d *lifecycle.Directory) *lifecycle.Directory {
	if !c.used.Load() { // as a rule
		return d
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for agent, known := range c.of {
		if seen, there := d.Health[agent]; known.Rev > seen.Rev && (there || !known.IsZero()) {
			d = d.WithHealth(agent, known.AgentHealth)
		} else if there {
			delete(c.of, agent)
		}
	}
	c.used.Store(len(c.of) > 0)
	return d
}

// Health reads the health of an agent from the leader, and its revision.
func (b *Broker) Health(ctx context.Context, agent string) (protocol.Health, uint64, error) {
	now := b.clock()
	h, rev, err := b.health.Health(ctx, agent)
	if err == nil {
		b.healths.remember(agent, lifecycle.AgentHealth{Health: h, Rev: rev}, now)
	}
	return h, rev, err
}

// withHealth is a part of the directory with the health of one agent, where that has a breaker. fresh
// asks the leader; else what was read a moment ago will do. A process that may not read it submits as
// if the agent were healthy.
func (b *Broker) withHealth(ctx context.Context, d *lifecycle.Directory, agent string, fresh bool) (*lifecycle.Directory, error) {
	if agent == "" || d.BreakerPolicy(agent).Threshold == 0 { // as a rule
		return d, nil
	}
	if known, ok := b.healths.lookup(agent, b.clock()); ok && !fresh {
		return d.WithHealth(agent, known), nil
	}
	h, rev, err := b.Health(ctx, agent)
	switch {
	case errors.Is(err, ErrNotAllowed):
		b.log.Debug("health of an agent not readable; its breaker is taken to be closed", "agent", agent, "err", err)
		return d, nil
	case err != nil:
		return nil, err
	}
	return d.WithHealth(agent, lifecycle.AgentHealth{Health: h, Rev: rev}), nil
}

// changeHealth changes the health of an agent, again where another change came first. change returns
// whether there is anything to write.
func (b *Broker) changeHealth(ctx context.Context, agent string, change func(h protocol.Health, policy protocol.BreakerPolicy, now time.Time) (protocol.Health, bool)) error {
	d, err := b.Directory(ctx)
	if err != nil {
		return err
	}
	policy := d.BreakerPolicy(agent)
	for {
		h, rev, err := b.Health(ctx, agent)
		if err != nil {
			return err
		}
		next, changed := change(h, policy, b.clock().UTC().Truncate(time.Millisecond))
		if !changed {
			return nil
		}
		rev, err = b.health.PutHealth(ctx, agent, next, rev)
		if err == nil {
			next.Agent = agent
			b.healths.remember(agent, lifecycle.AgentHealth{Health: next, Rev: rev}, b.clock())
			return nil
		}
		if !errors.Is(err, ErrConflict) {
			return err
		}
	}
}

// CountAttempts takes the ends of attempts into the health of their agent, and tells whether its
// breaker opened. Where the agent has no breaker, or where successes are all there is to say of a
// healthy one, it asks the engine nothing. A second call with the same failure changes nothing.
func (b *Broker) CountAttempts(ctx context.Context, agent string, ended []lifecycle.Attempt) (opened bool, err error) {
	d, err := b.Directory(ctx)
	if err != nil || d.BreakerPolicy(agent).Threshold == 0 {
		return false, err
	}
	failed := false
	for _, a := range ended {
		failed = failed || a.End != protocol.EndSucceeded && a.End != protocol.EndUncounted
	}
	if _, known := d.Health[agent]; !known && !failed {
		return false, nil
	}
	err = b.changeHealth(ctx, agent, func(h protocol.Health, policy protocol.BreakerPolicy, now time.Time) (protocol.Health, bool) {
		next := h
		for _, a := range ended {
			next = lifecycle.Fold(next, a, policy, now)
		}
		opened = next.Trips > h.Trips
		return next, !next.Equal(h)
	})
	return opened && err == nil, err
}

// ResetBreaker forgets what is known of an agent's health: its breaker is closed.
func (b *Broker) ResetBreaker(ctx context.Context, agent string) error {
	return b.changeHealth(ctx, agent, func(h protocol.Health, _ protocol.BreakerPolicy, _ time.Time) (protocol.Health, bool) {
		return protocol.Health{}, !h.IsZero()
	})
}

// errProbeTaken: the offer was to be a probe, and there is no place for it.
var errProbeTaken = errors.New("the breaker lets no probe through")

// takeProbe keeps a place among the probes for the offer of a draft, where that is one; errProbeTaken.
// A crash between this and the append costs protocol.ProbeReservation.
func (b *Broker) takeProbe(ctx context.Context, d draft) error {
	s := &d.next.State
	if s.Breaker != protocol.BreakerProbe || !offersProbe(d.events) { // as a rule
		return nil
	}
	agent, taken := s.Agent, false
	expired, err := b.stillProbing(ctx, agent)
	if err == nil {
		err = b.changeHealth(ctx, agent, func(h protocol.Health, policy protocol.BreakerPolicy, now time.Time) (next protocol.Health, changed bool) {
			next, taken = lifecycle.TakeProbe(h, s.Ticket, policy, func(ticket string) bool { return expired[ticket] }, now)
			return next, !next.Equal(h)
		})
	}
	switch {
	case err != nil:
		return fmt.Errorf("take a probe of %s: %w", agent, err)
	case !taken:
		return fmt.Errorf("handoff %s at %s: %w", s.Ticket, agent, errProbeTaken)
	}
	return nil
}

// stillProbing reads which handoffs whose places have expired are tried all the same.
func (b *Broker) stillProbing(ctx context.Context, agent string) (map[string]bool, error) {
	h, _, err := b.Health(ctx, agent)
	if err != nil {
		return nil, err
	}
	probing := map[string]bool{}
	for _, probe := range h.Probes {
		if b.clock().Before(probe.Until) {
			continue
		}
		head, err := b.Head(ctx, probe.Ticket, 0)
		if err != nil && !isAbsent(err) {
			return nil, err
		}
		probing[probe.Ticket] = err == nil && lifecycle.IsProbing(head.State) && head.State.Agent == agent
	}
	return probing, nil
}

// offersProbe tells whether events make an offer that is a probe.
func offersProbe(events []protocol.Event) bool {
	for _, e := range events {
		if offered, ok := e.(*protocol.Offered); ok && offered.Breaker == protocol.BreakerProbe {
			return true
		}
	}
	return false
}
