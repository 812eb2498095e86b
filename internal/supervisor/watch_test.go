package supervisor_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/protocol"
)

// watching remembers what a supervisor says that it does.
type watching struct {
	mu         sync.Mutex
	followed   []protocol.EventType
	asked      []time.Time
	looks      int
	failed     int
	unreadable int
	passes     []string
}

func (*watching) Tripped(string) {}

func (w *watching) Followed(_ broker.Entry, r protocol.Record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range r.Events {
		w.followed = append(w.followed, e.EventType())
	}
}

func (w *watching) Due(asked time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = append(w.asked, asked)
}

func (w *watching) Unreadable(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unreadable = n
}

func (w *watching) Reconciled(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.looks++
	if err != nil {
		w.failed++
	}
}

func (w *watching) Swept(why string, _, _ int, _ time.Duration, _ error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.passes = append(w.passes, why)
}

// TestWatch: whoever watches a supervisor is told of every entry, wake-up, look
// and pass, and when a wake-up was to come.
func TestWatch(t *testing.T) {
	inBubble(t, func(w *world) {
		watch := &watching{}
		var passed atomic.Int32
		w.supervise(supervisor.Config{Watch: watch, Swept: func(time.Duration) { passed.Add(1) }})
		w.agent("coder", nil)
		w.submit(nil)
		<-time.After(2 * time.Minute) // nobody takes it: its clock runs out
		synctest.Wait()
		watch.mu.Lock()
		defer watch.mu.Unlock()
		if len(watch.followed) < 4 || watch.followed[0] != protocol.EventSubmitted {
			t.Errorf("followed %v", watch.followed)
		}
		if len(watch.asked) == 0 || watch.looks < len(watch.asked) || watch.failed > 0 {
			t.Errorf("%d wake-ups, %d looks, %d of them failed", len(watch.asked), watch.looks, watch.failed)
		}
		for _, at := range watch.asked {
			if at.Before(w.begun) || at.After(time.Now()) {
				t.Errorf("a wake-up was to come at %v", at)
			}
		}
		if len(watch.passes) == 0 || watch.passes[0] != supervisor.SweepReasons[0] {
			t.Errorf("passes: %v", watch.passes)
		}
		if int(passed.Load()) != len(watch.passes) {
			t.Errorf("%d passes came to their end, of %d", passed.Load(), len(watch.passes))
		}
	})
}

// hanging is a broker that does not answer about a handoff, and takes its time
// to say so, however long that is.
type hanging struct {
	*broker.Broker
	hung chan struct{}
}

func (h *hanging) Head(ctx context.Context, ticket string, min uint64) (broker.Head, error) {
	<-h.hung
	return h.Broker.Head(ctx, ticket, min)
}

// TestLooking: a loop that does not come back is told from one that has nothing
// to do, and from one that waits for the engine in vain.
func TestLooking(t *testing.T) {
	inBubble(t, func(w *world) {
		own := w.m.Connect()
		h := &hanging{brokertest.Over(w.T, own), make(chan struct{})}
		s, err := supervisor.New(h, own, supervisor.Config{})
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		ctx, cancel := context.WithCancel(w.ctx)
		w.running.Go(func() {
			defer close(ended)
			if err := s.Run(ctx); err != nil {
				t.Error(err)
			}
			_ = own.Close()
		})
		synctest.Wait()
		if s.OldestReconcile() != 0 {
			t.Errorf("nothing is looked at, for %v", s.OldestReconcile())
		}
		w.agent("coder", nil)
		w.submit(nil)
		<-time.After(3 * time.Minute)
		synctest.Wait()
		if s.OldestReconcile() < 2*time.Minute {
			t.Errorf("one loop is lost, and has been for %v only", s.OldestReconcile())
		}
		close(h.hung)
		<-time.After(time.Second)
		synctest.Wait()
		if s.OldestReconcile() != 0 {
			t.Errorf("it came back, and still reconciles for %v", s.OldestReconcile())
		}
		cancel()
		<-ended
	})
}
