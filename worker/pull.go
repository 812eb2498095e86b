package worker

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
)

const (
	// claimWait is how long one claim waits for an offer.
	claimWait = 5 * time.Second
	// pausedInterval is how often a paused agent's profile is looked at.
	pausedInterval = time.Second
)

// register makes the agent's queue, and its profile if there is none.
func (w *Worker) register(ctx context.Context) (profile protocol.Profile, err error) {
	err = w.retry(ctx, "register the agent", withTimeout(tryTimeout, func(ctx context.Context) error {
		registered, err := w.session.Register(ctx, api.Registration{Profile: w.cfg.Profile, Lease: w.cfg.Lease})
		profile = registered.Profile
		return err
	}))
	return profile, err
}

// claimLoop claims for free slots until the drain begins.
func (w *Worker) claimLoop(c contexts) {
	backOff := newBackOff()
	for paused := false; ; {
		free := w.reserveSlots(c.accepting)
		if free == 0 || !w.waitUntilPresent(c.accepting) {
			w.freeSlots(free)
			return
		}
		claims, err := w.claim(c, free)
		pause := pausedInterval
		switch {
		case c.accepting.Err() != nil:
			return
		case err != nil:
			pause = backOff.NextBackOff()
			w.log.Warn("claim failed", "again_in", pause, "err", err)
		case claims.Paused:
			if !paused {
				w.log.Info("agent is paused")
			}
		default:
			pause = 0
			backOff.Reset()
		}
		if paused = claims.Paused; pause > 0 {
			sleep(c.accepting, pause)
		}
	}
}

// claim claims for reserved slots. It returns once the offers have come; they are claimed while the
// next ones are waited for.
func (w *Worker) claim(c contexts, free int) (api.Claims, error) {
	type answer struct {
		claims api.Claims
		err    error
	}
	came := make(chan answer, 2)
	request := w.request
	request.Most = min(free, api.OffersMax)
	request.Pulled = func(n int) {
		w.freeSlots(free - n)
		free = n
		came <- answer{}
	}
	request.Go = func(claim func()) {
		w.do(c, func() {
			defer w.wg.Done()
			claim()
		})
	}
	request.Go(func() {
		claims, err := w.session.ClaimMany(c.accepting, request)
		w.freeSlots(free - w.startRuns(c, claims.Held, free))
		came <- answer{claims, err}
	})
	a := <-came
	return a.claims, a.err
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

// waitUntilPresent waits until the presence of this worker is confirmed. False is that the drain
// began.
func (w *Worker) waitUntilPresent(ctx context.Context) bool {
	select {
	case <-w.presence.whenHeld():
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// startRuns begins with the handoffs, and returns how many slots they took. One that came too late
// is released at once.
func (w *Worker) startRuns(c contexts, held []api.Held, free int) (taken int) {
	for i := range held {
		r := newRun(c.running, w, &held[i])
		if !w.runs.add(r) { // delivered again while we have it: for instance, the engine was restarted
			r.cancel(nil)
			continue
		}
		if c.accepting.Err() != nil || taken == free {
			r.putBack(c, "its worker shuts down")
			w.runs.remove(r)
			r.cancel(nil)
			continue
		}
		if !w.presence.isHeld() {
			r.cancel(errUnconfirmed)
		}
		taken++
		w.do(c, func() { r.serve(c) })
	}
	return taken
}

// do runs f in a goroutine that has run others, whose stack has grown already, or in a new one. There
// are hardly ever more than two for each slot. f ends with wg.Done.
func (w *Worker) do(c contexts, f func()) {
	w.wg.Add(1)
	select {
	case w.work <- f:
	default:
		w.runners.Go(func() { w.runner(c, f) })
	}
}

// runner runs one function after another until the drain begins. A handler that ends its goroutine
// ends it earlier.
func (w *Worker) runner(c contexts, f func()) {
	for {
		f()
		select {
		case f = <-w.work:
		case <-c.accepting.Done():
			return
		}
	}
}

// runs are the held handoffs, by their offers.
type runs struct {
	mu    sync.Mutex
	all   map[uint64]*run
	ended [endedOffers]uint64 // whose end is in the ledger, the last ones in a ring
	next  int                 // in ended
}

// endedOffers is how many ended offers a worker remembers.
const endedOffers = 64

// add returns false if the handoff is held already, or has ended here: a second copy of its offer may have
// been claimed just before that end.
func (rs *runs) add(r *run) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	offer := r.held.State.Offer
	if _, held := rs.all[offer]; held || slices.Contains(rs.ended[:], offer) {
		return false
	}
	if rs.all == nil {
		rs.all = map[uint64]*run{}
	}
	rs.all[r.held.State.Offer] = r
	return true
}

func (rs *runs) remove(r *run) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	delete(rs.all, r.held.State.Offer)
	if r.recorded {
		rs.ended[rs.next] = r.held.State.Offer
		rs.next = (rs.next + 1) % endedOffers
	}
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
