package supervisor_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/tests/mutate"
)

// TestMutatedRecords: whatever stands in the ledger, supervisors go on with all else,
// also those that come later, and a refill puts all else back.
func TestMutatedRecords(t *testing.T) {
	inBubble(t, func(w *world) {
		watch := &watching{}
		_, stop := w.supervise(supervisor.Config{Watch: watch})
		w.agent("coder", nil)
		w.agent("idle", nil)
		coder := w.holder("coder", staying)
		for range 5 {
			w.submit(nil)
			w.complete(w.work(coder))
		}
		var victims []string
		for range 10 {
			victims = append(victims, w.submit(func(p *protocol.Package) { p.Target.Agent = "idle" }))
		}
		var real []broker.Entry
		if err := w.b.Entries(w.ctx, broker.From(1), func(e broker.Entry) error {
			e.Body = slices.Clone(e.Body)
			real = append(real, e)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		rng := rand.New(rand.NewPCG(48, 0))
		for n := range 600 {
			from := real[rng.IntN(len(real))]
			ticket := protocol.NewTicket()
			if n%3 == 0 {
				ticket = victims[rng.IntN(len(victims))]
			}
			after := uint64(0)
			if last, err := w.b.Last(w.ctx, ticket, 0); err == nil {
				after = last.Seq
			}
			if _, err := w.m.Append(w.ctx, ticket, after, "x", "", mutate.Record(rng, from.Body)); err != nil {
				t.Fatal(err)
			}
		}
		pass(time.Hour)
		watch.mu.Lock()
		unreadable := watch.unreadable
		watch.mu.Unlock()
		if unreadable < 100 {
			t.Errorf("%d are known to be unreadable", unreadable)
		}
		stop()
		if err := supervisor.Refill(w.ctx, w.b, w.m, nil); err != nil {
			t.Errorf("refill: %v", err)
		}
		w.supervise(supervisor.Config{})
		honest := w.submit(nil)
		w.complete(w.work(coder))
		if state := w.closed(honest); state.Outcome != protocol.OutcomeSuccess {
			t.Errorf("closed as %s", state.Outcome)
		}
	})
}
