package protocol_test

import (
	"testing"

	"github.com/agenthandoff/handoff/protocol"
)

// TestPollerID: the documentation names the name space, so that others can make the id.
func TestPollerID(t *testing.T) {
	if got := protocol.PollerID("clerk"); got != "a223dd76-b623-53c6-9017-a90b7acf5244" {
		t.Errorf("the id of clerk's polls is %s", got)
	}
	if !(protocol.Holder{ID: protocol.PollerID("clerk"), Agent: "clerk", Polling: true}).IsPoll() || (protocol.Holder{ID: protocol.PollerID("clerk"), Agent: "clerk"}).IsPoll() {
		t.Error("a poll is a polling entry of that id")
	}
}
