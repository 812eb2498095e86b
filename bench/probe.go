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

// recentMost is how many tickets are remembered for status reads.
const recentMost = 1 << 14

// recent remembers the last tickets.
type recent struct {
	next    atomic.Uint64
	tickets [recentMost]atomic.Pointer[string]
}

func newRecent() *recent { return new(recent) }

func (r *recent) put(ticket string) { r.tickets[(r.next.Add(1)-1)%recentMost].Store(&ticket) }

// any is one of them at random; "" while there is none.
func (r *recent) any(rng *rand.Rand) string {
	n := min(r.next.Load(), recentMost)
	if n == 0 {
		return ""
	}
	if ticket := r.tickets[rng.Uint64N(n)].Load(); ticket != nil {
		return *ticket
	}
	return ""
}

// probes is how many status reads may be under way at a time.
const probes = 4

// probe reads statuses at a fixed rate until ctx ends, each counted from its intended
// instant: of recent tickets, and, if any were stored before, of these in turn.
func probe(ctx context.Context, cfg Config, b *broker.Broker, rec *recorder, tickets *recent, stored func(int) string) error {
	if cfg.Probes == 0 {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	intended := make(chan int64)
	var wg sync.WaitGroup
	for i := range probes {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 1))
			for at := range intended {
				name, ticket := Status, tickets.any(rng)
				if cfg.Stored > 0 && rng.IntN(2) == 0 {
					name, ticket = StatusStored, stored(rng.IntN(cfg.Stored))
				}
				if ticket == "" {
					continue
				}
				if _, err := b.Status(ctx, ticket); err != nil && ctx.Err() == nil {
					cancel(fmt.Errorf("status: %w", err))
				}
				rec.record(name, at)
			}
		})
	}
	step := int64(time.Second) / int64(cfg.Probes)
	pace := newPace()
	for at := rec.clock.now(); ctx.Err() == nil; at += step {
		pace.sleep(time.Duration(at - rec.clock.now()))
		select {
		case intended <- at:
		case <-ctx.Done():
		}
	}
	pace.close()
	close(intended)
	wg.Wait()
	if cause := context.Cause(ctx); cause != context.Canceled {
		return cause
	}
	return nil
}
