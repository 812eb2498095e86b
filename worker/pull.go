package worker

import (
	"context"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

const (
	// pullWait is how long one pull waits for an offer. A worker that is frozen
	// keeps what is delivered to a pull under way from the others.
	pullWait = 5 * time.Second
	// pausedEvery is how often a paused agent's profile is looked at.
	pausedEvery = time.Second
)

// register makes the agent's queue, and its profile if there is none.
func (w *Worker) register(ctx context.Context) (profile protocol.Profile, err error) {
	err = w.persist(ctx, "register the agent", within(tryTimeout, func(ctx context.Context) error {
		profile, err = w.relay.Register(ctx, w.cfg.Profile)
		return err
	}))
	return profile, err
}

// pullLoop pulls for free slots until the drain begins.
func (w *Worker) pullLoop() {
	pauses := newPauses()
	for {
		free := w.reserve()
		if free == 0 || !w.ready() {
			w.free(free)
			return
		}
		offers, err := w.relay.Pull(w.open, w.cfg.Agent, free, pullWait)
		w.free(free - w.admit(offers, free))
		if err == nil {
			pauses.Reset()
			continue
		}
		if w.open.Err() != nil {
			return
		}
		pause := pauses.NextBackOff()
		w.log.Warn("pull failed", "again_in", pause, "err", err)
		sleep(w.open, pause)
	}
}

// reserve takes every free slot, and waits for the first. 0 is that the drain began.
func (w *Worker) reserve() int {
	select {
	case w.slots <- struct{}{}:
	case <-w.open.Done():
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

func (w *Worker) free(n int) {
	for range n {
		<-w.slots
	}
}

// ready waits until this worker may pull: its presence is confirmed and its
// agent not paused. False is that the drain began.
func (w *Worker) ready() bool {
	for told := false; ; {
		select {
		case <-w.presence.held():
		case <-w.open.Done():
			return false
		}
		if !w.paused() {
			return w.open.Err() == nil
		}
		if !told {
			w.log.Info("agent is paused")
			told = true
		}
		if !sleep(w.open, pausedEvery) {
			return false
		}
	}
}

func (w *Worker) paused() bool { return w.relay.Paused(w.open, w.cfg.Agent) }

// admit begins with the offers, and tells how many slots they took. What may
// not begin goes back at once.
func (w *Worker) admit(offers []Offer, free int) (taken int) {
	if len(offers) == 0 {
		return 0
	}
	closed := w.open.Err() != nil || w.paused()
	for _, offer := range offers {
		if closed || taken == free {
			giveBack(w, offer)
			continue
		}
		r := newRun(w, offer)
		if !w.runs.add(r) { // delivered again while we have it: the engine was restarted, say
			continue
		}
		if !w.presence.isHeld() {
			r.cancel(errLapsed)
		}
		taken++
		w.hand(r)
	}
	return taken
}

// hand has a goroutine serve the run: one that has served another, whose stack
// has grown already, or a new one. There are hardly ever more than slots.
func (w *Worker) hand(r *run) {
	w.wg.Add(1)
	select {
	case w.hands <- r:
	default:
		w.servers.Go(func() { w.server(r) })
	}
}

// server serves one run after another until the drain begins. A handler that
// ends its goroutine ends it earlier.
func (w *Worker) server(r *run) {
	for {
		r.serve()
		select {
		case r = <-w.hands:
		case <-w.open.Done():
			return
		}
	}
}

func giveBack(w *Worker, offer Offer) {
	if err := offer.GiveBack(); err != nil {
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
