package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agenthandoff/handoff/broker"
)

// recentTicketsMax is how many tickets are remembered for status reads.
const recentTicketsMax = 1 << 14

// recentTickets remembers the last tickets.
type recentTickets struct {
	next    atomic.Uint64
	tickets [recentTicketsMax]atomic.Pointer[string]
}

func newRecentTickets() *recentTickets { return new(recentTickets) }

func (r *recentTickets) put(ticket string) {
	r.tickets[(r.next.Add(1)-1)%recentTicketsMax].Store(&ticket)
}

// random returns one of them; "" while there is none.
func (r *recentTickets) random(rng *rand.Rand) string {
	n := min(r.next.Load(), recentTicketsMax)
	if n == 0 {
		return ""
	}
	if ticket := r.tickets[rng.Uint64N(n)].Load(); ticket != nil {
		return *ticket
	}
	return ""
}

// probeReaders is how many status reads may be under way at a time.
const probeReaders = 4

// probeStatus reads statuses at a fixed rate until ctx ends, each counted from its intended
// instant: of recent tickets and, if the ledger has stored handoffs, of half as many of those.
func probeStatus(ctx context.Context, cfg Config, b *broker.Broker, rec *recorder, tickets *recentTickets, stored func(int) string) error {
	if cfg.Probes == 0 {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	intended := make(chan int64)
	var wg sync.WaitGroup
	for i := range probeReaders {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 1))
			for at := range intended {
				name, ticket := Status, tickets.random(rng)
				if cfg.Stored > 0 && rng.IntN(2) == 0 {
					name, ticket = StatusStored, stored(rng.IntN(cfg.Stored))
				}
				if ticket == "" {
					continue
				}
				if _, err := b.Status(ctx, ticket); err != nil && ctx.Err() == nil {
					cancel(fmt.Errorf("status: %w", err))
				}
				rec.recordSince(name, at)
			}
		})
	}
	step := int64(time.Second) / int64(cfg.Probes)
	timer := newPreciseTimer()
	for at := rec.clock.now(); ctx.Err() == nil; at += step {
		timer.sleep(time.Duration(at - rec.clock.now()))
		select {
		case intended <- at:
		case <-ctx.Done():
		}
	}
	timer.close()
	close(intended)
	wg.Wait()
	if cause := context.Cause(ctx); cause != context.Canceled {
		return cause
	}
	return nil
}
