package brokertest

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

// Two busy followers share what comes: each has every
// message that the other has not, and none is left at the end, when it grows quiet.
func TestBusyFollowersShare(t *testing.T) {
	const n = 20_000
	node := startNode(t, embedded.Config{Fsync: embedded.FsyncInterval})
	ensure(t, node.ClientURL(), jetstream.Topology{})
	var gathered atomic.Int64
	spy, err := nats.Connect(node.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(spy.Close)
	if _, err := spy.Subscribe("$JS.API.CONSUMER.MSG.NEXT."+jetstream.LedgerStream+".>", func(m *nats.Msg) {
		if bytes.Contains(m.Data, []byte(`"no_wait":true`)) {
			gathered.Add(1)
		}
	}); err != nil {
		t.Fatal(err)
	}
	seen := make([]atomic.Int32, n+1)
	var all, left atomic.Int64
	left.Store(n)
	over := make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	var followers sync.WaitGroup
	for range 2 {
		// The ack wait is the usual one: what comes twice is not for want of time.
		j, err := jetstream.Dial(t.Context(), jetstream.DialConfig{URL: node.ClientURL()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = j.Close() })
		followers.Go(func() {
			_ = j.Follow(ctx, func(e broker.Entry, done func()) {
				done()
				all.Add(1)
				if seen[e.Seq].Add(1) == 1 && left.Add(-1) == 0 {
					close(over)
				}
			})
		})
	}
	defer followers.Wait()
	defer stop()
	k := newKit(t, dial(t, node.ClientURL()))
	js := jsAt(t, node.ClientURL())
	k.until("the followers' consumer", func() bool {
		_, err := js.Consumer(k.ctx, jetstream.LedgerStream, jetstream.SupervisorConsumer)
		return err == nil
	})
	k.must(dial(t, node.ClientURL()).Load(k.ctx, func(yield func(jetstream.LoadEntry, error) bool) {
		for i := range uint64(n) {
			if !yield(jetstream.LoadEntry{Ticket: protocol.NewTicket(), ID: protocol.NewTicket(), Body: []byte("{}"), Seq: i + 1}, nil) {
				return
			}
		}
	}))
	receive(k, "every message", over)
	if all.Load() != n {
		t.Errorf("%d messages came for %d", all.Load(), n)
	}
	t.Logf("%d requests let messages gather", gathered.Load())
}
