//go:build proof

package sim

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"sync"
	"testing/synctest"
	"time"

	"github.com/agenthandoff/handoff/broker"
)

// scheduler runs one operation on the engine at a time, in an order that the seed gives, while all
// other goroutines wait. It makes a simulation repeatable.
type scheduler struct {
	seed   uint64
	chance *rand.Rand // its own: who is next
	news   chan struct{}
	stop   chan struct{}

	mu      sync.Mutex
	waiting []*waiter
	steps   int
	slow    bool // operations may take very long now
	delays  int  // those that do
	trace   func(format string, args ...any)
}

// waiter is an operation that waits for its turn.
type waiter struct {
	p    *process
	what string
	at   time.Time // not before
	key  string
	run  chan struct{}
}

func newScheduler(seed uint64) *scheduler {
	return &scheduler{seed: seed, chance: rand.New(rand.NewPCG(seed, 1)), news: make(chan struct{}, 1), stop: make(chan struct{}),
		trace: func(string, ...any) {}}
}

// dice is a random number by the seed and its arguments, whatever the order of calls.
func dice(seed uint64, about ...any) uint64 {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, about...)
	x := h.Sum64() ^ seed*0x9e3779b97f4a7c15
	x ^= x >> 31
	x *= 0xbf58476d1ce4e5b9
	return x ^ x>>29
}

// The time that an operation takes to reach the engine.
const (
	usualDelay     = 3 * time.Millisecond
	longDelay      = 45 * time.Second // longer than a lease
	longDelayOneIn = 300              // in so many
)

// await blocks until it is this operation's turn. The error is that its process
// has died, or that ctx ended.
func (s *scheduler) await(ctx context.Context, p *process, what string) error {
	if p.isDead() {
		return p.gone()
	}
	s.mu.Lock()
	id := fmt.Sprint(p.name, " ", what, " ", time.Since(epoch).Nanoseconds())
	d := dice(s.seed, "latency", id)
	latency := time.Duration(d % uint64(usualDelay))
	if s.slow && d>>32%longDelayOneIn == 0 {
		latency = time.Duration(d>>16) % longDelay
		s.delays++
	}
	t := &waiter{p: p, what: what, at: time.Now().Add(latency), key: id, run: make(chan struct{})}
	s.waiting = append(s.waiting, t)
	s.mu.Unlock()
	select {
	case s.news <- struct{}{}:
	default:
	}
	select {
	case <-t.run:
		if p.isDead() {
			return p.gone()
		}
		return nil
	case <-p.dead:
		s.forget(t)
		return p.gone()
	case <-ctx.Done():
		s.forget(t)
		return ctx.Err()
	}
}

func (s *scheduler) forget(t *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = slices.DeleteFunc(s.waiting, func(other *waiter) bool { return other == t })
}

// run starts waiting operations one by one until stop is closed. It is the only goroutine that waits
// until all others are idle.
func (s *scheduler) run() {
	for {
		synctest.Wait()
		select {
		case <-s.stop:
			return
		default:
		}
		t, wait := s.next(time.Now())
		if t != nil {
			close(t.run)
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-s.stop:
		case <-s.news:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// next takes an operation whose time has come, or tells how long there is none.
func (s *scheduler) next(now time.Time) (*waiter, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	wait := time.Hour
	var ready []*waiter
	for _, t := range s.waiting {
		at := t.at
		if thaw := t.p.thaw(); thaw.After(at) {
			at = thaw
		}
		if left := at.Sub(now); left > 0 {
			wait = min(wait, left)
			continue
		}
		ready = append(ready, t)
	}
	if len(ready) == 0 {
		return nil, wait
	}
	slices.SortStableFunc(ready, func(a, b *waiter) int { return cmp.Compare(a.key, b.key) })
	t := ready[s.chance.IntN(len(ready))]
	s.waiting = slices.DeleteFunc(s.waiting, func(other *waiter) bool { return other == t })
	s.steps++
	s.trace("%v %s: %s", now.Sub(epoch), t.p.name, t.what)
	return t, 0
}

// epoch is when every bubble's clock begins.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// process is one run of a program: it dies at once and as a whole, and may be frozen.
type process struct {
	name string
	s    *scheduler
	dead chan struct{}
	end  context.CancelFunc // of what it runs

	mu     sync.Mutex
	died   bool
	frozen time.Time // until then
}

func (p *process) isDead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.died
}

func (p *process) thaw() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.frozen
}

// freeze keeps the process from the engine for a while, as a stopped one is.
func (p *process) freeze(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = time.Now().Add(d)
}

// kill ends the process: none of its calls has an effect any more.
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.died {
		p.died = true
		close(p.dead)
		p.end()
	}
}

func (p *process) gone() error {
	return fmt.Errorf("%w: %s is dead", broker.ErrUnreachable, p.name)
}
