package protocol_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/protocol"
)

func TestReserved(t *testing.T) {
	for _, name := range []string{"handoff", "supervisor", "holder", "system", "operator", "engine", "gateway", "door", "schedule", "signal"} {
		for _, written := range []string{name, strings.ToUpper(name), strings.ToUpper(name[:1]) + name[1:]} {
			if err := protocol.CheckAgent("agent", written); !errors.Is(err, &protocol.Error{Code: protocol.CodeReserved, Field: "agent"}) {
				t.Errorf("%s: %v", written, err)
			}
		}
	}
	for _, name := range []string{"Human", "HUMAN"} {
		if !protocol.Reserved(name) {
			t.Errorf("%s is not reserved", name)
		}
	}
	for _, name := range []string{"human", "humans", "supervisor-1", "the-engine", "agent", "worker", ""} {
		if protocol.Reserved(name) {
			t.Errorf("%s is reserved", name)
		}
	}
}
