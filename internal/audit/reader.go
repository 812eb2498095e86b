package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// Ledger reads the ledger. broker.Broker implements it.
type Ledger interface {
	Next(ctx context.Context, ticket string, after uint64) (broker.Entry, error)
	Entries(ctx context.Context, from broker.Cursor, fn func(broker.Entry) error) error
	Tail(ctx context.Context, from broker.Cursor, fn func(broker.Entry) error) error
	LedgerInfo(ctx context.Context) (broker.LedgerInfo, error)
	Package(ctx context.Context, ticket string) (json.RawMessage, error)
	Blob(ctx context.Context, ref protocol.BlobRef) ([]byte, error)
}

// cachedSnapshotsMax is how many snapshots of packages a Reader caches. For any other handoff the
// package is read again.
const cachedSnapshotsMax = 50_000

// Reader converts appends to audit records. It is not safe for concurrent use.
type Reader struct {
	ledger    Ledger
	snapshots recentCache[protocol.Snapshot]
}

// NewReader returns a Reader of a ledger.
func NewReader(ledger Ledger) *Reader {
	return &Reader{ledger: ledger, snapshots: recentCache[protocol.Snapshot]{most: cachedSnapshotsMax}}
}

// Records are the audit records of an append. An append that cannot be read has one record with the
// error.
func (r *Reader) Records(ctx context.Context, e broker.Entry) ([]protocol.AuditRecord, error) {
	if e.Ticket == "" {
		return []protocol.AuditRecord{unreadableRecord(e, nil)}, nil
	}
	change, err := broker.DecodeChange(e)
	if err != nil {
		return []protocol.AuditRecord{unreadableRecord(e, err)}, nil
	}
	snapshot, err := r.packageSnapshot(ctx, e.Ticket, change)
	if err != nil {
		return nil, err
	}
	if snapshot.Result, err = r.resultSnapshot(ctx, e.Ticket, change); err != nil {
		return nil, err
	}
	return recordsOf(e, change, snapshot), nil
}

// recordsOf are the records of an append. Their ticket is the one that it was stored under,
// whatever the one in its state.
func recordsOf(e broker.Entry, c protocol.Change, of protocol.Snapshot) []protocol.AuditRecord {
	records := protocol.AuditOf(c, of)
	for i := range records {
		records[i].HandoffID = e.Ticket
	}
	return records
}

// packageSnapshot is the snapshot of a handoff's package; zero if the package is lost or invalid.
func (r *Reader) packageSnapshot(ctx context.Context, ticket string, c protocol.Change) (protocol.Snapshot, error) {
	if snapshot, known := r.snapshots.get(ticket); known {
		return snapshot, nil
	}
	body, err := r.packageBody(ctx, ticket, c)
	if isTransient(err) {
		return protocol.Snapshot{}, fmt.Errorf("package of %s: %w", ticket, err)
	}
	snapshot, _ := protocol.SnapshotOf(body) // zero if it cannot be decoded
	r.snapshots.put(ticket, snapshot)
	return snapshot, nil
}

// isTransient reports whether reading may succeed later: the engine did not answer, or denied
// access. Any other error is about the stored data.
func isTransient(err error) bool {
	for _, known := range []error{broker.ErrUnreachable, broker.ErrNotAllowed, broker.ErrClosed, broker.ErrLedgerChanged, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// resultSnapshot is the snapshot of the result that completes a handoff in a change; zero if the
// result is lost or invalid.
func (r *Reader) resultSnapshot(ctx context.Context, ticket string, c protocol.Change) (protocol.ResultSnapshot, error) {
	for _, e := range c.Record.Events {
		if !protocol.Completes(e.EventType()) {
			continue
		}
		body, err := r.resultBody(ctx, ticket, e)
		switch {
		case isTransient(err):
			return protocol.ResultSnapshot{}, fmt.Errorf("result of %s: %w", ticket, err)
		case err != nil:
			return protocol.ResultSnapshot{}, nil
		}
		snapshot, _ := protocol.ResultSnapshotOf(body) // zero if it cannot be decoded
		return snapshot, nil
	}
	return protocol.ResultSnapshot{}, nil
}

// resultBody is the result of an event that completes a handoff, or the late result that it uses.
func (r *Reader) resultBody(ctx context.Context, ticket string, e protocol.Event) (json.RawMessage, error) {
	used, ok := e.(*protocol.LateResultUsed)
	if !ok {
		return r.body(ctx, e)
	}
	entry, err := r.ledger.Next(ctx, ticket, used.Seq-1)
	if err != nil {
		return nil, err
	}
	change, err := broker.DecodeChange(entry)
	if err != nil {
		return nil, err
	}
	for _, e := range change.Record.Events {
		if late, ok := e.(*protocol.ResultParked); ok && entry.Seq == used.Seq {
			return r.body(ctx, late)
		}
	}
	return nil, fmt.Errorf("entry %d has no result: %w", used.Seq, broker.ErrNotFound)
}

func (r *Reader) packageBody(ctx context.Context, ticket string, c protocol.Change) (json.RawMessage, error) {
	if submitted := submittedEvent(c); submitted != nil {
		return r.body(ctx, submitted)
	}
	return r.ledger.Package(ctx, ticket)
}

// body is the package or result of an event, inline or from the object store.
func (r *Reader) body(ctx context.Context, e protocol.Event) (json.RawMessage, error) {
	inline, blob := protocol.BodyOf(e)
	if blob != nil {
		return r.ledger.Blob(ctx, *blob)
	}
	return *inline, nil
}

func submittedEvent(c protocol.Change) *protocol.Submitted {
	for _, e := range c.Record.Events {
		if submitted, ok := e.(*protocol.Submitted); ok {
			return submitted
		}
	}
	return nil
}

// Appends calls fn with every append of a handoff, oldest first, and its records. An unknown
// ticket is a *protocol.Error with CodeNotFound.
func (r *Reader) Appends(ctx context.Context, ticket string, fn func(broker.Entry, []protocol.AuditRecord) error) error {
	for after := uint64(0); ; {
		e, err := r.ledger.Next(ctx, ticket, after)
		switch {
		case errors.Is(err, broker.ErrNotFound) && after == 0:
			return protocol.Errorf(protocol.CodeNotFound, "ticket", "no handoff has the ticket %s", ticket)
		case errors.Is(err, broker.ErrNotFound):
			return nil
		case err != nil:
			return err
		}
		records, err := r.Records(ctx, e)
		if err != nil {
			return err
		}
		if err := fn(e, records); err != nil {
			return err
		}
		after = e.Seq
	}
}

// recentCache keeps the values that were put last: at least half of most, and most at the most.
type recentCache[V any] struct {
	most     int
	new, old map[string]V
}

func (r *recentCache[V]) get(key string) (V, bool) {
	if v, ok := r.new[key]; ok {
		return v, true
	}
	v, ok := r.old[key]
	return v, ok
}

func (r *recentCache[V]) put(key string, v V) {
	if r.new == nil || len(r.new) >= r.most/2 {
		r.new, r.old = make(map[string]V), r.new
	}
	r.new[key] = v
}

func (r *recentCache[V]) drop(key string) {
	delete(r.new, key)
	delete(r.old, key)
}
