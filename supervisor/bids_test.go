package supervisor_test

import (
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/supervisor"
)

// With no timer ever firing, a sweep compares the bids when the window is over. Seed 873 of the
// simulation had each sweep arm another timer instead.
func TestSweepComparesBids(t *testing.T) {
	inBubble(t, func(w *world) {
		w.m.SetFaults(brokertest.Faults{DropTimer: func(string, uint64) bool { return true }})
		w.supervise(supervisor.Config{})
		for _, id := range []string{"coder", "silent"} {
			w.agent(id, func(p *protocol.Profile) { p.Bids, p.Specialization = true, "review" })
		}
		coder := w.holder("coder", staying)
		w.holder("silent", staying)
		pass(time.Minute)
		ticket := w.submit(func(p *protocol.Package) {
			p.Target, p.Bids = protocol.Target{Capability: "review"}, &protocol.Bids{WindowMS: 60_000}
		})
		if err := w.work(coder).Complete(w.ctx, protocol.Result{Body: []byte(`{"confidence": 1}`)}); err != nil {
			t.Fatal(err)
		}
		pass(10 * time.Minute)
		head, err := w.b.Head(w.ctx, ticket, 0)
		if err != nil {
			t.Fatal(err)
		}
		if b := head.State.Bidding; b == nil || b.Winner != "coder" || head.State.Agent != "coder" {
			t.Errorf("it is %s with %q, and its bids are %+v", head.State.Phase, head.State.Agent, b)
		}
	})
}
