package brokertest

import (
	"context"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// A consumer that supervisors share keeps back what is there: it is paused, which looks
// to them like a server whose copy of the ledger has come to a halt. They have another
// server lead it.
//
// It has the package to itself: a cluster that is slow to begin would be for nothing.
func TestStuckConsumer(t *testing.T) {
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
	leader := func() string {
		consumer, err := js.Consumer(k.ctx, broker.LedgerStream, broker.SupervisorConsumer)
		if err != nil || consumer.CachedInfo().Cluster == nil {
			return ""
		}
		return consumer.CachedInfo().Cluster.Leader
	}
	first := protocol.NewTicket()
	k.until("somebody follows", func() bool { return leader() != "" })
	k.append(first, 0, "x")
	for receive(k, "an entry", come) != first {
	}
	was := leader()
	_, err := js.PauseConsumer(k.ctx, broker.LedgerStream, broker.SupervisorConsumer, time.Now().Add(time.Hour))
	k.must(err)
	second := protocol.NewTicket()
	k.append(second, 0, "x")
	k.until("another server leads the consumer", func() bool { now := leader(); return now != "" && now != was })
	_, err = js.ResumeConsumer(k.ctx, broker.LedgerStream, broker.SupervisorConsumer)
	k.must(err)
	for receive(k, "the entry that was kept back", come) != second {
	}
	cancel()
	receive(k, "the end of Follow", ended)
}
