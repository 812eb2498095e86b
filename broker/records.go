package broker

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// records are the records of one kind, each with a body of its own: the package of a schedule, or
// the template of a rule. They are changed by compare-and-set.
type records[R any] struct {
	b          *Broker
	kind, body RecordKind
	largest    string // its field that may be too large
	bytesMax   int    // of a record
	most       int    // records
	decode     func(name string, body []byte) (R, error)
	count      func(*lifecycle.Directory) int
}

// none is the error for a record that does not exist.
func (c records[R]) none(name string) error {
	return protocol.Errorf(protocol.CodeNotFound, "name", "no %s is called %s", c.kind, protocol.CutText(name, 64))
}

// Get reads a record from the leader, and its revision. If there is none, the error has
// CodeNotFound, and the revision is the one to create it after.
func (c records[R]) Get(ctx context.Context, name string) (r R, rev uint64, err error) {
	body, rev, err := c.b.engine.Record(ctx, RecordKey{c.kind, name})
	switch {
	case err != nil:
	case body == nil:
		err = c.none(name)
	default:
		if r, err = c.decode(name, body); err != nil {
			err = protocol.Errorf(protocol.CodeUnreadable, "name", "the record of the %s %s: %v", c.kind, name, err)
		}
	}
	return r, rev, err
}

// put replaces a record; ErrConflict.
func (c records[R]) put(ctx context.Context, name string, r R, rev uint64) error {
	body, err := json.Marshal(r)
	if err == nil && len(body) > c.bytesMax {
		err = protocol.Errorf(protocol.CodeTooLarge, c.largest, "makes a record of %s", protocol.OverSize(len(body), c.bytesMax))
	}
	if err == nil {
		_, err = c.b.engine.PutRecord(ctx, RecordKey{c.kind, name}, body, rev)
	}
	return err
}

// Change changes a record, again if another change came first. change reports whether there is
// anything to write. It gets an instant of whole milliseconds.
func (c records[R]) Change(ctx context.Context, name string, change func(R, time.Time) (R, bool)) (R, error) {
	return changeRecord(ctx, name, c.Get, c.put, func(r R) (R, bool) {
		return change(r, c.b.Now().UTC().Truncate(time.Millisecond))
	})
}

// replace stores the body of a record, and the record that next makes of the one before, if that
// exists and is readable. It refuses another record if there are most.
func (c records[R]) replace(ctx context.Context, name string, body []byte, next func(before R, exists bool) R) (R, error) {
	exists := false
	return changeRecord(ctx, name, func(ctx context.Context, name string) (R, uint64, error) {
		before, rev, err := c.Get(ctx, name)
		exists = err == nil
		if errors.Is(err, &protocol.Error{Code: protocol.CodeNotFound}) || errors.Is(err, &protocol.Error{Code: protocol.CodeUnreadable}) {
			err = c.checkRoom(ctx)
		}
		return before, rev, err
	}, func(ctx context.Context, name string, r R, rev uint64) error {
		key := RecordKey{c.body, name}
		_, bodyRev, err := c.b.engine.Record(ctx, key)
		if err == nil {
			_, err = c.b.engine.PutRecord(ctx, key, body, bodyRev)
		}
		if err == nil {
			err = c.put(ctx, name, r, rev)
		}
		return err
	}, func(before R) (R, bool) { return next(before, exists), true })
}

func (c records[R]) checkRoom(ctx context.Context) error {
	d, err := c.b.Directory(ctx)
	if err == nil && c.count(d) >= c.most {
		return protocol.Errorf(protocol.CodeLimitExceeded, "name", "there are %d %ss, at most %d are allowed; remove one", c.count(d), c.kind, c.most)
	}
	return err
}

// Package reads the body of a record.
func (c records[R]) Package(ctx context.Context, name string) (json.RawMessage, error) {
	body, _, err := c.b.engine.Record(ctx, RecordKey{c.body, name})
	if err == nil && body == nil {
		err = c.none(name)
	}
	return body, err
}

// Remove removes a record. Its handoffs continue.
func (c records[R]) Remove(ctx context.Context, name string) (R, error) {
	r, _, err := c.Get(ctx, name)
	if err != nil && !errors.Is(err, &protocol.Error{Code: protocol.CodeUnreadable}) {
		return r, err
	}
	if err := c.b.engine.RemoveRecord(ctx, RecordKey{c.kind, name}); err != nil {
		return r, err
	}
	return r, c.b.engine.RemoveRecord(ctx, RecordKey{c.body, name})
}

// changeRecord reads a record, changes it and writes it, again if another change came first. change
// reports whether there is anything to write.
func changeRecord[R any](ctx context.Context, name string, get func(context.Context, string) (R, uint64, error),
	put func(context.Context, string, R, uint64) error, change func(R) (R, bool),
) (R, error) {
	for try := 0; ; try++ {
		r, rev, err := get(ctx, name)
		if err != nil {
			return r, err
		}
		next, changed := change(r)
		if !changed {
			return r, nil
		}
		if err = put(ctx, name, next, rev); !errors.Is(err, ErrConflict) {
			return next, err
		}
		if err := pauseAfterConflict(ctx, try, name); err != nil {
			return r, err
		}
	}
}
