package natsgateway

import (
	"context"
	"sync"
)

// turns bounds how many requests a gateway works on at once. The first request of each
// agent is worked on at once; the slots are for the further ones, which get them in
// turn by agent, however many requests each agent has there.
type turns struct {
	mu     sync.Mutex
	free   int // slots
	agents map[string]*line
	next   []*line // those that have requests waiting, in turn
}

// line is the requests of one agent.
type line struct {
	working int
	waiting []chan struct{}
}

func newTurns(slots int) *turns { return &turns{free: slots, agents: map[string]*line{}} }

// begin blocks until a request may be worked on, or ctx ends. After nil, end follows.
func (t *turns) begin(ctx context.Context, agent string) error {
	t.mu.Lock()
	l := t.agents[agent]
	if l == nil {
		l = &line{}
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
			t.next = append(t.next, l)
		}
		t.mu.Unlock()
		return t.wait(ctx, agent, l, turn)
	}
	t.mu.Unlock()
	return nil
}

func (t *turns) wait(ctx context.Context, agent string, l *line, turn chan struct{}) error {
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	for i, waiting := range l.waiting {
		if waiting == turn {
			l.waiting = append(l.waiting[:i], l.waiting[i+1:]...)
			if len(l.waiting) == 0 {
				t.leave(l)
			}
			t.mu.Unlock()
			return context.Cause(ctx)
		}
	}
	t.mu.Unlock() // its turn came at the same moment
	t.end(agent)
	return context.Cause(ctx)
}

// end releases what begin got.
func (t *turns) end(agent string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.agents[agent]
	l.working--
	switch {
	case l.working > 0: // it had a slot
		t.free++
		if len(t.next) > 0 {
			t.free--
			t.grant(t.next[0])
		}
	case len(l.waiting) > 0:
		t.grant(l)
	default:
		delete(t.agents, agent)
	}
}

// grant lets the next request of an agent begin, and puts the agent behind the others.
func (t *turns) grant(l *line) {
	close(l.waiting[0])
	l.waiting = l.waiting[1:]
	l.working++
	t.leave(l)
	if len(l.waiting) > 0 {
		t.next = append(t.next, l)
	}
}

func (t *turns) leave(l *line) {
	for i, other := range t.next {
		if other == l {
			t.next = append(t.next[:i], t.next[i+1:]...)
			return
		}
	}
}
