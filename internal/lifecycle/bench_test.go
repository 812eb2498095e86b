package lifecycle

import (
	"fmt"
	"testing"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

func BenchmarkApply(b *testing.B) {
	for _, c := range []struct{ column, event string }{{"pending", "accepted"}, {"accepted", "started"}, {"working", "progressed"},
		{"working", "completed"}, {"working", "failed"}, {"pending", "rejected"}, {"failed", "offered"}, {"complete", "completed"}} {
		b.Run(c.event+"_in_"+c.column, func(b *testing.B) {
			var s p.State
			if c.column == "complete" {
				s = closedIn(b, c.column) // a duplicate
			} else {
				s = stateIn(b, c.column)
			}
			e := eventFor(p.EventType(c.event))
			b.ReportAllocs()
			for b.Loop() {
				Apply(s, e)
			}
		})
	}
}

// crowd is a directory of n agents with a holder each.
func crowd(n int) *Directory {
	d := fleet()
	for i := range n {
		id := fmt.Sprintf("agent-%d", i)
		d.Agents[id] = new(agent(id, "go"))
		d.live(id, "h-"+id, i%4)
	}
	d.Agents["a"] = new(agent("a", "go"))
	return d
}

func BenchmarkDecide(b *testing.B) {
	need := func(s p.State) p.State {
		s.Requires = []p.RequiredCapability{{ID: "go"}}
		return s
	}
	for _, c := range []struct {
		name  string
		state p.State
		d     *Directory
		after time.Duration
	}{
		{"nothing_working", stateIn(b, "working"), crowd(10).live("a", "w1", 1), time.Minute},
		{"nothing_pending_of_200_agents", stateIn(b, "pending"), crowd(200).live("a", "w1", 1), time.Minute},
		{"nothing_closed", closedIn(b, "complete"), crowd(10), time.Minute},
		{"retry", stateIn(b, "failed"), crowd(10), time.Minute},
		{"lease_lost", stateIn(b, "working"), crowd(10), time.Minute},
		{"reroute_among_200_agents", need(stateIn(b, "rejected")), crowd(200), time.Minute},
		{"deadline", stateIn(b, "pending"), crowd(10), 24 * time.Hour},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				mustDecide(c.state, c.d, t0.Add(c.after))
			}
		})
	}
}

func BenchmarkClaim(b *testing.B) {
	me := Claimant{Agent: "a", Holder: "me", LeaseMS: lease, Offer: 1}
	d := crowd(10)
	b.Run("take_and_accept", func(b *testing.B) {
		s := stateIn(b, "pending")
		b.ReportAllocs()
		for b.Loop() {
			_, step := mustClaim(s, me, d, t0)
			Acknowledge(step.State, me, p.Ack{Status: p.AckAccepted}, true, t0)
		}
	})
	b.Run("take_over", func(b *testing.B) {
		s := stateIn(b, "working")
		b.ReportAllocs()
		for b.Loop() {
			_, step := mustClaim(s, me, d, t0.Add(time.Minute))
			Acknowledge(step.State, me, p.Ack{Status: p.AckAccepted}, true, t0)
		}
	})
}

func BenchmarkNextLook(b *testing.B) {
	s := stateIn(b, "working")
	b.ReportAllocs()
	for b.Loop() {
		NextReconcile(s, t0.Add(time.Minute))
	}
}
