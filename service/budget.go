package service

import (
	"sync"

	"github.com/agenthandoff/handoff/protocol"
)

// budget is what a door may have of one kind, in all; half of it is the most that
// one agent may have, so that none can use it up for the others.
type budget struct {
	what string // for who is refused
	most int64

	mu     sync.Mutex
	used   int64
	agents map[string]int64
}

func newBudget(what string, most int64) *budget {
	return &budget{what: what, most: most, agents: map[string]int64{}}
}

// take takes n for an agent, or refuses with CodeBusy and takes nothing. To take less
// than nothing is to give.
func (b *budget) take(agent string, n int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n > 0 && (b.used+n > b.most || b.agents[agent]+n > b.share()) {
		return protocol.Errorf(protocol.CodeBusy, "", "the door has as many %s as it may (%d, of these %d for one agent); ask again in a moment", b.what, b.most, b.share())
	}
	b.add(agent, n)
	return nil
}

func (b *budget) share() int64 { return max(1, b.most/2) }

// free is how many an agent may still take.
func (b *budget) free(agent string) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return max(0, min(b.most-b.used, b.share()-b.agents[agent]))
}

func (b *budget) give(agent string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.add(agent, -n)
}

// add has the lock.
func (b *budget) add(agent string, n int64) {
	b.used += n
	if b.agents[agent] += n; b.agents[agent] == 0 {
		delete(b.agents, agent)
	}
}

func (b *budget) inUse() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}
