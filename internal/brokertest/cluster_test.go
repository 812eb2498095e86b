package brokertest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/embedded"
	handoffjs "github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// TestCluster has the cases that need three nodes, on one cluster because its start is slow.
//
// The first is about error 10164, which says that a write is in flight. The engine must retry.
func TestCluster(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	k := newKit(t, dial(t, c.URL()))
	js := jsAt(t, c.URL())
	ticket := protocol.NewTicket()
	var head uint64
	inFlight := false
	for range 300 {
		var wg sync.WaitGroup
		var mu sync.Mutex
		expected := head
		for range 4 {
			wg.Go(func() {
				ack, err := js.Publish(k.ctx, "handoff.ledger."+ticket, nil, jetstream.WithExpectLastSequencePerSubject(expected))
				mu.Lock()
				defer mu.Unlock()
				var api *jetstream.APIError
				switch {
				case err == nil:
					head = ack.Sequence
				case errors.As(err, &api) && api.ErrorCode == 10164:
					inFlight = true
				case !errors.As(err, &api) || api.ErrorCode != 10071:
					k.Error(err)
				}
			})
		}
		wg.Wait()
		if inFlight {
			break
		}
	}
	if !inFlight {
		k.Log("10164 did not come up in 300 rounds")
	}
	t.Run("a lone writer is never told that it lost", func(t *testing.T) {
		k := &kit{T: t, Engine: k.Engine, ctx: k.ctx}
		ticket, head := protocol.NewTicket(), uint64(0)
		for range 300 {
			head = k.append(ticket, head, "x")
		}
	})
	t.Run("reads through any node see what was appended through another", func(t *testing.T) {
		var engines []*handoffjs.Engine
		for _, n := range c.Nodes {
			engines = append(engines, dial(t, n.ClientURL()))
		}
		for i := range 300 {
			ticket := protocol.NewTicket()
			seq, err := engines[i%3].Append(k.ctx, ticket, 0, ticket, "", []byte("x"))
			if err != nil {
				t.Fatal(err)
			}
			if e, err := engines[(i+1)%3].Last(k.ctx, ticket, 0); err != nil || e.Seq != seq {
				t.Fatalf("read %d, %v after append %d", e.Seq, err, seq)
			}
		}
	})
	t.Run("wake-ups and appends survive restarts", func(t *testing.T) { testTimersThroughRestarts(t, c) })
	t.Run("a lost quorum is noticed", func(t *testing.T) { testQuorumLost(t, c) })
}

// testTimersThroughRestarts restarts each node while wake-ups are armed and fire.
// (nats-server#8423 once lost them.)
func testTimersThroughRestarts(t *testing.T, c *embedded.Cluster) {
	const timers = 100
	k := newKit(t, dial(t, c.URL()))
	ticket := protocol.NewTicket()
	dues := make(chan uint64, 10*timers)
	ctx, cancel := context.WithCancel(k.ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- k.Due(ctx, func(w broker.WakeUp, done func()) {
			if w.Ticket == ticket {
				dues <- w.Seq
			}
			done()
		})
	}()
	counted := k.appendUntil(ctx)
	begin := time.Now()
	for seq := range uint64(timers) {
		k.must(k.Arm(k.ctx, ticket, seq, begin.Add(time.Second+time.Duration(seq)*20*time.Millisecond)))
	}
	for i := range c.Nodes {
		k.must(c.Nodes[i].Stop())
		k.must(c.Restart(k.ctx, i))
	}
	seen := map[uint64]bool{}
	for len(seen) < timers {
		seen[receive(k, "every wake-up", dues)] = true
	}
	cancel()
	receive(k, "the end of Due", ended)
	counted()
}

// appendUntil appends to one ticket until ctx ends. The returned function checks that each append
// is stored once.
func (k *kit) appendUntil(ctx context.Context) func() {
	ticket := protocol.NewTicket()
	appended := make(chan []uint64, 1)
	go func() {
		var seqs []uint64
		var head uint64
		for ctx.Err() == nil { // each goes on through the restarts
			seq, err := k.Append(k.ctx, ticket, head, protocol.NewTicket(), "", []byte("x"))
			if err != nil {
				k.Errorf("append after %d: %v", head, err)
				break
			}
			head = seq
			seqs = append(seqs, seq)
		}
		appended <- seqs
	}()
	return func() {
		seqs := receive(k, "the last append", appended)
		var head uint64
		for i, want := range seqs {
			e, err := k.Next(k.ctx, ticket, head)
			k.must(err)
			if e.Seq != want {
				k.Fatalf("append %d of %d is at %d, was told %d", i, len(seqs), e.Seq, want)
			}
			head = want
		}
		if _, err := k.Next(k.ctx, ticket, head); !errors.Is(err, broker.ErrNotFound) {
			k.Errorf("there is one more than %d: %v", len(seqs), err)
		}
		k.Logf("%d appends through the restarts", len(seqs))
	}
}

// testQuorumLost loses the quorum: no holder can beat, while reads are still answered. A judge must
// see that it was cut off.
func testQuorumLost(t *testing.T, c *embedded.Cluster) {
	k := newKit(t, dial(t, c.Nodes[0].ClientURL()))
	before := k.awaitDirectory("being connected", func(d *lifecycle.Directory) bool { return !d.ConnectedSince.IsZero() })
	for _, i := range []int{1, 2} {
		k.must(c.Nodes[i].Stop())
	}
	k.awaitDirectory("being cut off", func(d *lifecycle.Directory) bool { return d.ConnectedSince.IsZero() })
	for _, i := range []int{1, 2} {
		k.must(c.Restart(k.ctx, i))
	}
	k.awaitDirectory("being connected again", func(d *lifecycle.Directory) bool { return d.ConnectedSince.After(before.ConnectedSince) })
}
