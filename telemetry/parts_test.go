package telemetry

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestParts: a worker and an index show what they say when they are asked, and
// an index that does not answer is no index of zero handoffs.
func TestParts(t *testing.T) {
	m := NewMetrics()
	worker := WorkerFigures{Claimed: 3, Slots: 4, Busy: 1, Ended: map[string]int64{"completed": 2}}
	m.Worker("coder", func() WorkerFigures { return worker })
	index, away := IndexFigures{Seq: 70, Behind: 30, BehindFor: 1500 * time.Millisecond, Handoffs: 20, FileBytes: 4096, Rebuilds: 1}, error(nil)
	m.Index(func(context.Context) (IndexFigures, error) { return index, away })
	is := func(want map[string]string) {
		t.Helper()
		got := read(t, m.registry)
		for name, value := range want {
			if got[name] != value {
				t.Errorf("%s is %q, want %q", name, got[name], value)
			}
		}
	}
	is(map[string]string{
		"handoff_worker_claims_total{agent=coder}": "3", "handoff_worker_ended_total{agent=coder,outcome=completed}": "2",
		"handoff_worker_slots{agent=coder}": "4", "handoff_worker_busy_slots{agent=coder}": "1", "handoff_worker_present{agent=coder}": "0",
		"handoff_index_up": "1", "handoff_index_seq": "70", "handoff_index_behind": "30", "handoff_index_behind_seconds": "1.5",
		"handoff_index_complete": "0", "handoff_index_handoffs": "20", "handoff_index_file_bytes": "4096", "handoff_index_rebuilds_total": "1",
	})
	worker.Present, away = true, errors.New("it is being made again")
	is(map[string]string{"handoff_worker_present{agent=coder}": "1", "handoff_index_up": "0", "handoff_index_handoffs": ""})
}
