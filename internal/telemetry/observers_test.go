package telemetry

import (
	"context"
	"testing"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/internal/record"
	"github.com/agenthandoff/handoff/protocol"
)

type countingObserver struct{ appends, conflicts int }

func (c *countingObserver) Appended(context.Context, protocol.State, broker.Head, []protocol.Event) {
	c.appends++
}
func (c *countingObserver) Conflicted(context.Context, string) { c.conflicts++ }

func TestMultiObserver(t *testing.T) {
	if MultiObserver() != nil || MultiObserver(nil, nil) != nil {
		t.Error("no observers make an observer")
	}
	a, b := &countingObserver{}, &countingObserver{}
	if MultiObserver(nil, a) != broker.Observer(a) {
		t.Error("one observer is wrapped")
	}
	both := MultiObserver(a, nil, b)
	both.Appended(t.Context(), protocol.State{}, broker.Head{}, nil)
	both.Conflicted(t.Context(), "t")
	if *a != (countingObserver{1, 1}) || *b != (countingObserver{1, 1}) {
		t.Errorf("the observers counted %v and %v", a, b)
	}
}

var acceptedEvents = []protocol.Event{&protocol.Accepted{Agent: "coder"}, &protocol.Started{}}

// TestObservingAllocatesNothing checks that counting an append allocates nothing.
func TestObservingAllocatesNothing(t *testing.T) {
	m, ctx := NewMetrics(), t.Context()
	var observer broker.Observer = m
	if n := testing.AllocsPerRun(1_000, func() {
		observer.Appended(ctx, protocol.State{}, broker.Head{}, acceptedEvents)
		observer.Conflicted(ctx, "t")
	}); n > 0 {
		t.Errorf("an append costs %v allocations", n)
	}
}

// BenchmarkObserver measures the cost of counting: of an append, and of an entry that a supervisor
// follows, with its decoding.
func BenchmarkObserver(b *testing.B) {
	b.Run("append", func(b *testing.B) {
		var observer broker.Observer = NewMetrics()
		ctx, before, after := b.Context(), protocol.State{}, broker.Head{}
		b.ReportAllocs()
		for b.Loop() {
			observer.Appended(ctx, before, after, acceptedEvents)
		}
	})
	body, err := record.Encode(protocol.Record{ID: "i", Events: acceptedEvents, State: protocol.State{Ticket: "t", Agent: "coder"}})
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
		s := NewMetrics().Supervision(emptyDirectory, nil)
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

// emptyDirectory is a directory without agents.
func emptyDirectory(context.Context) (*lifecycle.Directory, error) {
	return &lifecycle.Directory{}, nil
}
