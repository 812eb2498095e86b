package supervisor_test

import (
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/protocol"
)

// oneSlot makes the presence of a worker with one slot.
func (w *world) oneSlot(agent string) protocol.Holder {
	w.Helper()
	h := protocol.Holder{ID: protocol.NewTicket(), Agent: agent, LeaseMS: staying.Milliseconds(), Slots: 1, Busy: 1}
	if err := w.b.Beat(w.ctx, h); err != nil {
		w.Fatal(err)
	}
	return h
}

// crossed has coder and tester wait in their only slots for one another, and returns the two
// handoffs that wait for a slot, the older one first.
func (w *world) crossed() (older, younger string) {
	w.Helper()
	hand := func(c *broker.Claim, to string) string {
		ticket, err := c.HandOff(w.ctx, broker.Child{Package: protocol.Package{Type: protocol.Delegation, Target: protocol.Target{Agent: to},
			Reason: "test", Task: protocol.Task{Description: "test"},
			Return: &protocol.ReturnProtocol{Expected: true, TimeoutMS: int64(staying / time.Millisecond), Wait: protocol.WaitBlock}}})
		if err != nil {
			w.Fatal(err)
		}
		return ticket
	}
	w.submit(nil)
	coder := w.work(w.oneSlot("coder"))
	w.submit(func(p *protocol.Package) { p.Target.Agent = "tester" })
	tester := w.work(w.oneSlot("tester"))
	older = hand(coder, "tester")
	pass(time.Second)
	return older, hand(tester, "coder")
}

// Of two handoffs that wait for one another the younger one goes up with the next sweep.
func TestSweepResolvesDeadlock(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise(supervisor.Config{SweepInterval: time.Minute})
		w.agent("coder", nil)
		w.agent("tester", nil)
		older, younger := w.crossed()
		pass(5 * time.Minute)
		if got := w.plot(younger); !strings.Contains(got, "deadlocked escalated offered") {
			t.Errorf("the younger one: %s", got)
		}
		if got := w.plot(older); strings.Contains(got, "deadlocked") {
			t.Errorf("the older one: %s", got)
		}
	})
}

// A circle with a slot that is free moves by itself.
func TestNoDeadlock(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise(supervisor.Config{SweepInterval: time.Minute})
		w.agent("coder", nil)
		w.agent("tester", nil)
		older, younger := w.crossed()
		w.holder("tester", staying) // a second worker, with a slot
		pass(5 * time.Minute)
		for _, ticket := range []string{older, younger} {
			if got := w.plot(ticket); strings.Contains(got, "deadlocked") {
				t.Errorf("there is a free slot, and %s", got)
			}
		}
	})
}
