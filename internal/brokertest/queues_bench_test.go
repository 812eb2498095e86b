package brokertest

import (
	"fmt"
	"testing"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

// BenchmarkQueues asks how the queues of 200 agents stand, of which half have
// offers in one lane, one of them a great many.
func BenchmarkQueues(b *testing.B) {
	const agents, deep = 200, 50_000
	n := startNode(b, embedded.Config{Fsync: embedded.FsyncInterval})
	ensure(b, n.ClientURL(), jetstream.Topology{})
	e := dial(b, n.ClientURL())
	put := func(agent string) {
		key := broker.OfferKey{Agent: agent, Lane: protocol.Normal, Ticket: protocol.NewTicket(), Sequence: 1}
		if err := e.PutOffer(b.Context(), key, nil); err != nil {
			b.Fatal(err)
		}
	}
	for i := range agents {
		agent := fmt.Sprintf("agent-%d", i)
		if err := e.EnsureQueue(b.Context(), agent); err != nil {
			b.Fatal(err)
		}
		if i%2 == 0 {
			put(agent)
		}
	}
	for range deep {
		put("agent-0")
	}
	for b.Loop() {
		all, err := e.Queues(b.Context())
		if err != nil || len(all) != agents/2 {
			b.Fatalf("%d lanes, %v", len(all), err)
		}
	}
}
