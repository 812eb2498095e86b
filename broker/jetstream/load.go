package jetstream

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
)

// LoadEntry is an entry of the ledger that is to be.
type LoadEntry struct {
	Ticket string
	After  uint64 // the sequence of the ticket's entry before; 0 for its first
	ID     string // the record's
	Body   []byte // a protocol.Record
	Seq    uint64 // that it will have
}

const (
	// loadAhead is how many entries are under way at a time.
	loadAhead = 4_096
	// loadPatience is how long the engine may take for the last of them.
	loadPatience = time.Minute
)

// Load stores entries one after another without waiting for each: what fills a ledger
// that no other client writes to. Their sequences are known beforehand, because they follow
// the ledger's end without a gap; an entry that turns out to have another one, or whose
// compare-and-set fails, ends it with an error, and what was under way may have been
// stored. No worker is told of offers or timers: a supervisor's next pass makes what open
// handoffs call for.
func (j *Engine) Load(ctx context.Context, entries iter.Seq2[LoadEntry, error]) error {
	js, err := jetstream.New(j.nc, jetstream.WithPublishAsyncMaxPending(loadAhead))
	if err != nil {
		return err
	}
	defer js.CleanupPublisher()
	patience := time.NewTimer(loadPatience)
	defer patience.Stop()
	var under []loading
	settle := func(most int) error {
		patience.Reset(loadPatience)
		for len(under) > most {
			if err := under[0].settle(ctx, patience); err != nil {
				return err
			}
			under = under[1:]
		}
		return nil
	}
	for e, err := range entries {
		if err != nil {
			return err
		}
		msg := nats.NewMsg(ledgerSubject(e.Ticket))
		msg.Data = e.Body
		msg.Header[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(e.After, 10)}
		msg.Header[jetstream.ExpectedStreamHeader] = []string{LedgerStream}
		msg.Header[recordHeader] = []string{e.ID}
		ack, err := js.PublishMsgAsync(msg, jetstream.WithStallWait(loadPatience))
		if err != nil {
			return fmt.Errorf("load %s at %d: %w", e.Ticket, e.Seq, err)
		}
		e.Body = nil // the connection has it
		if under = append(under, loading{ack, e}); len(under) >= loadAhead {
			if err := settle(loadAhead / 2); err != nil {
				return err
			}
		}
	}
	return settle(0)
}

// loading is an entry under way.
type loading struct {
	ack   jetstream.PubAckFuture
	entry LoadEntry
}

func (l loading) settle(ctx context.Context, patience *time.Timer) error {
	select {
	case ack := <-l.ack.Ok():
		if ack.Sequence != l.entry.Seq {
			return fmt.Errorf("entry of %s was stored at %d, not at %d: another client writes to the ledger", l.entry.Ticket, ack.Sequence, l.entry.Seq)
		}
		return nil
	case err := <-l.ack.Err():
		return fmt.Errorf("load %s at %d: %w", l.entry.Ticket, l.entry.Seq, err)
	case <-patience.C:
		return fmt.Errorf("load %s at %d: %w", l.entry.Ticket, l.entry.Seq, broker.ErrUnreachable)
	case <-ctx.Done():
		return ctx.Err()
	}
}
