package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestDoneTask(t *testing.T) {
	const key = "asynq:{default}:"
	for name, c := range map[string]struct {
		args []any
		id   string
		done bool
	}{
		"done":     {[]any{"evalsha", "f00", 5, key + "active", key + "lease", key + "t:00ff", key + "processed:2026-11-22", key + "processed", "00ff"}, "00ff", true},
		"complete": {[]any{"evalsha", "f00", 6, key + "active", key + "lease", key + "completed", key + "t:00ff", key + "processed:2026-11-22", key + "processed"}, "00ff", true},
		"enqueue":  {[]any{"evalsha", "f00", 2, key + "t:00ff", key + "pending", "msg", "00ff", 1, 2}, "", false},
		"dequeue":  {[]any{"evalsha", "f00", 4, key + "pending", key + "paused", key + "active", key + "lease", 1, 2}, "", false},
		"retry":    {[]any{"evalsha", "f00", 6, key + "t:00ff", key + "active", key + "lease", key + "retry", key + "processed:2026-11-22", key + "failed"}, "", false},
		"ping":     {[]any{"ping"}, "", false},
	} {
		if id, done := doneTask(c.args); id != c.id || done != c.done {
			t.Errorf("%s: got %q, %v, want %q, %v", name, id, done, c.id, c.done)
		}
	}
}

func TestParseStat(t *testing.T) {
	got, err := parseStat([]byte("42 (a ) name) S 7 42 42 0 -1 4194560 1 2 3 4 100 20 3 1 20 0 1 0 5 6 7\n"))
	if want := (process{parent: 7, used: 1240 * time.Millisecond}); err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if _, err := parseStat([]byte("42 no brackets")); err == nil {
		t.Error("read what is no line of stat")
	}
}

func TestWithChildren(t *testing.T) {
	table := processTable{1: {0, time.Second}, 2: {1, time.Minute}, 3: {2, time.Hour}, 4: {9, 24 * time.Hour}}
	if got, want := table.withChildren(1), time.Hour+time.Minute+time.Second; got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestReport(t *testing.T) {
	cfg := config{size: 16, open: 10, deferred: 0.25}
	b := newBench(cfg)
	b.next.Store(8)
	for seq := range 7 { // the last is never acknowledged
		r := &b.records[seq]
		r.due = int64(seq+1) * 1000
		r.submitted.Store(r.due + 10)
		r.claimed.Store(r.due + 20)
		r.handled.Store(r.due + 30)
		r.acknowledged.Store(r.due + 1500)
	}
	b.records[7].due = 4000
	got := b.report(2000, 5500)
	// Due in the window: numbers 1 to 4, of which 4 was put off, and 7.
	// Acknowledged in it: 0 to 2.
	if got.Handoffs != 3 || got.Unfinished != 1 {
		t.Errorf("%d handoffs, %d unfinished, want 3 and 1", got.Handoffs, got.Unfinished)
	}
	if at := got.Latency["submit_to_complete"]; at.Count != 3 || at.P50 != 1.5 {
		t.Errorf("submit to complete is %+v, want 3 of 1.5 µs", at)
	}
}

func TestTable(t *testing.T) {
	dir := t.TempDir()
	for name, perSecond := range map[string]string{
		"interval.handoff.1": "3000", "interval.handoff.2": "1000", "interval.handoff.3": "2000",
		"interval.asynq.1": "500", "interval.asynq.2": "1000", "interval.asynq.3": "1000",
		"not a measurement": "1",
	} {
		if err := os.WriteFile(filepath.Join(dir, name+".json"), []byte(`{"per_second":`+perSecond+`}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	if err := printTable(&out, dir); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| handoff | 2000 | 1000 – 3000 | 1.00× |", "| asynq | 1000 | 500 – 1000 | 2.00× |"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}
