package broker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
)

// published is a Publisher that keeps what it is given, or fails.
type published struct {
	mu   sync.Mutex
	fail error
	got  []string
}

func (p *published) PublishOutbox(_ context.Context, entries []broker.OutboxEntry) []error {
	p.mu.Lock()
	defer p.mu.Unlock()
	errs := make([]error, len(entries))
	for i, e := range entries {
		if errs[i] = p.fail; p.fail == nil {
			p.got = append(p.got, fmt.Sprintf("%s %d %s", e.WakeUp.Ticket, e.WakeUp.Seq, e.WakeUp.Attention))
		}
	}
	return errs
}

func (p *published) take() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	got := p.got
	p.got = nil
	return got
}

func (p *published) failWith(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fail = err
}

func announcing(t *testing.T, test func(a *broker.Announcer, p *published, want func(...string))) {
	synctest.Test(t, func(t *testing.T) {
		p := &published{}
		a := broker.NewAnnouncer(p, nil)
		defer a.Close(t.Context())
		test(a, p, func(lines ...string) {
			t.Helper()
			synctest.Wait()
			if got := p.take(); !slices.Equal(got, lines) {
				t.Errorf("announced %q, want %q", got, lines)
			}
		})
	})
}

func TestAnnouncerHolds(t *testing.T) {
	announcing(t, func(a *broker.Announcer, _ *published, want func(...string)) {
		a.Appended(t.Context(), "x", 1, lifecycle.AttentionLater)
		time.Sleep(broker.AnnounceHold / 2)
		a.Appended(t.Context(), "y", 2, lifecycle.AttentionLater)
		a.Appended(t.Context(), "z", 3, lifecycle.AttentionLater)
		a.Appended(t.Context(), "z", 4, lifecycle.AttentionNone)
		a.Appended(t.Context(), "s", 5, lifecycle.AttentionLater)
		a.Settled("s", 4) // another append
		want()
		time.Sleep(broker.AnnounceHold / 2)
		want("x 1 later")
		time.Sleep(broker.AnnounceHold / 2)
		want("y 2 later", "s 5 later")
		time.Sleep(time.Hour)
		want()
	})
}

func TestAnnouncerTriesAgain(t *testing.T) {
	announcing(t, func(a *broker.Announcer, p *published, want func(...string)) {
		p.failWith(errors.New("no engine"))
		a.Appended(t.Context(), "x", 1, lifecycle.AttentionNow)
		a.Appended(t.Context(), "y", 2, lifecycle.AttentionLater)
		time.Sleep(time.Minute)
		want()
		p.failWith(nil)
		time.Sleep(broker.AnnounceHold)
		want("x 1 now", "y 2 later")
	})
}

// Close announces what is held, and what has failed.
func TestAnnouncerCloses(t *testing.T) {
	announcing(t, func(a *broker.Announcer, p *published, want func(...string)) {
		p.failWith(errors.New("no engine"))
		a.Appended(t.Context(), "x", 1, lifecycle.AttentionNow)
		p.failWith(nil)
		a.Appended(t.Context(), "y", 2, lifecycle.AttentionLater)
		a.Appended(t.Context(), "z", 3, lifecycle.AttentionLater)
		a.Settled("z", 3)
		a.Close(t.Context())
		want("x 1 now", "y 2 later")
		a.Appended(t.Context(), "late", 4, lifecycle.AttentionLater)
		time.Sleep(time.Hour)
		want()
	})
}

// What a short handoff appends is held in memory that is used again.
func TestAnnouncerAllocatesNothing(t *testing.T) {
	a := broker.NewAnnouncer(&published{}, nil)
	tickets := make([]string, 1000)
	for i := range tickets {
		tickets[i] = fmt.Sprint(i)
	}
	n := 0
	live := func() {
		a.Appended(t.Context(), tickets[n%len(tickets)], 1, lifecycle.AttentionLater)
		a.Appended(t.Context(), tickets[n%len(tickets)], 2, lifecycle.AttentionNone)
		n++
	}
	for range 10 * len(tickets) {
		live()
	}
	if allocs := testing.AllocsPerRun(1000, live); allocs > 1 {
		t.Errorf("%v allocations", allocs)
	}
	a.Close(t.Context())
}
