package jetstream

import (
	"testing"
	"time"
)

// TestClock: the quicker answer counts, an old one goes on by our monotonic clock.
func TestClock(t *testing.T) {
	engine := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	asked := time.Now()
	var c engineClock
	c.adopt(reading{local: asked, engine: engine.Add(time.Hour), within: 2 * time.Second})
	c.adopt(reading{local: asked, engine: engine, within: time.Millisecond})
	c.adopt(reading{local: asked, engine: engine.Add(2 * time.Hour), within: 3 * time.Second}) // slow, and worse than what there is
	c.adopt(reading{local: asked, within: time.Millisecond})                                   // says nothing
	j := &Engine{}
	j.clock.last.Store(c.last.Load())
	if at := j.Now(); at.Before(engine) || at.Sub(engine) > time.Since(asked) {
		t.Errorf("it is %v, %v after the answer", at, time.Since(asked))
	}
	if r := readingOf(asked, engine); r.within < 1 || r.local.Before(asked) || r.local.After(time.Now()) {
		t.Errorf("%+v", r)
	}
	if at := (&Engine{}).Now(); time.Since(at) > time.Minute {
		t.Errorf("before any answer it is %v", at)
	}
}
