package supervisor

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// breakers count the ends of attempts that writers announce, and remember which handoffs wait for
// the breaker of an agent. What a supervisor forgets of them when it dies costs time: a breaker stays
// closed a little longer, a handoff waits for its wake-up.
type breakers struct {
	s *Supervisor

	mu        sync.Mutex
	successes map[string]*successes      // of agents with failures, to be counted
	kept      map[string]map[string]bool // the handoffs that wait, by agent
	work      chan struct{}              // either is not empty any more
}

// successes are attempts of one agent that succeeded, and what is to be called when they are counted.
type successes struct {
	attempts []lifecycle.Attempt
	done     []func()
}

const (
	// successInterval is how long successes are gathered: an agent with failures costs four writes a
	// second, however busy it is.
	successInterval = 250 * time.Millisecond
	// keptMax bounds the handoffs that are remembered. The others have their wake-ups.
	keptMax = 100_000
)

func newBreakers(s *Supervisor) *breakers {
	return &breakers{s: s, successes: map[string]*successes{}, kept: map[string]map[string]bool{}, work: make(chan struct{}, 1)}
}

// count takes in the end of an attempt, and returns what is to be called instead of done. A failure is
// counted before its handoff is reconciled: what follows depends on it. A success is counted with
// others, and only where the agent has failures.
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
	if !known || d.BreakerPolicy(a.Agent).Threshold == 0 { // as a rule
		return done
	}
	finish := afterCalls(2, func() {
		if done != nil {
			done()
		}
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	gathered := b.successes[a.Agent]
	if gathered == nil {
		gathered = &successes{}
		b.successes[a.Agent] = gathered
	}
	gathered.attempts, gathered.done = append(gathered.attempts, a), append(gathered.done, finish)
	b.wake()
	return finish
}

// write counts attempts. What fails is logged: it is a hint.
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
	if agent == "" { // any with a capability: its wake-up comes
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
	b.wake()
}

// wake wants b.mu held.
func (b *breakers) wake() {
	select {
	case b.work <- struct{}{}:
	default:
	}
}

// run counts what was gathered, and reconciles what waited for a breaker that lets something through,
// until ctx ends. It sleeps while there is neither.
func (b *breakers) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-b.work:
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(successInterval):
		}
		b.mu.Lock()
		gathered := b.successes
		b.successes = map[string]*successes{}
		b.mu.Unlock()
		for _, agent := range slices.Sorted(maps.Keys(gathered)) { // a simulation repeats it
			b.write(ctx, agent, gathered[agent].attempts)
			for _, done := range gathered[agent].done {
				done()
			}
		}
		b.release(ctx)
	}
}

// release reconciles the handoffs that a breaker lets through: all where it is closed, as many as it
// has places for where it is half-open.
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
		b.wake()
	}
	b.mu.Unlock()
	for _, ticket := range free {
		b.s.enqueue(ctx, request{ticket: ticket})
	}
}
