package brokertest_test

import (
	"context"
	"errors"
	"testing"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/protocol"
)

// recordingObserver is an observer that remembers.
type recordingObserver struct {
	before    []protocol.State
	after     []broker.Head
	events    [][]protocol.Event
	conflicts []string
}

func (s *recordingObserver) Appended(_ context.Context, before protocol.State, after broker.Head, events []protocol.Event) {
	s.before, s.after, s.events = append(s.before, before), append(s.after, after), append(s.events, events)
}

func (s *recordingObserver) Conflicted(_ context.Context, ticket string) {
	s.conflicts = append(s.conflicts, ticket)
}

// TestObserver checks that an observer hears of each stored append, and of each conflict.
func TestObserver(t *testing.T) {
	ctx, watch := t.Context(), &recordingObserver{}
	b, err := broker.New(brokertest.NewMemory(), broker.Config{Observer: watch})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.PutProfile(ctx, protocol.Profile{ID: "reviewer"}); err != nil {
		t.Fatal(err)
	}
	prepared, err := b.Prepare(ctx, protocol.Package{Source: "human", Target: protocol.Target{Agent: "reviewer"},
		Reason: "it is ready", Task: protocol.Task{Description: "review"}})
	if err != nil {
		t.Fatal(err)
	}
	submitted, err := b.Submit(ctx, prepared)
	if err != nil {
		t.Fatal(err)
	}
	if len(watch.after) != 1 || watch.before[0].Ticket != "" || watch.after[0].Seq != submitted.Seq || watch.after[0].State.Offer != submitted.Seq {
		t.Fatalf("the submission was seen as %+v, %+v", watch.before, watch.after)
	}
	if got := watch.events[0][0].EventType(); got != protocol.EventSubmitted {
		t.Errorf("its first event is %s", got)
	}
	if _, err := b.Submit(ctx, prepared); err != nil && !errors.Is(err, broker.ErrConflict) {
		t.Fatal(err)
	}
	if len(watch.conflicts) != 1 || watch.conflicts[0] != submitted.Ticket || len(watch.after) != 1 {
		t.Errorf("the same again was seen as conflicts %v and %d appends", watch.conflicts, len(watch.after))
	}
}
