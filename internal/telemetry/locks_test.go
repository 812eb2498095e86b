package telemetry

import (
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/protocol"
)

// TestLocks checks that the locks of handoffs are counted, and those that others wait for.
func TestLocks(t *testing.T) {
	inScene(t, func(s *scene) {
		s.agents("coder")
		is := func(held, waiting string) {
			t.Helper()
			after(time.Minute)
			s.wants(map[string]string{"handoff_locks{state=held}": held, "handoff_locks{state=waiting}": waiting})
		}
		is("0", "0")
		var tickets []string
		for range 2 {
			pkg := protocol.Package{Target: protocol.Target{Agent: "coder"}, Workspace: "W",
				Locks: &protocol.Locks{Paths: []protocol.LockPath{{Path: "a"}, {Path: "b"}}}}
			tickets = append(tickets, brokertest.Submit(s, s.b, pkg).Ticket)
		}
		is("2", "2")
		for _, ticket := range tickets {
			_, err := s.b.Cancel(s.ctx, ticket, "", "")
			s.must(err)
		}
		is("0", "0")
	})
}
