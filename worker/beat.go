package worker

import (
	"context"
	"sync"
	"time"
)

// presence is the worker's own view of its lease. It holds until one lease
// after the sending of the last beat that the engine has confirmed, so never
// longer than the engine thinks.
type presence struct {
	lease time.Duration
	lapse func() // called when it ends, with mu held

	mu    sync.Mutex
	until time.Time
	timer *time.Timer
	back  chan struct{} // closed while the lease holds
	holds bool
}

func newPresence(lease time.Duration, lapse func()) *presence {
	return &presence{lease: lease, lapse: lapse, back: make(chan struct{})}
}

// confirm notes that the engine has a beat that was sent at sent.
func (p *presence) confirm(sent time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	until := sent.Add(p.lease)
	left := time.Until(until)
	if left <= 0 || until.Before(p.until) { // an answer that took longer than it is good for
		return
	}
	p.until = until
	if p.timer == nil {
		p.timer = time.AfterFunc(left, p.expire)
	} else {
		p.timer.Reset(left)
	}
	if !p.holds {
		p.holds = true
		close(p.back)
	}
}

func (p *presence) expire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if left := time.Until(p.until); left > 0 { // a beat came between the firing and the lock
		p.timer.Reset(left)
		return
	}
	if p.holds {
		p.holds, p.back = false, make(chan struct{})
		p.lapse()
	}
}

// held returns a channel that is closed while the lease holds.
func (p *presence) held() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.back
}

func (p *presence) isHeld() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.holds
}

// close waits for an expiry under way and lets no further one happen.
func (p *presence) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holds = false
	if p.timer != nil {
		p.timer.Stop()
	}
}

// lapse ends every handler: for a whole lease the engine has not said that we
// are still there, so somebody else may be at work on the same by now.
func (w *Worker) lapse() {
	w.log.Warn("no beat was confirmed for a whole lease; handlers are stopped", "lease", w.cfg.Lease)
	w.runs.each(func(r *run) { r.cancel(errLapsed) })
}

// beatNow asks for a beat without waiting for the next one's time.
func (w *Worker) beatNow() {
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// beatLoop beats until everything was reported: the presence of the worker
// first, then each handoff in hand. While the engine is away it asks more often.
func (w *Worker) beatLoop() {
	pauses := newPauses()
	timer := time.NewTimer(w.cfg.Beat)
	defer timer.Stop()
	for {
		w.pulse.turn()
		select {
		case <-w.life.Done():
			return
		case <-w.kick:
		case <-timer.C:
		}
		next := w.cfg.Beat
		if err := w.beatPresence(w.life); err == nil {
			pauses.Reset()
		} else if w.life.Err() == nil {
			next = min(next, pauses.NextBackOff())
			w.log.Warn("beat not confirmed", "again_in", next, "err", err)
		}
		w.lookAfterAll()
		timer.Reset(next)
	}
}

// careLoop looks after the handoffs in hand between two beats that are far apart.
// It is a loop of its own: a beat may have to wait for its answer meanwhile.
func (w *Worker) careLoop() {
	if w.care == w.cfg.Beat {
		return
	}
	tick := time.NewTicker(w.care)
	defer tick.Stop()
	for {
		select {
		case <-w.life.Done():
			return
		case <-tick.C:
			w.lookAfterAll()
		}
	}
}

// loadEvery is how soon others learn that a worker has more or less to do than
// its last beat said: three sixteenths of a beat, so that the two do not coincide,
// between half a second and five.
func loadEvery(beat time.Duration) time.Duration {
	return min(max(beat*3/16, 500*time.Millisecond), 5*time.Second)
}

// loadLoop beats between two beats when the load has changed. Who routes by load,
// or asks why nobody takes a handoff, would else see ten seconds old figures.
func (w *Worker) loadLoop() {
	every := loadEvery(w.cfg.Beat)
	if every >= w.cfg.Beat {
		return
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-w.life.Done():
			return
		case <-tick.C:
			if int64(w.runs.len()) != w.told.Load() {
				_ = w.beatPresence(w.life) // the next beat tells it, and says what went wrong
			}
		}
	}
}

func (w *Worker) lookAfterAll() {
	// A handoff in the registry keeps the wait group above zero.
	w.runs.each(func(r *run) { w.wg.Go(r.beat) })
}

// beatPresence sends one beat and moves the local lease if it is confirmed.
func (w *Worker) beatPresence(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, w.cfg.BeatTimeout)
	defer cancel()
	holder := w.holder
	holder.Slots, holder.Busy, holder.Draining = cap(w.slots), w.runs.len(), w.open.Err() != nil
	sent := time.Now()
	if err := w.relay.Beat(ctx, holder); err != nil {
		return err
	}
	w.told.Store(int64(holder.Busy))
	w.presence.confirm(sent)
	return nil
}

// reconnectLoop makes up for what a broken connection, or another server, may
// have forgotten: our presence, the queue's consumers, the agent itself.
func (w *Worker) reconnectLoop() {
	again := w.relay.Reconnected(w.life)
	for {
		select {
		case <-w.life.Done():
			return
		case _, ok := <-again:
			if !ok {
				return
			}
		}
		w.beatNow()
		if w.open.Err() != nil {
			continue // what drains pulls nothing
		}
		if _, err := w.register(w.open); err != nil && w.open.Err() == nil {
			w.log.Error("agent not registered after a reconnect", "err", err)
		}
	}
}
