package jetstream

import "time"

// HoldCommits lets the ledger's appends wait, as if a batch were in flight, until
// release.
func (j *Engine) HoldCommits() (release func()) {
	c := j.commits[0]
	c.mu.Lock()
	defer c.mu.Unlock()
	c.batching = true
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.batching = false
		c.admitNext()
	}
}

// CommitsWaiting counts the appends that wait for their turn.
func (j *Engine) CommitsWaiting() int {
	j.commits[0].mu.Lock()
	defer j.commits[0].mu.Unlock()
	return len(j.commits[0].waiting)
}

// Groups reports whether the ledger's appends are grouped.
func (j *Engine) Groups() bool { return j.commits[0].on.Load() }

// Running counts the batches in flight.
func (j *Engine) Running() int {
	j.commits[0].mu.Lock()
	defer j.commits[0].mu.Unlock()
	if j.commits[0].batching {
		return 1
	}
	return 0
}

// AgeClock makes the reading of the engine's clock too old, so that the next use asks for another one.
func (j *Engine) AgeClock() {
	r := *j.clock.last.Load()
	r.local, r.engine = r.local.Add(-time.Hour), r.engine.Add(-time.Hour)
	j.clock.last.Store(&r)
}

// Locked runs fn with the engine's lock held.
func (j *Engine) Locked(fn func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	fn()
}
