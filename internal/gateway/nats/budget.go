package natsgateway

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// The limits of a gateway: the field of a refusal with CodeBusy, and the label of its
// figures.
const (
	limitRequests = "requests" // under way: at work, waiting for their turn or for something to happen
	limitMessages = "messages" // bytes of the requests under way
	limitBodies   = "bodies"   // bytes of bodies that come or go in parts
)

// budget bounds one resource of a gateway. An agent may have at most half of it. The agents that
// have some of it share it: within an equal share an agent always gets its request, if nothing else
// is left from those above their share. So agents use the idle part, and none can keep it from the
// others.
type budget struct {
	limit string
	most  int64
	again time.Duration // when a refused agent asks again
	// reclaim releases something that an agent holds, and reports whether it held
	// anything. Nil releases nothing.
	reclaim func(agent string) bool

	refused, reclaimed atomic.Int64

	mu     sync.Mutex
	used   int64
	agents map[string]int64
	freed  chan struct{} // closed when something is released; nil: no request waits
}

func newBudget(limit string, most int64, again time.Duration, reclaim func(agent string) bool) *budget {
	return &budget{limit: limit, most: most, again: again, reclaim: reclaim, agents: map[string]int64{}}
}

// reserve takes n for an agent, or refuses with CodeBusy and takes nothing. To take less
// than nothing is to give.
func (b *budget) reserve(agent string, n int64) error {
	if b.tryReserve(agent, n) {
		return nil
	}
	above, share := b.agentsAboveShare(agent, n)
	for _, victim := range above {
		for b.amountOf(victim) > share && b.reclaim(victim) {
			b.reclaimed.Add(1)
			if b.tryReserve(agent, n) {
				return nil
			}
		}
	}
	return b.busyError(agent)
}

// awaitFree is reserve, but waits for a part of the agent's share that cannot be freed at once,
// because requests of others use it.
func (b *budget) awaitFree(ctx context.Context, agent string, n int64) error {
	ctx, cancel := context.WithTimeout(ctx, shareTimeout)
	defer cancel()
	for {
		freed := b.whenFreed()
		err := b.reserve(agent, n)
		if err == nil || !b.isWithinShare(agent, n) {
			return err
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return err
		}
	}
}

func (b *budget) tryReserve(agent string, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n > 0 && (b.used+n > b.most || b.agents[agent]+n > b.agentMax()) {
		return false
	}
	b.addLocked(agent, n)
	return true
}

func (b *budget) agentMax() int64 { return max(1, b.most/2) }

// share is the guaranteed part of each agent that has some, with one more.
// The lock is held.
func (b *budget) share(agent string) int64 {
	n := len(b.agents)
	if _, has := b.agents[agent]; !has {
		n++
	}
	return max(1, min(b.agentMax(), b.most/int64(n)))
}

func (b *budget) isWithinShare(agent string, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.agents[agent]+n <= b.share(agent)
}

// agentsAboveShare lists the other agents that have more than their share, the greatest first,
// if n more are within the share of this one.
func (b *budget) agentsAboveShare(agent string, n int64) (above []string, share int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	share = b.share(agent)
	if b.reclaim == nil || b.agents[agent]+n > share {
		return nil, share
	}
	for other, has := range b.agents {
		if other != agent && has > share {
			above = append(above, other)
		}
	}
	slices.SortFunc(above, func(x, y string) int { return cmp.Compare(b.agents[y], b.agents[x]) })
	return above, share
}

func (b *budget) amountOf(agent string) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.agents[agent]
}

func (b *budget) busyError(agent string) error {
	b.mu.Lock()
	has, most, share := b.agents[agent], b.agentMax(), b.share(agent)
	b.mu.Unlock()
	return &retryLaterError{again: b.again, err: protocol.Errorf(protocol.CodeBusy, b.limit,
		"%s has %d of %d (an agent has %d at most, and %d for sure beside the others that have some now); ask again in %v", agent, has, b.most, most, share, b.again)}
}

func (b *budget) release(agent string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addLocked(agent, -n)
}

// addLocked adds n to an agent's part. The caller has the lock.
func (b *budget) addLocked(agent string, n int64) {
	b.used += n
	if b.agents[agent] += n; b.agents[agent] == 0 {
		delete(b.agents, agent)
	}
	if n < 0 && b.freed != nil {
		close(b.freed)
		b.freed = nil
	}
}

// whenFreed is closed when something is released after this call.
func (b *budget) whenFreed() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.freed == nil {
		b.freed = make(chan struct{})
	}
	return b.freed
}

func (b *budget) inUse() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// retryLaterError is a refusal with the time of the next try.
type retryLaterError struct {
	err   *protocol.Error
	again time.Duration
}

func (b *retryLaterError) Error() string { return b.err.Error() }
func (b *retryLaterError) Unwrap() error { return b.err }
