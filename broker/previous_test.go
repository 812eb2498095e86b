package broker_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/protocol"
)

// TestPreviousResultOfLargestPackage: a package that has no room for the previous result goes on
// without it, and the finished work counts.
func TestPreviousResultOfLargestPackage(t *testing.T) {
	const room = 4 << 10
	for size, fits := range map[int]bool{room / 2: true, 2 * room: false} {
		b := brokertest.Over(t, brokertest.NewMemory())
		brokertest.Register(t, b, "coder")
		var pkg protocol.Package
		pkg.Context.Artifacts.List = []protocol.Artifact{{ID: strings.Repeat("x", protocol.PackageBytesMax-room)}}
		brokertest.Submit(t, b, pkg)
		c := claim(t, b, brokertest.PutHolder(t, b, "coder", time.Hour))
		body, err := json.Marshal(strings.Repeat("x", size))
		if err != nil {
			t.Fatal(err)
		}
		result := protocol.Result{Body: body, Command: &protocol.Command{Goto: json.RawMessage(`"human"`)}}
		if err := c.Complete(t.Context(), result); err != nil {
			t.Fatal(err)
		}
		if s := c.State(); s.Outcome != protocol.OutcomeSuccess {
			t.Errorf("%d bytes: it closed as %s: %s", size, s.Outcome, s.Message)
		}
		handedOn, err := b.Package(t.Context(), protocol.ChildTicketN(c.Ticket, 0))
		if err != nil {
			t.Fatal(err)
		}
		next, err := protocol.DecodePackage(handedOn)
		if err != nil {
			t.Fatal(err)
		}
		if got := next.Context.Previous != nil; got != fits {
			t.Errorf("%d bytes: the previous result goes on: %t", size, got)
		}
	}
}
