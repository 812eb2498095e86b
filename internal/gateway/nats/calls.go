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
	queued    bool   // it waits for a slot
	stop      func() // ends its wait; nil while it is worked on
	uncounted bool   // it was counted out
}

// calls are the requests under way.
type calls struct {
	g     *Gateway
	turns *fairQueue

	mu  sync.Mutex
	all map[string]map[*call]struct{} // by agent
}

// errReclaimed ends a request that has not begun, because its agent has more than its
// share and another agent needs the room.
var errReclaimed = errors.New("reclaimed for another agent")

// count counts a request in, or refuses it.
func (cs *calls) count(c *call) error {
	if err := cs.g.requests.reserve(c.agent, 1); err != nil {
		return err
	}
	if err := cs.g.messages.reserve(c.agent, int64(len(c.body))); err != nil {
		cs.g.requests.release(c.agent, 1)
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

// uncount counts it out, once.
func (cs *calls) uncount(c *call) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if c.uncounted {
		return
	}
	c.uncounted = true
	if delete(cs.all[c.agent], c); len(cs.all[c.agent]) == 0 {
		delete(cs.all, c.agent)
	}
	cs.g.requests.release(c.agent, 1)
	cs.g.messages.release(c.agent, int64(len(c.body)))
}

// awaitSlot waits until a request may be worked on. After nil, cs.turns.leave follows.
func (cs *calls) awaitSlot(ctx context.Context, c *call) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if !cs.setStop(c, true, func() { cancel(errReclaimed) }) {
		return errReclaimed
	}
	err := cs.turns.enter(ctx, c.agent)
	if !cs.setStop(c, false, nil) && err == nil {
		cs.turns.leave(c.agent)
		err = errReclaimed
	}
	return err
}

// setStop sets the function that ends a request that waits. It is false if the request has ended.
func (cs *calls) setStop(c *call, queued bool, stop func()) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c.queued, c.stop = queued, stop
	return !c.uncounted
}

// waitIdle lets a request wait for something to happen: others are worked on meanwhile. The
// context of wait ends when the gateway does, and when another agent needs the room.
func (cs *calls) waitIdle(ctx context.Context, c *call, wait func(ctx context.Context)) {
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(cs.g.waits, cancel)()
	if !cs.setStop(c, false, cancel) { // it was ended before
		cancel()
	}
	cs.turns.leave(c.agent)
	wait(waiting)
	// The wait has its answer, and the time to answer ends anyway.
	_ = cs.turns.enter(context.WithoutCancel(ctx), c.agent)
	cs.setStop(c, false, nil)
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
	cs.uncount(found)
	stop()
	return true
}
