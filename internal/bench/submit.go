package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// submitters submit packages, as many at a time as the configuration says, until they are stopped
// or none remain.
type submitters struct {
	cfg      Config
	b        *broker.Broker
	rec      *recorder
	agents   []string
	packages []protocol.Package
	recent   *recentTickets

	next atomic.Int64 // number of the next package
	// open has a token for each open handoff: a submitter waits while it is full.
	open chan struct{}
	// remaining is how many may still be submitted.
	remaining atomic.Int64
	// ticketSum is the sum of the hashes of all tickets, which does not depend on their order.
	ticketSum atomic.Uint64

	failed atomic.Pointer[error]
}

func newSubmitters(cfg Config, b *broker.Broker, rec *recorder, agents []string, packages []protocol.Package) *submitters {
	s := &submitters{cfg: cfg, b: b, rec: rec, agents: agents, packages: packages, recent: newRecentTickets(), open: make(chan struct{}, cfg.Open)}
	s.remaining.Store(unlimited)
	return s
}

const unlimited = int64(1) << 62

// handoffClosed frees the token of a handoff that has completed.
func (s *submitters) handoffClosed() {
	select {
	case <-s.open:
	default: // its submission has not returned yet, or is not counted here
	}
}

// run submits until stop is closed, ctx ends, or none remain.
func (s *submitters) run(ctx context.Context, stop <-chan struct{}) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var intended chan int64 // nil: a closed loop
	var wg sync.WaitGroup
	if s.cfg.Rate > 0 {
		intended = make(chan int64)
		wg.Go(func() { s.schedule(ctx, stop, intended) })
	}
	for range s.cfg.Submitters {
		wg.Go(func() {
			if err := s.submitLoop(ctx, stop, intended); err != nil {
				s.failed.CompareAndSwap(nil, &err)
				cancel()
			}
		})
	}
	wg.Wait()
	if err := s.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// schedule sends the instants at which to submit. An instant at which no submitter is free is
// submitted late, and still counts from its own time.
func (s *submitters) schedule(ctx context.Context, stop <-chan struct{}, intended chan<- int64) {
	defer close(intended)
	startedAt := s.rec.clock.now()
	timer := newPreciseTimer()
	defer timer.close()
	for i := int64(0); ; i++ {
		at := startedAt + int64(float64(i)/s.cfg.Rate*float64(time.Second))
		timer.sleep(time.Duration(at - s.rec.clock.now()))
		s.rec.recordSince(Lateness, at)
		if !send(ctx, stop, intended, at) {
			return
		}
	}
}

// send sends v. goOn is false once stop is closed or ctx has ended.
func send[T any](ctx context.Context, stop <-chan struct{}, to chan<- T, v T) (goOn bool) {
	select {
	case to <- v:
	case <-stop:
		return false
	case <-ctx.Done():
		return false
	}
	select { // the other select chooses at random
	case <-stop:
		return false
	default:
		return true
	}
}

func (s *submitters) submitLoop(ctx context.Context, stop <-chan struct{}, intended <-chan int64) error {
	for {
		at := int64(0)
		if intended != nil {
			var ok bool
			if at, ok = <-intended; !ok {
				return nil
			}
		}
		if !send(ctx, stop, s.open, struct{}{}) {
			return nil
		}
		if s.remaining.Add(-1) < 0 {
			return nil
		}
		if at == 0 {
			at = s.rec.clock.now()
		}
		if err := s.submit(ctx, at); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
}

// submit hands off one package, intended for an instant.
func (s *submitters) submit(ctx context.Context, at int64) error {
	n := int(s.next.Add(1) - 1)
	prepared, err := s.b.Prepare(ctx, s.packageFor(n, at))
	if err != nil {
		return fmt.Errorf("package %d: %w", n%len(s.packages)+1, err)
	}
	if _, err := s.b.Submit(ctx, prepared); err != nil {
		// The ledger may have it or not, so the proof could fail.
		return errors.Join(fmt.Errorf("submit %s", prepared.Ticket), err)
	}
	s.rec.recordSince(Submit, at)
	s.rec.submitted.Add(1)
	s.ticketSum.Add(hashTicket(prepared.Ticket))
	s.recent.put(prepared.Ticket)
	return nil
}

// packageFor returns the n-th package, intended for an instant.
func (s *submitters) packageFor(n int, at int64) protocol.Package {
	pkg := s.packages[n%len(s.packages)]
	pkg.Source, pkg.Target.Agent = s.rec.source, s.agents[n%len(s.agents)]
	pkg.Task.ID = instantID(at)
	pkg.CreatedAt = time.Unix(0, at).UTC().Truncate(time.Microsecond)
	return pkg
}

// hashTicket is FNV-1a, 64 bits.
func hashTicket(ticket string) uint64 {
	sum := uint64(14695981039346656037)
	for i := range len(ticket) {
		sum = (sum ^ uint64(ticket[i])) * 1099511628211
	}
	return sum
}
