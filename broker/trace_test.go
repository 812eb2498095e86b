package broker

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/protocol"
)

// TestUntracedIsFree: what an append and an offer pay for traces where there is
// none.
func TestUntracedIsFree(t *testing.T) {
	ctx, state, msg := context.Background(), protocol.State{Ticket: protocol.NewTicket()}, nats.NewMsg("s")
	if n := testing.AllocsPerRun(1000, func() {
		traceHeaders(TraceFrom(traced(ctx, &state)), msg)
		if inTrace(ctx, nil) != nil {
			t.Error("a trace from nowhere")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if len(msg.Header) > 0 {
		t.Errorf("headers %v", msg.Header)
	}
}

// TestTraceOfAContext: what a context carries may be anybody's.
func TestTraceOfAContext(t *testing.T) {
	for parent, kept := range map[string]bool{"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01": true, "nonsense": false, "": false} {
		ctx := WithTrace(t.Context(), protocol.TraceContext{Parent: parent})
		if got := inTrace(ctx, nil); (got != nil) != kept {
			t.Errorf("%q became %+v", parent, got)
		}
	}
}
