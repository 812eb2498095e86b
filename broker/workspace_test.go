package broker_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// TestLockWaitEndsWithItsGate: the wait for declared locks begins with the approval, and ends when
// the gate says, however late the request is made.
func TestLockWaitEndsWithItsGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := brokertest.NewMemory()
		defer func() { _ = m.Close() }()
		b := brokertest.Over(t, m)
		brokertest.Register(t, b, "coder")
		submit := func(key string, approval bool) protocol.State {
			pkg := protocol.Package{Key: key, Source: "lead", Target: protocol.Target{Agent: "coder"}, Workspace: "w",
				Locks: &protocol.Locks{Paths: []protocol.LockPath{{Path: "a"}}, WaitMS: new(int64(60_000))}}
			if approval {
				pkg.Approval = &protocol.Approval{Required: true, By: protocol.Human}
			}
			return brokertest.Submit(t, b, pkg).State
		}
		if has := submit("has", false); has.Phase != protocol.Pending {
			t.Fatalf("the first is %s", has.Phase)
		}
		waits := submit("waits", true)
		time.Sleep(10 * time.Minute)
		state, err := b.Approve(t.Context(), waits.Ticket, broker.ApprovalAnswer{By: protocol.Human})
		if err != nil {
			t.Fatal(err)
		}
		until := state.Approvals[0].At.Add(time.Minute)
		if !state.Gate.Until.Equal(until) || !lifecycle.Wake(state).Equal(until) {
			t.Fatalf("the gate waits until %v, and wakes at %v, want %v", state.Gate.Until, lifecycle.Wake(state), until)
		}
		join := func() protocol.State {
			head, err := b.Head(t.Context(), waits.Ticket, 0)
			if err == nil {
				head, err = b.EnsureWorkspace(t.Context(), head)
			}
			if err != nil {
				t.Fatal(err)
			}
			return head.State
		}
		time.Sleep(40 * time.Second) // until a supervisor finds it
		join()
		w, err := b.Workspace(t.Context(), "w")
		if wait := w.WaitOf(waits.Ticket); err != nil || wait == nil || !wait.Until.Equal(until) {
			t.Fatalf("the request is %+v, %v; want it to wait until %v", wait, err, until)
		}
		time.Sleep(20 * time.Second)
		if state = join(); state.Outcome != protocol.OutcomeRejected || state.Reason != string(protocol.CodeLockBusy) {
			t.Errorf("when the wait is over: %s %s", state.Outcome, state.Reason)
		}
	})
}
