package jetstream

// HoldCommits lets the ledger's appends wait, as if a batch were in flight, until
// release.
func (j *Engine) HoldCommits() (release func()) {
	c := j.commits
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
	j.commits.mu.Lock()
	defer j.commits.mu.Unlock()
	return len(j.commits.waiting)
}

// Groups tells whether the ledger's appends are grouped.
func (j *Engine) Groups() bool { return j.commits.on.Load() }

// Running counts the batches in flight.
func (j *Engine) Running() int {
	j.commits.mu.Lock()
	defer j.commits.mu.Unlock()
	if j.commits.batching {
		return 1
	}
	return 0
}
