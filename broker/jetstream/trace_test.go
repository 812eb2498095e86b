package jetstream

import (
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/protocol"
)

// TestUntracedMessageIsFree: a message without a trace costs no allocation and gets no header.
func TestUntracedMessageIsFree(t *testing.T) {
	msg := nats.NewMsg("s")
	if n := testing.AllocsPerRun(1000, func() { traceHeaders(protocol.TraceContext{}, msg) }); n != 0 || len(msg.Header) > 0 {
		t.Errorf("%v allocations, headers %v", n, msg.Header)
	}
}
