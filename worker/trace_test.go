package worker_test

import (
	"context"
	"testing"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// TestTraceOfAHandler: a handler knows the span that its work is, and its context
// carries it; so does what it hands off.
func TestTraceOfAHandler(t *testing.T) {
	inBubble(t, func(w *world) {
		var told protocol.TraceContext
		w.serve(worker.Config{}, worker.HandlerFunc(func(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
			told = h.Trace
			if got := broker.TraceFrom(ctx); got != told {
				t.Errorf("the context carries %+v, the handoff %+v", got, told)
			}
			s := h.State()
			if want := s.TraceAt(protocol.SpanWork, h.Fence); told != want {
				t.Errorf("the work is %+v, want %+v", told, want)
			}
			return protocol.Result{}, nil
		}))
		ticket := w.submit(func(p *protocol.Package) {
			p.TraceParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
		})
		if s := w.closed(ticket); s.TraceID() != told.TraceID() || told.Sampled() {
			t.Errorf("the handoff is in the trace %x, its work in %+v", s.TraceID(), told)
		}
	})
}
