package telemetry

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestProcessMetrics checks that worker and index are read at each scrape, and that an index that
// does not answer has no series.
func TestProcessMetrics(t *testing.T) {
	m := NewMetrics()
	worker := WorkerStats{Claimed: 3, Slots: 4, Busy: 1, Ended: map[string]int64{"completed": 2}}
	m.Worker("coder", func() WorkerStats { return worker })
	index, indexErr := IndexStats{Seq: 70, Behind: 30, BehindFor: 1500 * time.Millisecond, Handoffs: 20, FileBytes: 4096, Rebuilds: 1,
		Gates: map[string]GateStats{"approval": {Waiting: 2, Oldest: time.Minute}, "workspace": {}}}, error(nil)
	m.Index(func(context.Context) (IndexStats, error) { return index, indexErr })
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
		"handoff_gate_waiting{gate=approval}": "2", "handoff_gate_oldest_seconds{gate=approval}": "60", "handoff_gate_waiting{gate=workspace}": "0",
	})
	worker.Present, indexErr = true, errors.New("rebuilding")
	is(map[string]string{"handoff_worker_present{agent=coder}": "1", "handoff_index_up": "0", "handoff_index_handoffs": ""})
}
