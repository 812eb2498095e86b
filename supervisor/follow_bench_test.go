package supervisor

import (
	"fmt"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// short is a handoff that nothing befalls, as a follower meets it, n times.
func short(n int) []broker.Entry {
	var entries []broker.Entry
	for i := range n {
		for _, says := range []lifecycle.Attention{lifecycle.AttentionLater, lifecycle.AttentionLater, lifecycle.AttentionNone} {
			entries = append(entries, broker.Entry{Ticket: fmt.Sprintf("t%d", i), Seq: uint64(len(entries) + 1), At: time.Now(), Attention: says})
		}
	}
	return entries
}

// asked is a broker that knows the time and is asked for nothing else.
type asked struct{ Broker }

func (asked) Now() time.Time { return time.Now() }

func idle(tb testing.TB) *follower {
	s, err := New(asked{}, nil, Config{})
	if err != nil {
		tb.Fatal(err)
	}
	return newFollower(s)
}

// A handoff that nothing befalls costs a supervisor nothing that it would have to
// ask for: neither the body nor the directory nor the head is read, and beside the
// list of what is held nothing is kept.
func TestShortHandoffAllocatesNothing(t *testing.T) {
	f, done := idle(t), 0
	count := func() { done++ }
	f.order = make([]heldTicket, 0, 1<<16)
	entries := short(1000)
	if n := testing.AllocsPerRun(1, func() {
		for _, e := range entries {
			f.handle(t.Context(), e, count)
		}
	}); n > 10 {
		t.Errorf("%v allocations for 1,000 handoffs", n)
	}
	if done != 2*len(entries) || len(f.held) > 0 { // AllocsPerRun runs it once more
		t.Errorf("%d of %d done, %d held", done, 2*len(entries), len(f.held))
	}
}

// What a writer says is true for a while only: an entry that comes later than that,
// again or for the first time, is for the core.
func TestOldNewsIsNotBelieved(t *testing.T) {
	f := idle(t)
	e := broker.Entry{Ticket: "t", Seq: 1, At: time.Now(), Attention: lifecycle.AttentionLater}
	if !f.applyAttention(e, func() { t.Error("done, and not over") }) {
		t.Error("not believed when it is new")
	}
	e.Seq, e.At = 2, e.At.Add(-lifecycle.AttentionSpan+f.s.cfg.Hold-time.Millisecond)
	if f.applyAttention(e, nil) {
		t.Error("believed when something may become due within the hold")
	}
	e.At, e.Attention = e.At.Add(-time.Hour), lifecycle.AttentionNone
	held := f.held["t"].done
	over := 0
	f.held["t"] = heldEvent{seq: 1, done: func() { over++ }}
	if held == nil || !f.applyAttention(e, func() { over++ }) || over != 2 || len(f.held) > 0 {
		t.Errorf("an end is an end however old: %d done, %d held", over, len(f.held))
	}
}

func BenchmarkTakeShort(b *testing.B) {
	f := idle(b)
	entries := short(1)
	b.ReportAllocs()
	for b.Loop() {
		now := time.Now()
		for _, e := range entries {
			e.At = now
			f.handle(b.Context(), e, func() {})
		}
		if len(f.order) > 10_000 {
			f.order = f.order[:0]
		}
	}
}
