package brokertest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

// BenchmarkCommit appends from many clients of one engine, as fast as the node
// syncs: one after another, and grouped. The node stages batches in memory or on
// the disk. docs/design/commits.md has figures.
func BenchmarkCommit(b *testing.B) {
	for _, staged := range []string{"memory", "disk"} {
		singly, grouped := newCommitEngines(b, staged == "memory")
		for _, clients := range []int{1, 4, 8, 16, 32, 64, 128, 384} {
			b.Run(fmt.Sprintf("staged=%s/clients=%d/singly", staged, clients), func(b *testing.B) { appendFrom(b, singly, clients) })
			b.Run(fmt.Sprintf("staged=%s/clients=%d/grouped", staged, clients), func(b *testing.B) { appendFrom(b, grouped, clients) })
		}
	}
}

// newCommitEngines returns two engines on one node, of which the second groups. A
// node finds the ledger to stage batches for when that is made before it serves.
func newCommitEngines(b *testing.B, inMemory bool) (singly, grouped broker.Engine) {
	cfg := embedded.Config{DontListen: true}
	if inMemory {
		cfg.Prepare = jetstream.Topology{}.Prepare
	}
	n := startNode(b, cfg)
	engine := func(asyncWork bool) broker.Engine {
		nc, err := n.Conn()
		if err != nil {
			b.Fatal(err)
		}
		if err := jetstream.EnsureTopology(b.Context(), nc, jetstream.Topology{AsyncWork: asyncWork}); err != nil {
			b.Fatal(err)
		}
		e, err := jetstream.Open(b.Context(), nc, jetstream.Config{})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = e.Close(); nc.Close() })
		return e
	}
	return engine(false), engine(true)
}

func appendFrom(b *testing.B, e broker.Engine, clients int) {
	var left atomic.Int64
	left.Store(int64(b.N))
	all := make([][]time.Duration, clients)
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				ticket := protocol.NewTicket()
				began := time.Now()
				if _, err := e.Append(context.Background(), ticket, 0, ticket, "", body); err != nil {
					b.Error(err)
					return
				}
				all[c] = append(all[c], time.Since(began))
			}
		})
	}
	wg.Wait()
	took := slices.Concat(all...)
	slices.Sort(took)
	if len(took) > 0 {
		b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
		b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
	}
	b.ReportMetric(float64(len(took))/b.Elapsed().Seconds(), "appends/s")
}
