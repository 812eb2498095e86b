package brokertest

import (
	"context"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

// A consumer that supervisors share keeps back what is there: it is paused, which looks
// to them like a server whose copy of the ledger has come to a halt. They have another
// server lead it.
func TestStuckConsumer(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	k := newKit(t, dial(t, c.URL()))
	js := jsAt(t, c.URL())
	come := make(chan string, 8)
	ctx, cancel := context.WithCancel(k.ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- k.Follow(ctx, func(e broker.Entry, done func()) {
			come <- e.Ticket
			done()
		})
	}()
	info := func() (leader string, paused bool) {
		ctx, cancel := context.WithTimeout(k.ctx, time.Second) // a consumer that is just made does not answer
		defer cancel()
		consumer, err := js.Consumer(ctx, jetstream.LedgerStream, jetstream.SupervisorConsumer)
		if err != nil || consumer.CachedInfo().Cluster == nil {
			return "", false
		}
		return consumer.CachedInfo().Cluster.Leader, consumer.CachedInfo().Paused
	}
	first := protocol.NewTicket()
	k.until("a leader of the consumer", func() bool { leader, _ := info(); return leader != "" })
	k.append(first, 0, "x")
	for receive(k, "an entry", come) != first {
	}
	was, _ := info()
	_, err := js.PauseConsumer(k.ctx, jetstream.LedgerStream, jetstream.SupervisorConsumer, time.Now().Add(time.Hour))
	k.must(err)
	k.until("it is paused", func() bool { _, paused := info(); return paused }) // it says so before it is
	second := protocol.NewTicket()
	k.append(second, 0, "x")
	// It takes two requests of 5 s to be noticed, then an election, which the same server
	// may win.
	asking := time.NewTicker(100 * time.Millisecond)
	defer asking.Stop()
	for now := was; now == "" || now == was; now, _ = info() {
		select {
		case <-asking.C:
		case <-k.ctx.Done():
			t.Fatal("no other server leads the consumer")
		}
	}
	_, err = js.ResumeConsumer(k.ctx, jetstream.LedgerStream, jetstream.SupervisorConsumer)
	k.must(err)
	for receive(k, "the entry that was kept back", come) != second {
	}
	cancel()
	receive(k, "the end of Follow", ended)
}
