package brokertest

import (
	"errors"
	"iter"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

// TestLoad: what is loaded lies where it was to lie, and what cannot is an error.
func TestLoad(t *testing.T) {
	n := startNode(t, embedded.Config{Fsync: embedded.FsyncInterval})
	ensure(t, n.ClientURL(), jetstream.Topology{})
	j := dial(t, n.ClientURL())
	one, two := protocol.NewTicket(), protocol.NewTicket()
	load := func(entries ...jetstream.LoadEntry) error {
		return j.Load(t.Context(), func(yield func(jetstream.LoadEntry, error) bool) {
			for _, e := range entries {
				e.ID, e.Body = protocol.NewTicket(), []byte("{}")
				if !yield(e, nil) {
					return
				}
			}
		})
	}
	if err := load(jetstream.LoadEntry{Ticket: one, Seq: 1}, jetstream.LoadEntry{Ticket: two, Seq: 2}, jetstream.LoadEntry{Ticket: one, After: 1, Seq: 3}); err != nil {
		t.Fatal(err)
	}
	if last, err := j.Last(t.Context(), one, 0); err != nil || last.Seq != 3 {
		t.Errorf("the last entry is %+v, %v", last, err)
	}
	if err := load(jetstream.LoadEntry{Ticket: one, Seq: 4}); err == nil {
		t.Error("an entry whose compare-and-set fails was loaded")
	}
	if err := load(jetstream.LoadEntry{Ticket: two, After: 2, Seq: 9}); err == nil || !strings.Contains(err.Error(), "not at 9") {
		t.Errorf("an entry that came to lie elsewhere: %v", err)
	}
	broken := errors.New("no more")
	var failing iter.Seq2[jetstream.LoadEntry, error] = func(yield func(jetstream.LoadEntry, error) bool) { yield(jetstream.LoadEntry{}, broken) }
	if err := j.Load(t.Context(), failing); !errors.Is(err, broken) {
		t.Errorf("entries that cannot be made: %v", err)
	}
}
