package supervisor

import (
	"context"
	"maps"
	"sync"
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
	arrived := map[string]bool{}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		before := there
		there = s.attended(ctx)
		for agent := range there {
			if !before[agent] {
				arrived[agent] = true
			}
		}
		if len(arrived) == 0 || time.Now().Before(rested) {
			continue
		}
		begun := time.Now()
		if err := s.reconcileOfPerson(ctx, arrived); err != nil {
			s.log.Debug("the offers of a person not read; trying again", "err", err)
			continue
		}
		clear(arrived)
		rested = time.Now().Add(min(arrivalPause*time.Since(begun), time.Minute))
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

// reconcileOfPerson reconciles the handoffs whose offers stand in the queue of a person, but for
// those that are known to be there for another reason than the absence of an arrived agent.
func (s *Supervisor) reconcileOfPerson(ctx context.Context, arrived map[string]bool) error {
	standing := map[broker.OfferKey]bool{}
	err := s.engine.Offers(ctx, protocol.Human, func(key broker.OfferKey) error {
		standing[key] = true
		if agent, known := s.absences.of(key); !known || arrived[agent] {
			s.enqueue(ctx, standingRequest(key))
		}
		return ctx.Err()
	})
	if err == nil {
		s.absences.keepOnly(standing)
	}
	return err
}

// standingRequest asks for the reconcile of a handoff whose offer stands.
func standingRequest(key broker.OfferKey) request {
	r := request{ticket: key.Ticket, standing: key.Sequence}
	if key.Agent == protocol.Human {
		r.ofPerson = &key
	}
	return r
}

// absencesMax bounds the offers of a person whose reasons are remembered. Over it all are
// forgotten, and the next arrival reads them.
const absencesMax = 100_000

// absences remember of each offer of a person whose head was read which agent's absence alone has
// brought it there. An offer keeps its reason, so that it need not be read again for other agents.
type absences struct {
	mu     sync.Mutex
	agents map[broker.OfferKey]string // empty: another reason
}

func (a *absences) of(key broker.OfferKey) (agent string, known bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	agent, known = a.agents[key]
	return agent, known
}

// note remembers the reason of an offer, if it is still the one of its handoff.
func (a *absences) note(key broker.OfferKey, s protocol.State) {
	if s.Offer != key.Sequence {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.agents == nil || len(a.agents) >= absencesMax {
		a.agents = map[broker.OfferKey]string{}
	}
	a.agents[key] = s.Absent
}

// keepOnly forgets the offers that stand no more.
func (a *absences) keepOnly(standing map[broker.OfferKey]bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.agents, func(key broker.OfferKey, _ string) bool { return !standing[key] })
}
