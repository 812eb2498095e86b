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
	lease  time.Duration
	onLost func() // called when it ends, with mu held

	mu          sync.Mutex
	until       time.Time
	timer       *time.Timer
	confirmed   chan struct{} // closed while the lease holds
	isConfirmed bool
}

func newPresence(lease time.Duration, onLost func()) *presence {
	return &presence{lease: lease, onLost: onLost, confirmed: make(chan struct{})}
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
	if !p.isConfirmed {
		p.isConfirmed = true
		close(p.confirmed)
	}
}

func (p *presence) expire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if left := time.Until(p.until); left > 0 { // a beat came between the firing and the lock
		p.timer.Reset(left)
		return
	}
	if p.isConfirmed {
		p.isConfirmed, p.confirmed = false, make(chan struct{})
		p.onLost()
	}
}

// whenHeld returns a channel that is closed while the lease holds.
func (p *presence) whenHeld() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.confirmed
}

func (p *presence) isHeld() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.isConfirmed
}

// close waits for an expiry under way and lets no further one happen.
func (p *presence) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.isConfirmed = false
	if p.timer != nil {
		p.timer.Stop()
	}
}

// loseLease ends every handler: for a whole lease the engine has not confirmed that we
// are still there, so another worker may have the same handoff by now.
func (w *Worker) loseLease() {
	w.log.Warn("no beat confirmed for a whole lease; handlers stopped", "lease", w.cfg.Lease)
	w.runs.each(func(r *run) { r.cancel(errUnconfirmed) })
}

// requestBeat asks for a beat without waiting for the next one's time.
func (w *Worker) requestBeat() {
	select {
	case w.beatNow <- struct{}{}:
	default:
	}
}

// beatLoop beats until everything was reported: the presence of the worker
// first, then each handoff in hand. While the engine is away it asks more often.
func (w *Worker) beatLoop(ctx context.Context) {
	backOff := newBackOff()
	timer := time.NewTimer(w.cfg.Beat)
	defer timer.Stop()
	var away time.Time // since when no beat is confirmed
	for {
		w.tickedAt.Store(time.Now().UnixNano())
		select {
		case <-ctx.Done():
			return
		case <-w.beatNow:
		case <-timer.C:
		}
		next := w.cfg.Beat
		if err := w.beatPresence(ctx); err == nil {
			backOff.Reset()
			if !away.IsZero() {
				w.log.Info("engine is back", "after", time.Since(away).Round(time.Millisecond))
				away = time.Time{}
			}
		} else if ctx.Err() == nil {
			if away.IsZero() {
				away = time.Now()
			}
			next = min(next, backOff.NextBackOff())
			w.log.Warn("beat not confirmed", "again_in", next, "err", err)
		}
		w.beatClaims(ctx)
		timer.Reset(next)
	}
}

// claimBeatLoop looks after the handoffs in hand between two beats that are far apart.
// It is a loop of its own: a beat may have to wait for its answer meanwhile.
func (w *Worker) claimBeatLoop(ctx context.Context) {
	if w.heartbeatInterval != w.cfg.Beat {
		atEach(ctx, w.heartbeatInterval, func() { w.beatClaims(ctx) })
	}
}

// atEach calls do after each interval until ctx ends.
func atEach(ctx context.Context, interval time.Duration, do func()) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			do()
		}
	}
}

// loadInterval is how soon others learn that a worker has more or less to do than
// its last beat reported: three sixteenths of a beat, so that the two do not coincide,
// between half a second and five.
func loadInterval(beat time.Duration) time.Duration {
	return min(max(beat*3/16, 500*time.Millisecond), 5*time.Second)
}

// loadLoop beats between two beats when the load has changed. Who routes by load,
// or explains why a handoff waits, would else see figures that are ten seconds old.
func (w *Worker) loadLoop(ctx context.Context) {
	every := loadInterval(w.cfg.Beat)
	if every >= w.cfg.Beat {
		return
	}
	atEach(ctx, every, func() {
		if int64(w.runs.len()) != w.sentBusy.Load() {
			_ = w.beatPresence(ctx) // the next beat repeats it, and logs the fault
		}
	})
}

func (w *Worker) beatClaims(ctx context.Context) {
	// A handoff in the registry keeps the wait group above zero.
	w.runs.each(func(r *run) { w.wg.Go(func() { r.beat(ctx) }) })
}

// beatPresence sends one beat and moves the local lease if it is confirmed.
func (w *Worker) beatPresence(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, w.cfg.BeatTimeout)
	defer cancel()
	presence := w.presented
	presence.Slots, presence.Busy, presence.Draining = cap(w.slots), w.runs.len(), w.draining.Load()
	sent := time.Now()
	if _, err := w.session.Present(ctx, presence); err != nil {
		return err
	}
	w.sentBusy.Store(int64(presence.Busy))
	w.presence.confirm(sent)
	return nil
}

// reconnectLoop restores the things that a broken connection, or another server, may
// have lost: our presence, the queue's consumers, the agent itself.
func (w *Worker) reconnectLoop(accepting, running context.Context) {
	again := w.session.Reconnected(running)
	for {
		select {
		case <-running.Done():
			return
		case _, ok := <-again:
			if !ok {
				return
			}
		}
		w.requestBeat()
		if accepting.Err() != nil {
			continue // a worker that drains pulls nothing
		}
		if _, err := w.register(accepting); err != nil && accepting.Err() == nil {
			w.log.Error("agent not registered after a reconnect", "err", err)
		}
	}
}
