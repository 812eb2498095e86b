package supervisor

import (
	"context"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// arrivalInterval is how often a supervisor looks which agents are there: in its own view of the
// directory, which asks the engine nothing.
const arrivalInterval = time.Second

// arrivalPause is how many times as long as the offers of a person took to reconcile they rest
// after that, at most a minute. Agents that come and go must not keep a supervisor at it.
const arrivalPause = 9

// arrivalLoop reconciles what waits for a person when an agent is there that was not: what only the
// absence of that agent has brought to the person goes back. The core says so; as many go back at
// once as handoffs are reconciled side by side. One that was missed goes back at the next sweep.
func (s *Supervisor) arrivalLoop(ctx context.Context) error {
	there := s.attended(ctx)
	tick := time.NewTicker(arrivalInterval)
	defer tick.Stop()
	var rested time.Time
	back := false
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		before := there
		there = s.attended(ctx)
		for agent := range there {
			back = back || !before[agent]
		}
		if !back || time.Now().Before(rested) {
			continue
		}
		begun := time.Now()
		if err := s.reconcileOfPerson(ctx); err != nil {
			s.log.Debug("the offers of a person not read; trying again", "err", err)
			continue
		}
		back, rested = false, time.Now().Add(min(arrivalPause*time.Since(begun), time.Minute))
	}
}

// attended returns the agents that are there.
func (s *Supervisor) attended(ctx context.Context) map[string]bool {
	directory, err := s.b.Directory(ctx)
	if err != nil {
		return nil
	}
	there := map[string]bool{}
	for _, holder := range directory.Holders {
		if !there[holder.Agent] && directory.Attended(holder.Agent) {
			there[holder.Agent] = true
		}
	}
	return there
}

// reconcileOfPerson reconciles each handoff whose offer stands in the queue of a person.
func (s *Supervisor) reconcileOfPerson(ctx context.Context) error {
	return s.engine.Offers(ctx, func(key broker.OfferKey) error {
		if key.Agent == protocol.Human {
			s.enqueue(ctx, request{ticket: key.Ticket})
		}
		return ctx.Err()
	})
}
