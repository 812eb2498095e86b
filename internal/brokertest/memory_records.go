package brokertest

import (
	"bytes"
	"context"
	"fmt"
	"maps"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// fleetRecord is a record and its revision; the body is nil once it is removed.
type fleetRecord struct {
	body []byte
	rev  uint64
}

// Record implements broker.Engine.
func (m *Memory) Record(ctx context.Context, key broker.RecordKey) ([]byte, uint64, error) {
	if err := m.checkRecord(ctx, key); err != nil {
		return nil, 0, err
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	r := m.s.directory.records[key]
	return bytes.Clone(r.body), r.rev, nil
}

// PutRecord implements broker.Engine.
func (m *Memory) PutRecord(ctx context.Context, key broker.RecordKey, body []byte, rev uint64) (uint64, error) {
	if err := m.checkRecord(ctx, key); err != nil {
		return 0, err
	}
	if len(body) > broker.RecordBytesMax {
		return 0, protocol.Errorf(protocol.CodeTooLarge, string(key.Kind), "%s", protocol.OverSize(len(body), broker.RecordBytesMax))
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	if m.s.directory.records[key].rev != rev {
		return 0, fmt.Errorf("put %s %s after %d: %w", key.Kind, key.Name, rev, broker.ErrConflict)
	}
	return m.s.directory.putRecord(key, bytes.Clone(body)), nil
}

// RemoveRecord implements broker.Engine.
func (m *Memory) RemoveRecord(ctx context.Context, key broker.RecordKey) error {
	if err := m.checkRecord(ctx, key); err != nil {
		return err
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	m.s.directory.putRecord(key, nil)
	return nil
}

func (m *Memory) checkRecord(ctx context.Context, key broker.RecordKey) error {
	if err := m.checkUsable(ctx); err != nil {
		return fmt.Errorf("%s %s: %w", key.Kind, key.Name, err)
	}
	return protocol.CheckID("name", key.Name)
}

// putRecord wants the store's lock held.
func (d *directory) putRecord(key broker.RecordKey, body []byte) uint64 {
	next := fleetRecord{body, d.records[key].rev + 1}
	d.records[key] = next
	switch key.Kind {
	case broker.ScheduleRecord:
		d.schedules = recordsWith(d.schedules, key.Name, body, broker.ScheduleIn)
	case broker.RuleRecord:
		d.rules = recordsWith(d.rules, key.Name, body, broker.RuleIn)
	default:
		return next.rev
	}
	d.revision++
	return next.rev
}

func recordsWith[R any](all map[string]R, name string, body []byte, read func(string, []byte) (R, error)) map[string]R {
	next := maps.Clone(all)
	delete(next, name)
	if record, err := read(name, body); err == nil {
		if next == nil {
			next = map[string]R{}
		}
		next[name] = record
	}
	return next
}
