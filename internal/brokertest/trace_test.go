package brokertest

import (
	"context"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// TestTraceHeaders: the engine's messages carry the trace in their headers, and
// none where there is none.
func TestTraceHeaders(t *testing.T) {
	n := startNode(t, embedded.Config{Fsync: embedded.FsyncInterval})
	ensure(t, n.ClientURL(), jetstream.Topology{})
	nc, err := n.Conn()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	sub, err := nc.SubscribeSync("handoff.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	e := dial(t, n.ClientURL())
	trace := protocol.TraceContext{Parent: aTraceParent, State: "rojo=1"}
	ticket := protocol.NewTicket()
	offer := broker.OfferKey{Agent: "a", Lane: protocol.Normal, Ticket: ticket, Sequence: 1}
	for _, want := range []protocol.TraceContext{trace, {}} {
		ctx := t.Context()
		if !want.IsZero() {
			ctx = broker.WithTrace(ctx, want)
		}
		if _, err := e.Append(ctx, protocol.NewTicket(), 0, "id", lifecycle.AttentionNone, body); err != nil {
			t.Fatal(err)
		}
		if err := e.PutOffer(ctx, offer, body); err != nil {
			t.Fatal(err)
		}
		offer.Sequence++
		found := map[string]bool{}
		for len(found) < 2 { // the append, the offer
			msg, err := sub.NextMsg(10 * time.Second)
			if err != nil {
				t.Fatalf("after %v: %v", found, err)
			}
			kind := msg.Subject[:len("handoff.work")]
			got := protocol.TraceContext{Parent: msg.Header.Get("traceparent"), State: msg.Header.Get("tracestate")}
			if got != want {
				t.Errorf("%s carries %+v, want %+v", msg.Subject, got, want)
			}
			found[kind] = true
		}
	}
}

// BenchmarkAppendTraced says what a trace in the headers costs.
func BenchmarkAppendTraced(b *testing.B) {
	e := benchEngine(b, embedded.FsyncInterval)
	for name, ctx := range map[string]context.Context{"none": b.Context(),
		"trace": broker.WithTrace(b.Context(), protocol.TraceContext{Parent: aTraceParent})} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				ticket := protocol.NewTicket()
				if _, err := e.Append(ctx, ticket, 0, ticket, "", body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
