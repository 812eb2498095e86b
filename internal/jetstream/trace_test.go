package jetstream

import (
	"testing"

	"github.com/agenthandoff/handoff/protocol"
)

// TestUntracedMessageIsFree: a message without a trace costs no allocation and gets no header.
func TestUntracedMessageIsFree(t *testing.T) {
	msg := newMessage("s", nil)
	defer msg.release()
	if n := testing.AllocsPerRun(1000, func() { msg.setTrace(protocol.TraceContext{}) }); n != 0 || len(msg.Header) > 0 {
		t.Errorf("%v allocations, headers %v", n, msg.Header)
	}
}
