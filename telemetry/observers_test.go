package telemetry

import (
	"context"
	"testing"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
	"github.com/agenthandoff/handoff/protocol/record"
)

type counted struct{ appends, conflicts int }

func (c *counted) Appended(context.Context, protocol.State, broker.Head, []protocol.Event) {
	c.appends++
}
func (c *counted) Conflicted(context.Context, string) { c.conflicts++ }

func TestJoin(t *testing.T) {
	if Join() != nil || Join(nil, nil) != nil {
		t.Error("nobody is somebody")
	}
	a, b := &counted{}, &counted{}
	if Join(nil, a) != broker.Observer(a) {
		t.Error("one alone needs no list")
	}
	both := Join(a, nil, b)
	both.Appended(t.Context(), protocol.State{}, broker.Head{}, nil)
	both.Conflicted(t.Context(), "t")
	if *a != (counted{1, 1}) || *b != (counted{1, 1}) {
		t.Errorf("told %v and %v", a, b)
	}
}

var taken = []protocol.Event{&protocol.Accepted{Agent: "coder"}, &protocol.Started{}}

// TestObservingAllocatesNothing: counting an append must not be felt.
func TestObservingAllocatesNothing(t *testing.T) {
	m, ctx := NewMetrics(), t.Context()
	var observer broker.Observer = m
	if n := testing.AllocsPerRun(1_000, func() {
		observer.Appended(ctx, protocol.State{}, broker.Head{}, taken)
		observer.Conflicted(ctx, "t")
	}); n > 0 {
		t.Errorf("an append costs %v allocations", n)
	}
}

// BenchmarkObserver is what counting costs each append: the hook alone, and what a
// supervisor pays besides for an entry that it follows, with its decoding.
func BenchmarkObserver(b *testing.B) {
	b.Run("append", func(b *testing.B) {
		var observer broker.Observer = NewMetrics()
		ctx, before, after := b.Context(), protocol.State{}, broker.Head{}
		b.ReportAllocs()
		for b.Loop() {
			observer.Appended(ctx, before, after, taken)
		}
	})
	body, err := record.Encode(protocol.Record{ID: "i", Events: taken, State: protocol.State{Ticket: "t", Agent: "coder"}})
	if err != nil {
		b.Fatal(err)
	}
	b.Run("follow, state alone", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := record.DecodeState(body, 1); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("follow, counted", func(b *testing.B) {
		s := NewMetrics().Supervision(nowhere, nil)
		seq := uint64(0)
		b.ReportAllocs()
		for b.Loop() {
			seq++
			made, err := record.Decode(body, seq)
			if err != nil {
				b.Fatal(err)
			}
			s.Followed(broker.Entry{Seq: seq}, made)
		}
	})
}

// nowhere is a directory with nobody in it.
func nowhere(context.Context) (*lifecycle.Directory, error) { return &lifecycle.Directory{}, nil }
