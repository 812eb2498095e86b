package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// Ledger is what is read here of a broker.Broker.
type Ledger interface {
	Next(ctx context.Context, ticket string, after uint64) (broker.Entry, error)
	Entries(ctx context.Context, from uint64, fn func(broker.Entry) error) error
	Tail(ctx context.Context, from uint64, fn func(broker.Entry) error) error
	LedgerInfo(ctx context.Context) (broker.LedgerInfo, error)
	Package(ctx context.Context, ticket string) (json.RawMessage, error)
	Blob(ctx context.Context, ref protocol.BlobRef) ([]byte, error)
}

// snapshotsKept is how many packages' snapshots are in memory; a handoff that is
// not among them has its package read again.
const snapshotsKept = 50_000

// Reader makes audit records of appends. It is for one goroutine.
type Reader struct {
	ledger    Ledger
	snapshots recent[protocol.Snapshot]
}

// NewReader returns a Reader of a ledger.
func NewReader(ledger Ledger) *Reader {
	return &Reader{ledger: ledger, snapshots: recent[protocol.Snapshot]{most: snapshotsKept}}
}

// Records are those of an append. What cannot be read is a record that says so.
func (r *Reader) Records(ctx context.Context, e broker.Entry) ([]protocol.AuditRecord, error) {
	if e.Ticket == "" {
		return []protocol.AuditRecord{unreadable(e, nil)}, nil
	}
	change, err := broker.DecodeChange(e)
	if err != nil {
		return []protocol.AuditRecord{unreadable(e, err)}, nil
	}
	snapshot, err := r.snapshot(ctx, e.Ticket, change)
	if err != nil {
		return nil, err
	}
	if snapshot.Result, err = r.result(ctx, e.Ticket, change); err != nil {
		return nil, err
	}
	return recordsOf(e, change, snapshot), nil
}

// recordsOf are the records of an append. They are filed under the ticket that
// it was stored under, whatever its state says.
func recordsOf(e broker.Entry, c protocol.Change, of protocol.Snapshot) []protocol.AuditRecord {
	records := protocol.AuditOf(c, of)
	for i := range records {
		records[i].HandoffID = e.Ticket
	}
	return records
}

// snapshot is that of the handoff's package. One that is lost, or was never a
// package, has the zero snapshot.
func (r *Reader) snapshot(ctx context.Context, ticket string, c protocol.Change) (protocol.Snapshot, error) {
	if snapshot, known := r.snapshots.get(ticket); known {
		return snapshot, nil
	}
	body, err := r.packageOf(ctx, ticket, c)
	if passing(err) {
		return protocol.Snapshot{}, fmt.Errorf("package of %s: %w", ticket, err)
	}
	snapshot, err := protocol.SnapshotOf(body)
	if err != nil {
		snapshot = protocol.Snapshot{}
	}
	r.snapshots.put(ticket, snapshot)
	return snapshot, nil
}

// passing tells whether what could not be read now may be read later: the engine did
// not answer, or does not let us. Any other error is one of what stands there.
func passing(err error) bool {
	for _, known := range []error{broker.ErrUnreachable, broker.ErrNotAllowed, broker.ErrClosed, broker.ErrLedgerChanged, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// result is the snapshot of the result that a change completes its handoff with.
// One that is lost, or was never a result, has the zero snapshot.
func (r *Reader) result(ctx context.Context, ticket string, c protocol.Change) (protocol.ResultSnapshot, error) {
	for _, e := range c.Record.Events {
		var body json.RawMessage
		var err error
		switch e := e.(type) {
		case *protocol.Completed:
			body, err = r.body(ctx, e)
		case *protocol.LateResultUsed:
			body, err = r.parked(ctx, ticket, e.Seq)
		default:
			continue
		}
		switch {
		case passing(err):
			return protocol.ResultSnapshot{}, fmt.Errorf("result of %s: %w", ticket, err)
		case err != nil:
			return protocol.ResultSnapshot{}, nil
		}
		snapshot, err := protocol.ResultSnapshotOf(body)
		if err != nil {
			snapshot = protocol.ResultSnapshot{}
		}
		return snapshot, nil
	}
	return protocol.ResultSnapshot{}, nil
}

// body is what an event keeps of a result, in itself or elsewhere.
func (r *Reader) body(ctx context.Context, e protocol.Event) (json.RawMessage, error) {
	inline, blob := protocol.BodyOf(e)
	if blob != nil {
		return r.ledger.Blob(ctx, *blob)
	}
	return *inline, nil
}

// parked is the late result that an append keeps.
func (r *Reader) parked(ctx context.Context, ticket string, seq uint64) (json.RawMessage, error) {
	e, err := r.ledger.Next(ctx, ticket, seq-1)
	if err != nil {
		return nil, err
	}
	change, err := broker.DecodeChange(e)
	if err != nil || e.Seq != seq {
		return nil, fmt.Errorf("entry %d: %w", seq, broker.ErrNotFound)
	}
	for _, e := range change.Record.Events {
		if late, ok := e.(*protocol.ResultParked); ok {
			return r.body(ctx, late)
		}
	}
	return nil, fmt.Errorf("entry %d has no result: %w", seq, broker.ErrNotFound)
}

func (r *Reader) packageOf(ctx context.Context, ticket string, c protocol.Change) (json.RawMessage, error) {
	submitted := submittedIn(c)
	switch {
	case submitted == nil:
		return r.ledger.Package(ctx, ticket)
	case submitted.Blob != nil:
		return r.ledger.Blob(ctx, *submitted.Blob)
	}
	return submitted.Package, nil
}

func submittedIn(c protocol.Change) *protocol.Submitted {
	for _, e := range c.Record.Events {
		if submitted, ok := e.(*protocol.Submitted); ok {
			return submitted
		}
	}
	return nil
}

// Appends calls fn with every append of a handoff, oldest first, and its
// records. An unknown ticket is a *protocol.Error with CodeNotFound.
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

// recent keeps the values that were put last, at least half of most and no more
// than most.
type recent[V any] struct {
	most     int
	new, old map[string]V
}

func (r *recent[V]) get(key string) (V, bool) {
	if v, ok := r.new[key]; ok {
		return v, true
	}
	v, ok := r.old[key]
	return v, ok
}

func (r *recent[V]) put(key string, v V) {
	if r.new == nil || len(r.new) >= r.most/2 {
		r.new, r.old = make(map[string]V), r.new
	}
	r.new[key] = v
}

func (r *recent[V]) drop(key string) {
	delete(r.new, key)
	delete(r.old, key)
}
