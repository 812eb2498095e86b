package natsgateway

import (
	"context"
	"slices"
	"sync"
)

// fairQueue bounds how many requests a gateway works on at once. The first request of each
// agent is worked on at once; the slots are for the further ones, which get them in
// turn by agent, however many requests each agent has there.
type fairQueue struct {
	mu       sync.Mutex
	free     int // slots
	agents   map[string]*agentQueue
	rotation []*agentQueue // those that have requests waiting, in turn
}

// agentQueue holds the requests of one agent.
type agentQueue struct {
	working int
	waiting []chan struct{}
}

func newTurns(slots int) *fairQueue { return &fairQueue{free: slots, agents: map[string]*agentQueue{}} }

// enter blocks until a request may be worked on, or ctx ends. After nil, leave follows.
func (t *fairQueue) enter(ctx context.Context, agent string) error {
	t.mu.Lock()
	l := t.agents[agent]
	if l == nil {
		l = &agentQueue{}
		t.agents[agent] = l
	}
	switch {
	case l.working == 0:
		l.working = 1
	case t.free > 0:
		t.free--
		l.working++
	default:
		turn := make(chan struct{})
		if l.waiting = append(l.waiting, turn); len(l.waiting) == 1 {
			t.rotation = append(t.rotation, l)
		}
		t.mu.Unlock()
		return t.await(ctx, agent, l, turn)
	}
	t.mu.Unlock()
	return nil
}

func (t *fairQueue) await(ctx context.Context, agent string, l *agentQueue, turn chan struct{}) error {
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	i := slices.Index(l.waiting, turn)
	if i >= 0 {
		if l.waiting = slices.Delete(l.waiting, i, i+1); len(l.waiting) == 0 {
			t.withdraw(l)
		}
	}
	t.mu.Unlock()
	if i < 0 { // its turn came at the same moment
		t.leave(agent)
	}
	return context.Cause(ctx)
}

// leave ends the work on a request that enter admitted.
func (t *fairQueue) leave(agent string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.agents[agent]
	l.working--
	switch {
	case l.working > 0: // it had a slot
		t.free++
		if len(t.rotation) > 0 {
			t.free--
			t.grant(t.rotation[0])
		}
	case len(l.waiting) > 0:
		t.grant(l)
	default:
		delete(t.agents, agent)
	}
}

// grant lets the next request of an agent begin, and puts the agent behind the others.
func (t *fairQueue) grant(l *agentQueue) {
	close(l.waiting[0])
	l.waiting = l.waiting[1:]
	l.working++
	t.withdraw(l)
	if len(l.waiting) > 0 {
		t.rotation = append(t.rotation, l)
	}
}

func (t *fairQueue) withdraw(l *agentQueue) {
	t.rotation = slices.DeleteFunc(t.rotation, func(other *agentQueue) bool { return other == l })
}
