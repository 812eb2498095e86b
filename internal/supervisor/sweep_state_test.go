package supervisor_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/supervisor"
)

// reading counts what sweeps read.
type reading struct {
	supervisor.Engine
	wholes, entries atomic.Int64
}

func (r *reading) Heads(ctx context.Context, fn func(broker.Entry) error) error {
	r.wholes.Add(1)
	return r.Engine.Heads(ctx, fn)
}

func (r *reading) Entries(ctx context.Context, from broker.Cursor, fn func(broker.Entry) error) error {
	return r.Engine.Entries(ctx, from, func(e broker.Entry) error {
		r.entries.Add(1)
		return fn(e)
	})
}

func (r *reading) read() (wholes, entries int64) {
	return r.wholes.Swap(0), r.entries.Swap(0)
}

// After a sweep over all handoffs the next ones read what is open, and what has been
// appended since: not what was closed before. They find just as much.
func TestNarrowPasses(t *testing.T) {
	inBubble(t, func(w *world) {
		w.agent("coder", nil)
		h := w.holder("coder", staying)
		const closed = 50
		for range closed {
			w.submit(nil)
			w.complete(w.work(h))
		}
		w.submit(nil)
		own := w.m.Connect()
		b := &reading{Engine: own}
		w.superviseOver(own, brokertest.Over(t, own), b, supervisor.Config{})
		depth := func() int {
			t.Helper()
			n, err := w.b.QueueDepth(w.ctx, "coder")
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		pass(time.Minute) // at the start, and as judge
		if wholes, entries := b.read(); wholes != 1 || entries > 0 {
			t.Errorf("at the start %d passes read all heads, and others %d entries; want 1 and none", wholes, entries)
		}
		w.submit(nil)
		lost, err := w.m.Pull(w.ctx, "coder", 2, 0) // and nobody is told
		if err != nil || len(lost) != 2 {
			t.Fatalf("%d offers, %v", len(lost), err)
		}
		for _, offer := range lost {
			if err := offer.Remove(); err != nil {
				t.Fatal(err)
			}
		}
		pass(5 * time.Minute)
		if wholes, entries := b.read(); wholes != 0 || entries != 1 {
			t.Errorf("at an interval %d passes read all heads, and others %d entries; want none and 1", wholes, entries)
		}
		if n := depth(); n != 2 {
			t.Errorf("%d offers stand after the pass, want that of the old handoff and that of the new one", n)
		}
		w.complete(w.work(h))
		w.complete(w.work(h))
		pass(5 * time.Minute)
		if wholes, entries := b.read(); wholes != 0 || entries != 4 {
			t.Errorf("after two were closed %d passes read all heads, and others %d entries; want none and 4", wholes, entries)
		}
		pass(5 * time.Minute)
		if wholes, entries := b.read(); wholes != 0 || entries != 0 {
			t.Errorf("with nothing open %d passes read all heads, and others %d entries; want none", wholes, entries)
		}
		pass(50 * time.Minute)
		if wholes, _ := b.read(); wholes != 1 {
			t.Errorf("in an hour %d passes read all heads, want 1", wholes)
		}
		own.Disconnect()
		own.Reconnect()
		pass(time.Second)
		if wholes, _ := b.read(); wholes != 1 {
			t.Errorf("after the connection came back %d passes read all heads, want 1", wholes)
		}
	})
}

// With more open handoffs than a sweep keeps in mind each sweep is over all of them.
func TestPassesOverMany(t *testing.T) {
	inBubble(t, func(w *world) {
		w.agent("coder", nil)
		w.holder("coder", staying)
		own := w.m.Connect()
		b := &reading{Engine: own}
		const most = 100
		w.superviseOver(own, brokertest.Over(t, own), b, supervisor.Config{}.WithUnfinishedMax(most))
		pass(time.Minute)
		b.read()
		for range most + 1 {
			w.submit(nil)
		}
		for i, entries := range []int64{most + 1, 0} { // too many since; none kept in mind
			pass(5 * time.Minute)
			wholes, n := b.read()
			if wholes != 1 || n != entries {
				t.Errorf("interval %d: %d passes read all heads, and others %d entries; want 1 and %d", i, wholes, n, entries)
			}
		}
	})
}
