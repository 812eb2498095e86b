package natsgateway

import (
	"context"
	"errors"
	"sync"

	"github.com/nats-io/nats.go/micro"
)

// call is one request.
type call struct {
	agent, verb, reply string
	header             micro.Headers
	body               []byte

	// Guarded by calls.mu.
	queued bool   // it waits for its turn
	stop   func() // ends what it waits for; nil while it is worked on
	left   bool   // it counts no more
}

// calls are the requests under way.
type calls struct {
	g     *Gateway
	turns *turns

	mu  sync.Mutex
	all map[string]map[*call]struct{} // by agent
}

// errReclaimed ends a request that has not begun, because its agent has more than its
// share and another agent needs the room.
var errReclaimed = errors.New("reclaimed for another agent")

// enter counts a request in, or refuses it.
func (cs *calls) enter(c *call) error {
	if err := cs.g.requests.take(c.agent, 1); err != nil {
		return err
	}
	if err := cs.g.messages.take(c.agent, int64(len(c.body))); err != nil {
		cs.g.requests.give(c.agent, 1)
		return err
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.all[c.agent] == nil {
		cs.all[c.agent] = map[*call]struct{}{}
	}
	cs.all[c.agent][c] = struct{}{}
	return nil
}

// leave counts it out, once.
func (cs *calls) leave(c *call) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if c.left {
		return
	}
	c.left = true
	if delete(cs.all[c.agent], c); len(cs.all[c.agent]) == 0 {
		delete(cs.all, c.agent)
	}
	cs.g.requests.give(c.agent, 1)
	cs.g.messages.give(c.agent, int64(len(c.body)))
}

// begin waits for the turn of a request. After nil, cs.turns.end follows.
func (cs *calls) begin(ctx context.Context, c *call) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if !cs.stoppable(c, true, func() { cancel(errReclaimed) }) {
		return errReclaimed
	}
	err := cs.turns.begin(ctx, c.agent)
	if !cs.stoppable(c, false, nil) && err == nil {
		cs.turns.end(c.agent)
		err = errReclaimed
	}
	return err
}

// stoppable says how a request is ended that waits, and is false if it was.
func (cs *calls) stoppable(c *call, queued bool, stop func()) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c.queued, c.stop = queued, stop
	return !c.left
}

// idle lets a request wait for something to happen: others are worked on meanwhile. The
// context of wait ends when the gateway does, and when another agent needs the room.
func (cs *calls) idle(ctx context.Context, c *call, wait func(ctx context.Context)) {
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(cs.g.waits, cancel)()
	if !cs.stoppable(c, false, cancel) { // it was ended before
		cancel()
	}
	cs.turns.end(c.agent)
	wait(waiting)
	// What came is in hand, and the time to answer is over at some time anyway.
	_ = cs.turns.begin(context.WithoutCancel(ctx), c.agent)
	cs.stoppable(c, false, nil)
}

// reclaim ends a request of an agent that only waits: one for something to happen, which
// is then answered that nothing did, or one that has not begun, which is refused.
// sized looks for those whose message has a body of some size.
func (cs *calls) reclaim(agent string, sized bool) bool {
	cs.mu.Lock()
	var found *call
	for c := range cs.all[agent] {
		if c.stop == nil || sized && len(c.body) == 0 {
			continue
		}
		if found = c; !c.queued {
			break
		}
	}
	var stop func()
	if found != nil {
		stop = found.stop
	}
	cs.mu.Unlock()
	if found == nil {
		return false
	}
	cs.leave(found)
	stop()
	return true
}
