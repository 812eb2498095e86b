package explain

import (
	"testing"

	"github.com/agenthandoff/handoff/internal/record"
	"github.com/agenthandoff/handoff/protocol"
)

// TestEveryEventIsDescribed: a type that describe does not know has no cause.
func TestEveryEventIsDescribed(t *testing.T) {
	for _, name := range protocol.EventTypes {
		e, err := record.DecodeEvent([]byte(`{"type":"` + string(name) + `","by":"somebody","answer":{"by":"somebody"}}`))
		if err != nil {
			t.Fatal(err)
		}
		if by, _ := Event(e); by != "somebody" {
			t.Errorf("%s is described as caused by %q", name, by)
		}
	}
}
