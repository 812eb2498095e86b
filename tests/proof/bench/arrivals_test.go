//go:build proof

package bench

import (
	"context"
	"flag"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/protocol"
)

var arrivalsWaiting = flag.Int("waiting", 2_000, "TestArrivals: how many handoffs wait for agents that are absent")

// TestArrivals has handoffs wait for a person for the absence of an agent, one in a hundred of them
// for that of night. It counts the handoffs that a supervisor reconciles when an agent arrives, and
// logs how long the arrival takes.
func TestArrivals(t *testing.T) {
	waiting, ofNight := *arrivalsWaiting, *arrivalsWaiting/100
	node, err := openEngine(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = node.Stop() })
	conn, b, err := dial(t.Context(), node.ClientURL(), "supervisor")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	for _, agent := range []string{"day", "night", "one", "two"} {
		if err := b.PutProfile(t.Context(), protocol.Profile{ID: agent}); err != nil {
			t.Fatal(err)
		}
	}
	run := func() (watch *reconcileCounter, stop func()) {
		watch = &reconcileCounter{}
		s, err := supervisor.New(b, conn, supervisor.Config{Watch: watch})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := s.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		return watch, func() { cancel(); running.Wait() }
	}
	watch, stop := run()
	defer func() { stop() }()
	submitAbsent(t, b, waiting, ofNight)
	depth := func(agent string) int {
		n, err := b.QueueDepth(t.Context(), agent)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	until(t, "all wait for a person", func() bool { return depth(protocol.Human) == waiting })
	watch.settle(t)

	arrive := func(agent string, done func(reconciled int64) bool) time.Duration {
		before, began := watch.done.Load(), time.Now()
		if err := b.Beat(t.Context(), protocol.Holder{ID: protocol.NewTicket(), Agent: agent, LeaseMS: time.Hour.Milliseconds(), Slots: 1}); err != nil {
			t.Fatal(err)
		}
		until(t, agent, func() bool { return done(watch.done.Load() - before) })
		took := time.Since(began)
		watch.settle(t)
		t.Logf("%s arrives: %d handoffs reconciled, done after %v", agent, watch.done.Load()-before, took.Round(time.Millisecond))
		return took
	}
	arrive("one", func(int64) bool { return true })
	stop()
	watch, stop = run() // one that has not seen the offers come, and reads all heads as it starts
	until(t, "all heads are read", func() bool { return watch.done.Load() >= int64(waiting) })
	watch.settle(t)
	arrive("night", func(int64) bool { return depth("night") == ofNight })
	arrive("day", func(int64) bool { return depth("day") == waiting-ofNight })
}

// submitAbsent submits to agents without a worker, n in all, some of them to night.
func submitAbsent(t *testing.T, b *broker.Broker, n, ofNight int) {
	t.Helper()
	var group errgroup.Group
	group.SetLimit(64)
	for i := range n {
		to := "day"
		if i < ofNight {
			to = "night"
		}
		group.Go(func() error {
			in, err := b.Prepare(t.Context(), protocol.Package{Source: "lead", Target: protocol.Target{Agent: to}, Reason: "a test", Task: protocol.Task{Description: "do it"},
				Policy: protocol.PolicyOverrides{AckTimeoutMS: new(int64(1000)), MaxReroutes: new(0)}})
			if err == nil {
				_, err = b.Submit(t.Context(), in)
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

// until waits for a condition.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(5 * time.Minute); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// reconcileCounter counts the handoffs that a supervisor has reconciled.
type reconcileCounter struct{ done atomic.Int64 }

func (*reconcileCounter) Followed(broker.Entry, protocol.Record) {}
func (*reconcileCounter) Due(time.Time)                          {}
func (*reconcileCounter) Unreadable(int)                         {}
func (c *reconcileCounter) Reconciled(error)                     { c.done.Add(1) }
func (*reconcileCounter) Tripped(string)                         {}
func (*reconcileCounter) Swept(string, int, int, time.Duration, error) {
}

// settle waits until none is reconciled for 5 seconds: what stands is seen to by then.
func (c *reconcileCounter) settle(t *testing.T) {
	t.Helper()
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	for before := int64(-1); c.done.Load() != before; <-tick.C {
		before = c.done.Load()
	}
}
