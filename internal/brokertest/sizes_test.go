package brokertest

import (
	"bytes"
	"strconv"
	"testing"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

// TestHeadsOfAllSizes reads heads and entries from one byte to over what is
// kept inline. With a bound in bytes on its pulls the engine lost 59 of 4,000
// such heads: those that no longer fitted the request under way.
func TestHeadsOfAllSizes(t *testing.T) {
	t.Parallel()
	n := startNode(t, embedded.Config{Prepare: makeStreams, Fsync: embedded.FsyncInterval})
	e, err := jetstream.Dial(t.Context(), jetstream.DialConfig{URL: n.ClientURL()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	const total = 600
	body := bytes.Repeat([]byte("x"), protocol.InlineBytesMax)
	for i := range total {
		if _, err := e.Append(t.Context(), protocol.NewTicket(), 0, strconv.Itoa(i), "", body[:1+i*7919%len(body)]); err != nil {
			t.Fatal(err)
		}
	}
	heads, entries := uint64(0), uint64(0)
	count := func(seen *uint64) func(broker.Entry) error {
		return func(e broker.Entry) error {
			if *seen++; e.Seq != *seen {
				t.Fatalf("sequence %d where %d was due", e.Seq, *seen)
			}
			return nil
		}
	}
	if err := e.Heads(t.Context(), count(&heads)); err != nil || heads != total {
		t.Errorf("%d heads of %d, %v", heads, total, err)
	}
	if err := e.Entries(t.Context(), broker.From(1), count(&entries)); err != nil || entries != total {
		t.Errorf("%d entries of %d, %v", entries, total, err)
	}
}
