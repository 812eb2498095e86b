package index

import (
	"math/rand/v2"
	"testing"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/tests/mutate"
)

// TestMutatedRecords: an index gets to the end of a ledger whatever stands in it, says of
// the handoffs that are well what is so, and answers every kind of question.
func TestMutatedRecords(t *testing.T) {
	w, ix := memoryWorld(t, 48)
	w.live(20, 60)
	total(t, ix)
	well, victims := w.heads[:10], w.heads[10:]
	var real [][]byte
	if err := w.engine.Entries(t.Context(), broker.From(1), func(e broker.Entry) error {
		real = append(real, e.Body)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(48, 0))
	for n := range 1_500 {
		ticket, after := protocol.NewTicket(), uint64(0)
		if n%2 == 0 {
			ticket = pick(rng, victims).Ticket
			last, err := w.engine.Last(t.Context(), ticket, 0)
			if err != nil {
				t.Fatal(err)
			}
			after = last.Seq
		}
		body := mutate.Record(rng, pick(rng, real))
		if _, err := w.engine.Append(t.Context(), ticket, after, uuid.NewString(), "", body); err != nil {
			t.Fatal(err)
		}
	}
	total(t, ix)
	for _, s := range well {
		a, err := ix.List(t.Context(), ask.ListQuery{Filter: ask.Filter{Ticket: []string{s.Ticket}}})
		if err != nil || len(a.Handoffs) != 1 || a.Handoffs[0].Seq != s.seq || a.Handoffs[0].Phase != s.Phase {
			t.Errorf("%s: %+v, %v", s.Ticket, a.Handoffs, err)
		}
	}
	if _, err := ix.Figures(t.Context(), ask.FiguresQuery{}); err != nil {
		t.Error(err)
	}
	if _, err := ix.Count(t.Context(), ask.CountQuery{By: []ask.By{"agent", "outcome"}}); err != nil {
		t.Error(err)
	}
	if n := rebuilds(t, ix); n != 0 {
		t.Errorf("made again %d times", n)
	}
}
