package supervisor_test

import (
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/protocol"
)

// A sweep compares the bids when the window is over, where the supervisor that was told of them has
// died and no timer fires. Seed 873 of the simulation had each sweep arm another timer instead.
func TestSweepComparesBids(t *testing.T) {
	inBubble(t, func(w *world) {
		w.m.SetFaults(brokertest.Faults{DropTimer: func(string, uint64) bool { return true }})
		w.agent("coder", func(p *protocol.Profile) { p.Bids, p.Specialization = true, "review" })
		coder := w.holder("coder", staying)
		ticket := w.submit(func(p *protocol.Package) {
			p.Target, p.Bids = protocol.Target{Capability: "review"}, &protocol.Bids{WindowMS: 60_000}
		})
		if err := w.work(coder).Complete(w.ctx, protocol.Result{Body: []byte(`{"confidence": 1}`)}); err != nil {
			t.Fatal(err)
		}
		pass(2 * time.Minute)
		w.m.DeleteTimers()
		w.supervise(supervisor.Config{})
		pass(20 * time.Minute)
		head, err := w.b.Head(w.ctx, ticket, 0)
		if err != nil {
			t.Fatal(err)
		}
		if b := head.State.Bidding; b == nil || b.Winner != "coder" {
			t.Errorf("it is %s, and its bids are %+v", head.State.Phase, b)
		}
	})
}
