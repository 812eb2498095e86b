package brokertest

import (
	"slices"
	"testing"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/jetstream"
)

// TestDiagnoseCluster: three replicas that keep up show nothing amiss, and one
// that is gone shows.
func TestDiagnoseCluster(t *testing.T) {
	c := startCluster(t)
	e := dial(t, c.Nodes[0].ClientURL())
	if err := e.EnsureQueue(t.Context(), "clerk"); err != nil {
		t.Fatal(err)
	}
	if err := e.PutOffer(t.Context(), broker.OfferKey{Agent: "clerk", Lane: "normal", Ticket: "t", Sequence: 1}, nil); err != nil {
		t.Fatal(err)
	}
	k := &kit{T: t, Engine: e, ctx: t.Context()}
	var d jetstream.Diagnosis
	amiss := func(s jetstream.StreamFacts) bool {
		return s.Missing || s.Replicas != 3 || len(s.Weaker) > 0 || len(s.Behind) > 0 || s.Leaderless
	}
	k.until("all replicas to keep up", func() bool {
		d = diagnose(t, e.Conn())
		return len(d.Unanswered) == 0 && len(d.Streams) == 8 && !slices.ContainsFunc(d.Streams, amiss)
	})
	if d.Server.Cluster == "" || d.Server.Within <= 0 {
		t.Errorf("server: %+v", d.Server)
	}
	for _, consumer := range d.Consumers {
		if len(consumer.Odd) > 0 {
			t.Errorf("consumer: %+v", consumer)
		}
	}
	if err := c.Nodes[2].Stop(); err != nil {
		t.Fatal(err)
	}
	k.until("the lost node to show", func() bool {
		d = diagnose(t, e.Conn())
		return slices.ContainsFunc(d.Streams, func(s jetstream.StreamFacts) bool { return len(s.Behind) == 1 })
	})
}
