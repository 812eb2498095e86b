package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// The health of an agent is one entry in the holders' bucket. Only supervisors write it, by
// compare-and-set: the ends of attempts that writers announce, and the places of probes. A lost
// change may leave a breaker closed that should be open.

// HealthTTL returns how long the entry of an agent's health lives after a write at now: an hour,
// plus the time that its breaker stays open. It is in whole seconds.
func HealthTTL(h protocol.Health, now time.Time) time.Duration {
	return protocol.HealthTTL + max(0, h.OpenUntil.Sub(now)).Round(time.Second)
}

// newerHealth adds newer cached entries to those of a snapshot, and drops those that the snapshot
// has. It reports whether it added one. Usually no agent has a breaker, and the cache is empty.
func (b *Broker) newerHealth(seen map[string]lifecycle.AgentHealth) (all map[string]lifecycle.AgentHealth, newer bool) {
	c := &b.healths
	c.mu.Lock()
	defer c.mu.Unlock()
	for agent, known := range c.of {
		if entry, there := seen[agent]; known.value.Rev > entry.Rev && (there || !known.value.IsZero()) {
			if !newer {
				all, newer = maps.Clone(seen), true
			}
			if all == nil {
				all = map[string]lifecycle.AgentHealth{}
			}
			all[agent] = known.value
		} else if there {
			delete(c.of, agent)
		}
	}
	return all, newer
}

// health reads the health of an agent from the leader, and its revision.
func (b *Broker) health(ctx context.Context, agent string) (protocol.Health, uint64, error) {
	now := b.clock()
	h, rev, err := b.engine.Health(ctx, agent)
	if err == nil {
		b.healths.remember(agent, lifecycle.AgentHealth{Health: h, Rev: rev}, now, 0)
	}
	return h, rev, err
}

// addHealth adds the health of an agent to a part of the directory, if the agent has a breaker. fresh
// reads it from the leader; otherwise the cache is used. A process without the permission to read it
// submits as if the agent were healthy.
func (b *Broker) addHealth(ctx context.Context, d *lifecycle.Directory, agent string, fresh bool) error {
	if agent == "" || d.BreakerPolicy(agent).Threshold == 0 { // the usual case
		return nil
	}
	known, ok, _ := b.healths.lookup(agent, b.clock(), profileFresh)
	if !ok || fresh {
		h, rev, err := b.health(ctx, agent)
		if errors.Is(err, ErrNotAllowed) {
			b.log.Debug("health of an agent not readable; its breaker counts as closed", "agent", agent, "err", err)
			return nil
		}
		if err != nil {
			return err
		}
		known = lifecycle.AgentHealth{Health: h, Rev: rev}
	}
	if d.Health == nil {
		d.Health = map[string]lifecycle.AgentHealth{}
	}
	d.Health[agent] = known
	return nil
}

// changeHealth changes the health of an agent, and retries if another change came first. change
// returns whether there is a change to write.
func (b *Broker) changeHealth(ctx context.Context, agent string, change func(h protocol.Health, policy protocol.BreakerPolicy, now time.Time) (protocol.Health, bool)) error {
	d, err := b.Directory(ctx)
	if err != nil {
		return err
	}
	policy := d.BreakerPolicy(agent)
	for {
		h, rev, err := b.health(ctx, agent)
		if err != nil {
			return err
		}
		next, changed := change(h, policy, b.clock().UTC().Truncate(time.Millisecond))
		if !changed {
			return nil
		}
		rev, err = b.engine.PutHealth(ctx, agent, next, rev)
		if err == nil {
			next.Agent = agent
			b.healths.remember(agent, lifecycle.AgentHealth{Health: next, Rev: rev}, b.clock(), 0)
			return nil
		}
		if !errors.Is(err, ErrConflict) {
			return err
		}
	}
}

// CountAttempts adds the ends of attempts to the health of their agent, and reports whether its
// breaker opened. If the agent has no breaker, or is healthy and all attempts succeeded, it makes
// no request. Repeating the same failure changes nothing.
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

// ResetBreaker clears an agent's health: its breaker is closed.
func (b *Broker) ResetBreaker(ctx context.Context, agent string) error {
	return b.changeHealth(ctx, agent, func(h protocol.Health, _ protocol.BreakerPolicy, _ time.Time) (protocol.Health, bool) {
		return protocol.Health{}, !h.IsZero()
	})
}

// errProbeTaken: the offer would be a probe, and no place for a probe is free.
var errProbeTaken = errors.New("the breaker lets no probe through")

// takeProbe reserves a probe's place if the offer of a draft is a probe; errProbeTaken. A crash
// between this and the append costs protocol.ProbeReservation.
func (b *Broker) takeProbe(ctx context.Context, d draft) error {
	s := &d.next.State
	if s.Breaker != protocol.BreakerProbe || !offersProbe(d.events) { // the usual case
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

// stillProbing returns the handoffs whose places have expired but whose probes are still running.
func (b *Broker) stillProbing(ctx context.Context, agent string) (map[string]bool, error) {
	h, _, err := b.health(ctx, agent)
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

// offersProbe reports whether events make an offer that is a probe.
func offersProbe(events []protocol.Event) bool {
	return slices.ContainsFunc(events, func(e protocol.Event) bool {
		offered, ok := e.(*protocol.Offered)
		return ok && offered.Breaker == protocol.BreakerProbe
	})
}
