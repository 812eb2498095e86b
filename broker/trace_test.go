package broker

import (
	"context"
	"testing"

	"github.com/agenthandoff/handoff/protocol"
)

// TestUntracedIsFree: an append pays nothing for a trace that is not there.
func TestUntracedIsFree(t *testing.T) {
	ctx, state := context.Background(), protocol.State{Ticket: protocol.NewTicket()}
	if n := testing.AllocsPerRun(1000, func() {
		if from := TraceFrom(withHandoffTrace(ctx, &state)); !from.IsZero() || summaryTrace(ctx, nil) != nil {
			t.Error("a trace from nowhere")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestTraceOfAContext: what a context carries may be anybody's.
func TestTraceOfAContext(t *testing.T) {
	for parent, kept := range map[string]bool{"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01": true, "nonsense": false, "": false} {
		ctx := WithTrace(t.Context(), protocol.TraceContext{Parent: parent})
		if got := summaryTrace(ctx, nil); (got != nil) != kept {
			t.Errorf("%q became %+v", parent, got)
		}
	}
}
