package supervisor_test

import (
	"errors"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/protocol"
)

// A repair reconciles a handoff whose wake-ups were lost and puts its offer back. A handoff
// that needs nothing stays as it is.
func TestRepair(t *testing.T) {
	inBubble(t, func(w *world) {
		w.agent("coder", nil)
		done := w.submit(nil)
		if _, err := w.b.Cancel(w.ctx, done, "lead", ""); err != nil {
			t.Fatal(err)
		}
		w.m.SetFaults(brokertest.Faults{
			DropTimer: func(string, uint64) bool { return true },
			DropOffer: func(broker.OfferKey) bool { return true },
		})
		w.supervise(supervisor.Config{SweepInterval: staying})
		late := w.submit(func(p *protocol.Package) {
			p.Constraints.Deadline, p.Policy.OnDeadline = time.Now().UTC().Add(time.Minute), new(protocol.DeadlineClose)
			p.Policy.AckTimeoutMS = new(staying.Milliseconds())
		})
		waits := w.submit(func(p *protocol.Package) { p.Policy.AckTimeoutMS = new(staying.Milliseconds()) })
		pass(time.Hour)
		if state, err := w.b.Status(w.ctx, late); err != nil || state.Closed {
			t.Fatalf("closed %v (%v), and its wake-up was lost", state.Closed, err)
		}
		w.m.SetFaults(brokertest.Faults{})
		repaired, err := supervisor.Repair(w.ctx, w.b, w.m, nil)
		if want := (supervisor.Repaired{Handoffs: 3, Open: 2, Woken: 2}); err != nil || repaired != want {
			t.Errorf("%+v, %v; want %+v", repaired, err, want)
		}
		pass(time.Second)
		if state, err := w.b.Status(w.ctx, late); err != nil || !state.Closed {
			t.Errorf("not closed though it was woken (%v)", err)
		}
		w.want(waits, "0s submitted offered")
		if depth, err := w.b.QueueDepth(w.ctx, "coder"); err != nil || depth == 0 {
			t.Errorf("%d offers stand, %v", depth, err)
		}
	})
}

// One handoff that cannot be helped must not keep the others from it.
func TestRepairPassesOverWhatCannotBeOffered(t *testing.T) {
	inBubble(t, func(w *world) {
		w.agent("coder", nil)
		first := w.submit(nil)
		w.submit(nil)
		w.m.DeleteWork()
		repaired, err := supervisor.Repair(w.ctx, &barren{Broker: w.b, timers: w.m, ticket: first, why: errors.New("its package is gone")}, w.m, nil)
		if want := (supervisor.Repaired{Handoffs: 2, Open: 2, Woken: 1, Failed: 1}); err != nil || repaired != want {
			t.Errorf("%+v, %v; want %+v", repaired, err, want)
		}
		w.m.Disconnect()
		if _, err := supervisor.Repair(w.ctx, w.b, w.m, nil); !errors.Is(err, broker.ErrUnreachable) {
			t.Errorf("with the engine away: %v, want ErrUnreachable", err)
		}
	})
}
