package worker_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// counted is a session that counts the beats of a worker and notes its lease.
type counted struct {
	*api.Session
	beats atomic.Int64
	lease atomic.Int64
}

func (c *counted) Present(ctx context.Context, p api.Presence) (api.Presented, error) {
	c.beats.Add(1)
	c.lease.Store(p.LeaseMS)
	return c.Session.Present(ctx, p)
}

// What is not given follows from what is.
func TestBeatSettings(t *testing.T) {
	const ms, s, m = time.Millisecond, time.Second, time.Minute
	for name, c := range map[string]struct {
		cfg         worker.Config
		lease, beat time.Duration
	}{
		"nothing":                  {worker.Config{}, 30 * s, 10 * s},
		"a lease":                  {worker.Config{Lease: 3 * s}, 3 * s, s},
		"a long lease":             {worker.Config{Lease: time.Hour}, time.Hour, 10 * s},
		"the shortest lease":       {worker.Config{Lease: worker.LeaseMin}, s, s / 3},
		"document 1":               {worker.Config{Beat: m, BeatTimeout: 10 * s, Misses: 3}, 190 * s, m},
		"a beat":                   {worker.Config{Beat: 2 * s}, 8 * s, 2 * s},
		"a beat and its timeout":   {worker.Config{Beat: 2 * s, BeatTimeout: s}, 7 * s, 2 * s},
		"a beat for a short lease": {worker.Config{Beat: 100 * ms}, s, 100 * ms},
		"a beat and a lease":       {worker.Config{Beat: 20 * s, Lease: 30 * s}, 30 * s, 20 * s},
		"misses":                   {worker.Config{Misses: 6}, 30 * s, 5 * s},
		"one miss":                 {worker.Config{Misses: 1, Lease: 10 * s}, 10 * s, 5 * s},
		"all of them":              {worker.Config{Lease: 300 * s, Beat: m, BeatTimeout: 10 * s, Misses: 5}, 300 * s, m},
		"a lease with more room":   {worker.Config{Lease: time.Hour, Beat: m, Misses: 3}, time.Hour, m},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				m := w.m.Connect()
				b := &counted{Session: sessionOf(brokertest.Over(t, m))}
				w.serveOver(m, b, c.cfg, done)
				first := b.beats.Load()
				pass(20 * c.beat)
				if got := time.Duration(b.lease.Load()) * ms; got != c.lease || b.beats.Load()-first != 20 {
					t.Errorf("lease %v, %d beats in %v; want %v and one each %v", got, b.beats.Load()-first, 20*c.beat, c.lease, c.beat)
				}
			})
		})
	}
}

func TestBeatSettingsThatDoNotFit(t *testing.T) {
	const s = time.Second
	b := brokertest.Over(t, brokertest.NewMemory())
	for _, c := range []struct {
		cfg   worker.Config
		field string
	}{
		{worker.Config{Lease: s / 2}, "lease"},
		{worker.Config{Lease: 25 * time.Hour}, "lease"},
		{worker.Config{Lease: -1}, "lease"},
		{worker.Config{Beat: 50 * time.Millisecond}, "beat"},
		{worker.Config{Beat: -s}, "beat"},
		{worker.Config{Beat: 12 * time.Hour, Misses: 3}, "beat"},
		{worker.Config{Beat: 48 * time.Hour}, "beat"},
		{worker.Config{Misses: -1}, "misses"},
		{worker.Config{Misses: 101}, "misses"},
		{worker.Config{Misses: 100, Lease: s}, "lease"},
		{worker.Config{BeatTimeout: -1}, "beat_timeout"},
		{worker.Config{BeatTimeout: 11 * s}, "beat_timeout"},
		{worker.Config{Beat: s, BeatTimeout: 2 * s}, "beat_timeout"},
		{worker.Config{Lease: 60 * s, Beat: 60 * s, BeatTimeout: 10 * s, Misses: 3}, "lease"},
		{worker.Config{Lease: 179 * s, Beat: 60 * s, BeatTimeout: 10 * s, Misses: 3}, "lease"},
		{worker.Config{Lease: 60 * s, Beat: 60 * s}, "lease"},
		{worker.Config{Lease: 60 * s, Beat: 60 * s, BeatTimeout: 10 * s, Misses: 1}, "lease"},
		{worker.Config{Lease: 30 * s, Beat: 60 * s}, "lease"},
		{worker.Config{CleanupTimeout: -1}, "cleanup_timeout"},
		{worker.Config{CleanupTimeout: 2 * time.Hour}, "cleanup_timeout"},
	} {
		c.cfg.Agent = "a"
		var refused *protocol.Error
		if _, err := worker.New(sessionOf(b), c.cfg, done); !errors.As(err, &refused) || refused.Field != c.field {
			t.Errorf("%+v: %v, want a word on %s", c.cfg, err, c.field)
		}
	}
}

// With a slow beat the offers of a worker stay its own all the same, and a
// cancel is heard of no later.
func TestSlowBeat(t *testing.T) {
	inBubble(t, func(w *world) {
		h := newWorking()
		thinking := make(chan struct{})
		s := w.serve(worker.Config{Beat: time.Minute, BeatTimeout: 10 * time.Second, Misses: 3, Concurrency: 2}, asking{h, func(ctx context.Context, h worker.Handoff) (protocol.Ack, error) {
			if h.Package.Task.Description == "think" {
				<-thinking
			}
			return protocol.Ack{Status: protocol.AckAccepted}, nil
		}})
		long := time.Hour.Milliseconds()
		ticket := w.submit(nil)
		second := w.submit(func(p *protocol.Package) { p.Task.Description = "think"; p.Policy.AckTimeoutMS = &long })
		for range 300 {
			pass(time.Second)
			if w.others() != 0 {
				t.Fatal("an offer was free")
			}
		}
		close(thinking)
		synctest.Wait()
		for range 300 {
			pass(time.Second)
			if w.others() != 0 {
				t.Fatal("an offer was free")
			}
		}
		if _, err := w.b.Cancel(w.ctx, ticket, "lead", "x"); err != nil {
			t.Fatal(err)
		}
		pass(10 * time.Second)
		w.cancelledBy(h, worker.ErrCancelled)
		s.m.Disconnect()
		pass(129 * time.Second) // the last beat was a minute ago at most
		if len(h.cause) != 0 {
			t.Error("stopped though three beats had not been missed")
		}
		pass(61 * time.Second)
		w.cancelledBy(h, broker.ErrLeaseLost)
		s.m.Reconnect()
		pass(time.Second)
		if state := w.status(second); state.AttemptsTotal != 1 && state.LeasesLost != 0 {
			t.Errorf("state %+v", state)
		}
	})
}

// A beat that hangs for as long as it may keeps the offers from nobody else's
// hands any less.
func TestOffersAreKeptWhileABeatHangs(t *testing.T) {
	inBubble(t, func(w *world) {
		m := w.m.Connect()
		slow := &slowBeats{Session: sessionOf(brokertest.Over(t, m))}
		h := newWorking()
		w.serveOver(m, slow, worker.Config{Beat: time.Minute, Misses: 3}, h)
		ticket := w.submit(nil)
		synctest.Wait()
		slow.delay.Store(int64(59 * time.Second))
		for range 600 {
			pass(time.Second)
			if w.others() != 0 || len(h.cause) != 0 {
				t.Fatal("an offer was free, or the work was stopped")
			}
		}
		h.end <- nil
		w.closed(ticket)
	})
}
