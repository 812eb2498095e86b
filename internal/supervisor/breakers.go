package supervisor

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// breakers counts the ends of attempts that writers announce, and remembers which handoffs wait for
// the breaker of an agent. If a supervisor dies, the loss costs only time: a breaker stays closed
// longer, or a handoff waits for its wake-up.
type breakers struct {
	s *Supervisor

	mu        sync.Mutex
	successes map[string]*successes      // to be counted, by agent; only agents with failures
	kept      map[string]map[string]bool // waiting handoffs, by agent
	work      chan struct{}              // signals an entry in either map
}

// successes has attempts of one agent that succeeded, and the functions to call once they are
// counted.
type successes struct {
	attempts []lifecycle.Attempt
	done     []func()
}

const (
	// successInterval is how long successes are gathered: an agent with failures costs four writes
	// a second, however busy it is.
	successInterval = 250 * time.Millisecond
	// keptMax bounds the remembered handoffs. The others have their wake-ups.
	keptMax = 100_000
)

func newBreakers(s *Supervisor) *breakers {
	return &breakers{s: s, successes: map[string]*successes{}, kept: map[string]map[string]bool{}, work: make(chan struct{}, 1)}
}

// count counts the end of an attempt, and returns the function to call instead of done. A failure
// is counted before its handoff is reconciled, because the decision depends on it. Successes are
// gathered, and only if the agent has failures.
func (b *breakers) count(ctx context.Context, a lifecycle.Attempt, done func()) func() {
	d, err := b.s.b.Directory(ctx)
	if err != nil {
		return done
	}
	h, known := d.Health[a.Agent]
	probe := slices.ContainsFunc(h.Probes, func(p protocol.Probe) bool { return p.Ticket == a.Ticket })
	if a.End != protocol.EndSucceeded || probe {
		b.write(ctx, a.Agent, []lifecycle.Attempt{a})
		return done
	}
	if !known || d.BreakerPolicy(a.Agent).Threshold == 0 { // the usual case
		return done
	}
	finish := afterCalls(2, done)
	b.mu.Lock()
	defer b.mu.Unlock()
	gathered := b.successes[a.Agent]
	if gathered == nil {
		gathered = &successes{}
		b.successes[a.Agent] = gathered
	}
	gathered.attempts, gathered.done = append(gathered.attempts, a), append(gathered.done, finish)
	signal(b.work)
	return finish
}

// write counts attempts. It only logs errors, because the ends are hints.
func (b *breakers) write(ctx context.Context, agent string, ended []lifecycle.Attempt) {
	opened, err := b.s.b.CountAttempts(ctx, agent, ended)
	switch {
	case err != nil:
		b.s.log.Warn("ends of attempts not counted", "agent", agent, "attempts", len(ended), "err", err)
	case opened:
		b.s.log.Warn("breaker opened", "agent", agent, "ticket", ended[0].Ticket, "end", ended[0].End)
		b.s.cfg.Watch.Tripped(agent)
	}
}

// keep remembers a handoff that waits for the breaker of its agent.
func (b *breakers) keep(s protocol.State) {
	agent := s.Agent
	if agent == "" {
		agent = s.Target.Agent
	}
	if agent == "" { // the target is a capability; the wake-up comes
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.kept[agent] == nil {
		b.kept[agent] = map[string]bool{}
	}
	if len(b.kept[agent]) < keptMax {
		b.kept[agent][s.Ticket] = true
	}
	signal(b.work)
}

// run counts gathered successes, and reconciles handoffs that a breaker lets through, until ctx
// ends. It sleeps while there are neither.
func (b *breakers) run(ctx context.Context) error {
	for {
		if err := gathered(ctx, b.work, successInterval); err != nil {
			return err
		}
		b.mu.Lock()
		counted := b.successes
		b.successes = map[string]*successes{}
		b.mu.Unlock()
		for _, agent := range slices.Sorted(maps.Keys(counted)) { // sorted, so that a simulation is repeatable
			b.write(ctx, agent, counted[agent].attempts)
			for _, done := range counted[agent].done {
				done()
			}
		}
		b.release(ctx)
	}
}

// release reconciles the handoffs that a breaker lets through: all of them if it is closed, one for
// each probe if it is half-open.
func (b *breakers) release(ctx context.Context) {
	d, err := b.s.b.Directory(ctx)
	if err != nil {
		return
	}
	var free []string
	b.mu.Lock()
	for _, agent := range slices.Sorted(maps.Keys(b.kept)) {
		policy := d.BreakerPolicy(agent)
		state, until := lifecycle.Breaker(d.Health[agent].Health, policy, b.s.b.Now())
		most := len(b.kept[agent])
		switch {
		case state == lifecycle.BreakerOpen, !until.IsZero():
			most = 0
		case state == lifecycle.BreakerHalfOpen:
			most = min(most, policy.Probes)
		}
		for _, ticket := range slices.Sorted(maps.Keys(b.kept[agent]))[:most] {
			delete(b.kept[agent], ticket)
			free = append(free, ticket)
		}
		if len(b.kept[agent]) == 0 {
			delete(b.kept, agent)
		}
	}
	if len(b.kept) > 0 {
		signal(b.work)
	}
	b.mu.Unlock()
	for _, ticket := range free {
		b.s.enqueue(ctx, request{ticket: ticket})
	}
}
