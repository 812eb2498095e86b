package supervisor

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// arrivalInterval is how often a supervisor looks which agents are there: in its own view of the
// directory, which asks the engine nothing.
const arrivalInterval = time.Second

// arrivalPause is how many times as long as the handoffs of arrived agents took to reconcile they
// rest after that, at most a minute. Agents that come and go must not keep a supervisor at it.
const arrivalPause = 9

// arrivalLoop reconciles the handoffs that wait for an agent which is there and was not: what its
// absence has moved goes back, and what could not be delivered to it is. The core decides so; as
// many go back at once as handoffs are reconciled side by side. One that was missed goes back at
// the next sweep.
func (s *Supervisor) arrivalLoop(ctx context.Context) error {
	there := s.attended(ctx)
	tick := time.NewTicker(arrivalInterval)
	defer tick.Stop()
	var rested time.Time
	arrived := map[lifecycle.Awaited]bool{}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		before := there
		there = s.attended(ctx)
		for awaited := range there {
			if !before[awaited] {
				arrived[awaited] = true
			}
		}
		if len(arrived) == 0 || time.Now().Before(rested) {
			continue
		}
		begun := time.Now()
		for _, ticket := range s.absences.concernedBy(arrived) {
			s.enqueue(ctx, request{ticket: ticket})
		}
		clear(arrived)
		rested = time.Now().Add(min(arrivalPause*time.Since(begun), time.Minute))
	}
}

// attended returns the agents that are there and take handoffs, and what they can do.
func (s *Supervisor) attended(ctx context.Context) map[lifecycle.Awaited]bool {
	directory, err := s.b.Directory(ctx)
	if err != nil {
		return nil
	}
	there := map[lifecycle.Awaited]bool{}
	for _, holder := range directory.Holders {
		if there[lifecycle.Awaited{Agent: holder.Agent}] || !directory.Attended(holder.Agent) {
			continue
		}
		for _, awaited := range directory.Offers(holder.Agent) {
			there[awaited] = true
		}
	}
	return there
}

// absencesMax bounds the handoffs whose wait for an agent is remembered. One over it goes back at
// the next sweep.
const absencesMax = 100_000

// absences remember which handoffs wait for which agents, of those whose heads were read: every
// one is, once its offer has stood for a second, and by each sweep.
type absences struct {
	mu      sync.Mutex
	tickets map[lifecycle.Awaited]map[string]bool
	awaited map[string][]lifecycle.Awaited // by ticket
}

// note remembers whom a handoff waits for.
func (a *absences) note(s *protocol.State) {
	var now []lifecycle.Awaited
	if len(s.Absent) > 0 || s.Agent == "" {
		now = lifecycle.AwaitedBy(*s)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(now) == 0 && len(a.awaited) == 0 { // as a rule
		return
	}
	before, known := a.awaited[s.Ticket]
	if slices.Equal(before, now) || !known && len(a.awaited) >= absencesMax {
		return
	}
	for _, awaited := range before {
		if delete(a.tickets[awaited], s.Ticket); len(a.tickets[awaited]) == 0 {
			delete(a.tickets, awaited)
		}
	}
	if len(now) == 0 {
		delete(a.awaited, s.Ticket)
		return
	}
	if a.awaited == nil {
		a.awaited, a.tickets = map[string][]lifecycle.Awaited{}, map[lifecycle.Awaited]map[string]bool{}
	}
	a.awaited[s.Ticket] = now
	for _, awaited := range now {
		if a.tickets[awaited] == nil {
			a.tickets[awaited] = map[string]bool{}
		}
		a.tickets[awaited][s.Ticket] = true
	}
}

// concernedBy returns the handoffs that wait for one of the arrived.
func (a *absences) concernedBy(arrived map[lifecycle.Awaited]bool) (all []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for awaited := range arrived {
		for ticket := range a.tickets[awaited] {
			all = append(all, ticket)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
