package brokertest

import (
	"context"
	"errors"
	"testing"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

// A ledger that was made anew, has lost its end, or has dropped its beginning
// is not taken for the one that was read.
func TestTailOfAnotherLedger(t *testing.T) {
	k, _, js := newSingleNodeKit(t, embedded.Config{})
	var last uint64
	for range 10 {
		last = k.append(protocol.NewTicket(), 0, "x")
	}
	never := func(e broker.Entry) error { t.Errorf("entry %d", e.Seq); return nil }

	stream, err := js.Stream(k.ctx, jetstream.LedgerStream)
	k.must(err)
	cfg := stream.CachedInfo().Config
	cfg.MaxMsgs = 4
	_, err = js.UpdateStream(k.ctx, cfg)
	k.must(err)
	k.until("the beginning to be gone", func() bool {
		l, err := k.LedgerInfo(k.ctx)
		return err == nil && l.First == last-3 && l.Last == last
	})
	k.wantErr(k.Tail(k.ctx, broker.From(1), never), broker.ErrLedgerChanged)
	enough := errors.New("enough")
	k.wantErr(k.Tail(k.ctx, nil, func(e broker.Entry) error {
		if e.Seq != last-3 {
			t.Errorf("it begins with %d, want %d", e.Seq, last-3)
		}
		return enough
	}), enough)

	before, err := k.LedgerInfo(k.ctx)
	k.must(err)
	ended := tailing(k, k.ctx)
	k.must(js.DeleteStream(k.ctx, jetstream.LedgerStream))
	k.must(jetstream.EnsureTopology(k.ctx, js.Conn(), jetstream.Topology{}))
	if err := receive(k, "the end of the tail", ended); !errors.Is(err, broker.ErrUnreachable) && !errors.Is(err, broker.ErrLedgerChanged) {
		t.Errorf("the tail ended with %v", err)
	}
	after, err := k.LedgerInfo(k.ctx)
	k.must(err)
	if after.Created.Equal(before.Created) || after.Last != 0 {
		t.Errorf("the new ledger was made at %v and ends at %d, the old one at %v", after.Created, after.Last, before.Created)
	}
	k.wantErr(k.Tail(k.ctx, broker.From(before.Last+1), never), broker.ErrLedgerChanged)
}

// A single node forgets consumers when it restarts: a tail ends at once, and
// begins again behind what it had.
func TestTailRestart(t *testing.T) {
	dir := t.TempDir()
	k, n, _ := newSingleNodeKit(t, embedded.Config{Dir: dir, Port: freePort(t)})
	port := portOf(t, n)
	ended := tailing(k, k.ctx)
	k.must(n.Stop())
	k.wantErr(receive(k, "the end of the tail", ended), broker.ErrUnreachable)
	ctx, cancel := context.WithCancel(k.ctx)
	cancel()
	k.wantErr(k.Tail(ctx, broker.From(1), func(broker.Entry) error { return nil }), context.Canceled)
	startNode(t, embedded.Config{Dir: dir, Port: port})
	enough := errors.New("enough")
	k.until("a tail after the restart", func() bool { // the first may end with the news of the connection
		err := k.Tail(k.ctx, broker.From(1), func(broker.Entry) error { return enough })
		if !errors.Is(err, enough) && !errors.Is(err, broker.ErrUnreachable) {
			t.Fatal(err)
		}
		return errors.Is(err, enough)
	})
}
