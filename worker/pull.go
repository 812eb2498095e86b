package worker

import (
	"context"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

const (
	// pullWait is how long one pull waits for an offer. A worker that is frozen
	// keeps the offers of a pull under way from the others.
	pullWait = 5 * time.Second
	// pausedInterval is how often a paused agent's profile is looked at.
	pausedInterval = time.Second
)

// register makes the agent's queue, and its profile if there is none.
func (w *Worker) register(ctx context.Context) (profile protocol.Profile, err error) {
	err = w.retry(ctx, "register the agent", withTimeout(tryTimeout, func(ctx context.Context) error {
		profile, err = w.transport.Register(ctx, w.cfg.Profile, time.Duration(w.holder.LeaseMS)*time.Millisecond)
		return err
	}))
	return profile, err
}

// pullLoop pulls for free slots until the drain begins.
func (w *Worker) pullLoop(c contexts) {
	backOff := newBackOff()
	for {
		free := w.reserveSlots(c.accepting)
		if free == 0 || !w.waitUntilReady(c.accepting) {
			w.freeSlots(free)
			return
		}
		offers, err := w.transport.Pull(c.accepting, w.cfg.Agent, free, pullWait)
		w.freeSlots(free - w.startRuns(c, offers, free))
		if err == nil {
			backOff.Reset()
			continue
		}
		if c.accepting.Err() != nil {
			return
		}
		pause := backOff.NextBackOff()
		w.log.Warn("pull failed", "again_in", pause, "err", err)
		sleep(c.accepting, pause)
	}
}

// reserveSlots takes every free slot, and waits for the first. 0 is that the drain began.
func (w *Worker) reserveSlots(ctx context.Context) int {
	select {
	case w.slots <- struct{}{}:
	case <-ctx.Done():
		return 0
	}
	for n := 1; ; n++ {
		select {
		case w.slots <- struct{}{}:
		default:
			return n
		}
	}
}

func (w *Worker) freeSlots(n int) {
	for range n {
		<-w.slots
	}
}

// waitUntilReady waits until this worker may pull: its presence is confirmed and its
// agent not paused. False is that the drain began.
func (w *Worker) waitUntilReady(ctx context.Context) bool {
	for logged := false; ; {
		select {
		case <-w.presence.whenHeld():
		case <-ctx.Done():
			return false
		}
		if !w.paused(ctx) {
			return ctx.Err() == nil
		}
		if !logged {
			w.log.Info("agent is paused")
			logged = true
		}
		if !sleep(ctx, pausedInterval) {
			return false
		}
	}
}

func (w *Worker) paused(ctx context.Context) bool { return w.transport.Paused(ctx, w.cfg.Agent) }

// startRuns begins with the offers, and returns how many slots they took. An offer that
// may not begin goes back at once.
func (w *Worker) startRuns(c contexts, offers []Offer, free int) (taken int) {
	if len(offers) == 0 {
		return 0
	}
	refuse := c.accepting.Err() != nil || w.paused(c.accepting)
	for _, offer := range offers {
		if refuse || taken == free {
			releaseOffer(w, offer)
			continue
		}
		r := newRun(c.running, w, offer)
		if !w.runs.add(r) { // delivered again while we have it: for instance, the engine was restarted
			continue
		}
		if !w.presence.isHeld() {
			r.cancel(errUnconfirmed)
		}
		taken++
		w.dispatch(c, r)
	}
	return taken
}

// dispatch has a goroutine serve the run: one that has served another, whose stack
// has grown already, or a new one. There are hardly ever more than slots.
func (w *Worker) dispatch(c contexts, r *run) {
	w.wg.Add(1)
	select {
	case w.runQueue <- r:
	default:
		w.runners.Go(func() { w.runner(c, r) })
	}
}

// runner serves one run after another until the drain begins. A handler that
// ends its goroutine ends it earlier.
func (w *Worker) runner(c contexts, r *run) {
	for {
		r.serve(c)
		select {
		case r = <-w.runQueue:
		case <-c.accepting.Done():
			return
		}
	}
}

func releaseOffer(w *Worker, offer Offer) {
	if err := offer.Release(); err != nil {
		w.log.Debug("offer comes again after the ack wait", "ticket", offer.Ticket(), "err", err)
	}
}

// runs are the offers and handoffs in hand, by offer.
type runs struct {
	mu  sync.Mutex
	all map[uint64]*run
}

// add is false if the offer is in hand already.
func (rs *runs) add(r *run) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if _, held := rs.all[r.offer.Sequence()]; held {
		return false
	}
	if rs.all == nil {
		rs.all = map[uint64]*run{}
	}
	rs.all[r.offer.Sequence()] = r
	return true
}

func (rs *runs) remove(r *run) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	delete(rs.all, r.offer.Sequence())
}

func (rs *runs) len() int {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return len(rs.all)
}

// each calls fn, which must not block, with all of them.
func (rs *runs) each(fn func(*run)) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, r := range rs.all {
		fn(r)
	}
}
