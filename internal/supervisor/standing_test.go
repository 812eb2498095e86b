package supervisor_test

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/protocol"
)

// standingWatch is the engine of a supervisor. It notes which handoffs were given a wake-up.
type standingWatch struct {
	supervisor.Engine

	mu    sync.Mutex
	armed map[string]bool
}

func (e *standingWatch) Arm(ctx context.Context, ticket string, seq uint64, at time.Time) error {
	e.mu.Lock()
	e.armed[ticket] = true
	e.mu.Unlock()
	return e.Engine.Arm(ctx, ticket, seq, at)
}

// takeArmed returns how many handoffs were given a wake-up since it was last called.
func (e *standingWatch) takeArmed() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer clear(e.armed)
	return len(e.armed)
}

// superviseStanding starts a supervisor, and passes the sweeps of its beginning.
func (w *world) superviseStanding() (e *standingWatch) {
	w.Helper()
	own := w.m.Connect()
	e = &standingWatch{Engine: own, armed: map[string]bool{}}
	w.superviseOver(own, brokertest.Over(w.T, own), e, supervisor.Config{SweepInterval: staying})
	pass(time.Minute)
	e.takeArmed()
	return e
}

// wantWakeUps fails unless each of the handoffs has a wake-up.
func (w *world) wantWakeUps(tickets ...string) {
	w.Helper()
	all, missing := w.m.WakeUps(), 0
	for _, ticket := range tickets {
		if !all[ticket] {
			missing++
		}
	}
	if missing > 0 {
		w.Errorf("%d of %d handoffs have no wake-up", missing, len(tickets))
	}
}

func (w *world) submitMany(n int) (tickets []string) {
	w.Helper()
	for range n {
		tickets = append(tickets, w.submit(nil))
	}
	return tickets
}

// More offers than one reading takes all get their wake-ups, and are not seen to again.
func TestStandingOffers(t *testing.T) {
	for name, apart := range map[string]time.Duration{"of one instant": 0, "of many instants": time.Microsecond} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.agent("coder", nil)
				e := w.superviseStanding()
				var tickets []string
				for range 1_200 {
					tickets = append(tickets, w.submit(nil))
					time.Sleep(apart)
				}
				pass(5 * time.Second)
				w.wantWakeUps(tickets...)
				if n := e.takeArmed(); n != len(tickets) {
					t.Errorf("%d of %d handoffs were given a wake-up", n, len(tickets))
				}
				pass(5 * time.Second)
				if n := e.takeArmed(); n > 0 {
					t.Errorf("%d of them were reconciled again", n)
				}
			})
		})
	}
}

// Offers that were put while no supervisor was there are seen to by the first one, and what is
// put after the timers were lost as before.
func TestStandingOffersAfterALoss(t *testing.T) {
	inBubble(t, func(w *world) {
		w.agent("coder", nil)
		tickets := w.submitMany(3)
		pass(time.Hour)
		w.superviseStanding()
		w.wantWakeUps(tickets...)
		w.m.DeleteTimers()
		pass(2 * time.Second)
		w.wantWakeUps(tickets...)
		tickets = w.submitMany(3)
		pass(5 * time.Second)
		w.wantWakeUps(tickets...)
	})
}

// Where a process dies before it has announced an append, a sweep finds the append.
func TestAppendWithoutAnAnnouncement(t *testing.T) {
	for name, sweep := range map[string]func(w *world){
		"at a departure": func(w *world) {
			if err := w.b.RemoveHolder(w.ctx, w.holder("other", staying).ID); err != nil {
				w.Fatal(err)
			}
			pass(time.Second)
		},
		"at an interval": func(*world) { pass(5 * time.Minute) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.supervise(supervisor.Config{SweepInterval: 5 * time.Minute})
				w.agent("coder", nil)
				coder := w.holder("coder", staying)
				ticket := w.submit(nil)
				pass(time.Minute)
				dying := w.m.Connect()
				claim := brokertest.Accept(w, brokertest.Over(t, &silent{dying}), coder)
				w.fail(claim)
				pass(30 * time.Second)
				if plot := w.plot(ticket); plot != "submitted offered, accepted started, failed" {
					t.Errorf("before the sweep: %s", plot)
				}
				sweep(w)
				if plot := w.plot(ticket); plot != "submitted offered, accepted started, failed, retry_scheduled offered" {
					t.Errorf("after the sweep: %s", plot)
				}
				_ = dying.Close()
			})
		})
	}
}

// silent is an engine whose process dies before it announces.
type silent struct{ *brokertest.Memory }

func (e *silent) Append(ctx context.Context, ticket string, after uint64, id string, _ lifecycle.Attention, body []byte) (uint64, error) {
	return e.AppendSilently(ctx, ticket, after, id, body)
}

// lastWord is an engine whose process dies right after it has completed a handoff.
type lastWord struct{ silent }

func (e *lastWord) Append(ctx context.Context, ticket string, after uint64, id string, at lifecycle.Attention, body []byte) (uint64, error) {
	seq, err := e.silent.Append(ctx, ticket, after, id, at, body)
	if bytes.Contains(body, []byte(`"type":"completed"`)) {
		_ = e.Close()
	}
	return seq, err
}

// Where that is the completion of a source, a sweep begins what awaits it. Sweeps arm its wake-up
// anew, so that it may never come.
func TestSourceWithoutAnAnnouncement(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise(supervisor.Config{SweepInterval: 10 * time.Second})
		w.agent("coder", nil)
		w.agent("tester", nil)
		coder := w.holder("coder", staying)
		ticket := w.submit(nil)
		claim := brokertest.Accept(w, brokertest.Over(t, &lastWord{silent{w.m.Connect()}}), coder)
		pkg := protocol.Package{Target: protocol.Target{Agent: "tester"}, Reason: "next", Task: protocol.Task{Description: "test"}}
		child, err := claim.HandOff(w.ctx, broker.Child{Package: pkg})
		if err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		_ = claim.Complete(w.ctx, protocol.Result{})
		w.m.DeleteTimers() // that of the source, too
		pass(3 * time.Minute)
		if plot := w.plot(child); !strings.Contains(plot, "offered") {
			t.Errorf("its source %s is complete, and it is %s", ticket, plot)
		}
	})
}
