package supervisor_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/protocol"
)

// headsRead counts the heads that a supervisor read since the last call.
func headsRead(c *brokertest.CountingEngine) (n int) {
	for counted := range strings.SplitSeq(c.TakeCounts(), ", ") {
		_, _ = fmt.Sscanf(counted, "last %d", &n)
	}
	return n
}

// movedHeads bounds the heads that two supervisors read for one that goes back: each its own, and
// those that its append calls for.
const movedHeads = 6

// An arrival reads the heads of the handoffs that wait for the arrived agent, and no others.
func TestArrivalReadsWhatItConcerns(t *testing.T) {
	inBubble(t, func(w *world) {
		for _, agent := range []string{"a", "b", "c", "d"} {
			w.agent(agent, nil)
		}
		tickets := map[string][]string{}
		submit := func(to string, n int) {
			for range n {
				tickets[to] = append(tickets[to], w.submit(func(p *protocol.Package) {
					p.Target.Agent, p.Policy.AckTimeoutMS = to, new(int64(1000))
				}))
			}
		}
		with := func(to string) map[string]int {
			agents := map[string]int{}
			for _, ticket := range tickets[to] {
				agents[w.until(ticket, func(protocol.State) bool { return true }).Agent]++
			}
			return agents
		}
		counted := w.superviseCounted(supervisor.Config{})
		submit("a", 20)
		submit("b", 10)
		submit(protocol.Human, 5)
		pass(time.Minute)
		if got := with("a")[protocol.Human] + with("b")[protocol.Human]; got != 30 {
			t.Fatalf("%d of 30 wait for a person", got)
		}
		late := w.superviseCounted(supervisor.Config{}) // it has seen none of the offers come
		pass(time.Minute)
		for _, step := range []struct {
			agent string
			why   string
		}{
			{"c", "it concerns none"},
			{"d", "it concerns none"},
		} {
			counted.TakeCounts()
			late.TakeCounts()
			w.holder(step.agent, staying)
			pass(2 * time.Second)
			if got, gotLate := headsRead(counted), headsRead(late); got != 0 || gotLate != 0 {
				t.Errorf("the arrival of %s reads %d and %d heads, want none: %s", step.agent, got, gotLate, step.why)
			}
		}
		counted.TakeCounts()
		late.TakeCounts()
		w.holder("b", staying)
		pass(2 * time.Second)
		if got := headsRead(counted) + headsRead(late); got > 10*movedHeads {
			t.Errorf("the arrival of b, which concerns 10, reads %d heads, at most %d may be", got, 10*movedHeads)
		}
		if got := with("b")["b"]; got != 10 {
			t.Errorf("%d of 10 are with b again", got)
		}
		if got := with("a")[protocol.Human]; got != 20 {
			t.Errorf("%d of 20 are with a person still", got)
		}
	})
}

// Two agents that arrive while the offers of a person rest are seen to together.
func TestArrivalsWhileOffersRest(t *testing.T) {
	inBubble(t, func(w *world) {
		w.agent("a", nil)
		w.agent("b", nil)
		w.supervise(supervisor.Config{})
		var all []string
		for _, to := range []string{"a", "b"} {
			all = append(all, w.submit(func(p *protocol.Package) { p.Target.Agent, p.Policy.AckTimeoutMS = to, new(int64(1000)) }))
		}
		pass(time.Minute)
		w.holder("a", staying)
		w.holder("b", staying)
		for i, to := range []string{"a", "b"} {
			if s := w.until(all[i], func(s protocol.State) bool { return s.Agent == to }); s.Absent != nil || s.EscalationLevel != 0 {
				t.Errorf("back with %s: %+v", to, s)
			}
		}
	})
}
