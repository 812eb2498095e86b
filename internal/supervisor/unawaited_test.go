package supervisor_test

import (
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/protocol"
)

// A delegation whose end was to come back to its parent, which closed without it: the end comes to
// the queue of its source as soon as the parent closes, and no sweep is needed for that.
func TestReturnToWhoDidNotWait(t *testing.T) {
	ends := map[string]func(w *world, c *broker.Claim){
		"completes": func(w *world, c *broker.Claim) { w.complete(c) },
		"hands off": func(w *world, c *broker.Claim) { w.completeWith(c, broker.Child{N: 1, Package: handOff("tester")}) },
		"fails": func(w *world, c *broker.Claim) {
			if err := c.Fail(w.ctx, broker.Failure{Code: "handler", Message: "it cannot be done"}); err != nil {
				w.Fatal(err)
			}
		},
	}
	for name, end := range ends {
		for _, later := range []time.Duration{0, 10 * time.Second} { // before the parent was looked at, and after
			t.Run(name+" after "+later.String(), func(t *testing.T) {
				inBubble(t, func(w *world) {
					w.supervise(supervisor.Config{SweepInterval: staying})
					w.agent("coder", nil)
					w.agent("tester", nil)
					coder, tester := w.holder("coder", staying), w.holder("tester", staying)
					pass(time.Minute)
					w.submit(nil)
					claim := w.work(coder)
					pkg := handOff("tester")
					delegate(&pkg)
					pkg.Return.Wait = protocol.WaitBlock
					child, err := claim.HandOff(w.ctx, broker.Child{N: 0, Package: pkg})
					if err != nil {
						t.Fatal(err)
					}
					pass(later)
					w.complete(w.work(tester))
					pass(later)
					end(w, claim)
					pass(5 * time.Second)
					if s, err := w.b.Status(w.ctx, child); err != nil || s.Phase != protocol.Complete || s.ReturnTicket != protocol.ReturnTicket(child) {
						t.Fatalf("5 s after its parent closed the delegation is %s, and returns as %q: %v", s.Phase, s.ReturnTicket, err)
					}
					w.complete(w.work(coder))
					pass(5 * time.Second)
					if s, err := w.b.Status(w.ctx, child); err != nil || s.Phase != protocol.PhaseReturned {
						t.Errorf("5 s after its source took in the return the delegation is %s, settled at %v: %v", s.Phase, s.ReturnedAt, err)
					}
				})
			})
		}
	}
}
