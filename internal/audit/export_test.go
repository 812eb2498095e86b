package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/filelock"
)

// TestExportContinues checks that each export into a directory has the entries since the one
// before, and that all of them verify together.
func TestExportContinues(t *testing.T) {
	w := newFixture(t)
	dir := t.TempDir()
	if done := w.exportDir(dir); done != (Exported{}) { // of nothing
		t.Errorf("exported %+v of an empty ledger", done)
	}
	w.mixedHandoffs()
	want := Exported{File: "audit-00000000000000000001.jsonl", First: 1, Last: 15}
	if done := w.exportDir(dir); done != want {
		t.Errorf("exported %+v, want %+v", done, want)
	}
	if done := w.exportDir(dir); done != (Exported{Last: 15}) {
		t.Errorf("exported %+v without a new entry", done)
	}
	w.mixedHandoffs()
	w.exportEach(dir, 4)
	w.must(os.WriteFile(filepath.Join(dir, "audit-00000000000000000031.jsonl.part"), []byte("killed"), 0o600))
	w.mixedHandoffs()
	want = Exported{File: "audit-00000000000000000031.jsonl", First: 31, Last: 45}
	if done := w.exportDir(dir); done != want {
		t.Errorf("exported %+v, want %+v", done, want)
	}
	report, err := VerifyFiles(dir, nil)
	w.must(err)
	if report.Found != 0 || report.FirstSeq != 1 || report.LastSeq != 45 || report.Entries != 45 || report.Handoffs != 15 || len(report.Notes) != 0 {
		t.Errorf("%+v", report)
	}
}

// TestExportRefusesADamagedFile checks that a directory whose newest file was truncated at any
// byte is not continued.
func TestExportRefusesADamagedFile(t *testing.T) {
	w := newFixture(t)
	dir := t.TempDir()
	w.mixedHandoffs()
	file := filepath.Join(dir, w.exportDir(dir).File)
	whole, err := os.ReadFile(file)
	w.must(err)
	w.mixedHandoffs()
	for size := 0; size < len(whole); size += 1 + len(whole)/97 {
		w.must(os.WriteFile(file, whole[:size], 0o600))
		if done, err := ExportDir(w.ctx, w.b, dir, nil); err == nil || !strings.Contains(err.Error(), "is damaged") || done.File != "" {
			t.Fatalf("cut to %d: exported %+v, %v", size, done, err)
		}
		if report, err := VerifyFiles(dir, nil); err != nil || report.Found == 0 {
			t.Fatalf("cut to %d and verified: %+v, %v", size, report, err)
		}
	}
	w.must(os.WriteFile(file, whole, 0o600))
	w.exportDir(dir)
	if report, err := VerifyFiles(dir, nil); err != nil || report.Found != 0 || report.Entries != 30 {
		t.Errorf("%+v, %v", report, err)
	}
}

func TestExportDirHasOneWriter(t *testing.T) {
	w := newFixture(t)
	dir := t.TempDir()
	lock, err := filelock.Take(filepath.Join(dir, lockName))
	w.must(err)
	held := (*filelock.HeldError)(nil)
	if _, err := ExportDir(w.ctx, w.b, dir, nil); !errors.As(err, &held) {
		t.Errorf("two export into it: %v", err)
	}
	w.must(lock.Close())
	w.exportDir(dir)
}

// cutOff is a ledger whose tail fails after an entry.
type cutOff struct {
	Ledger
	after uint64
	cut   func() error
}

func (c cutOff) Tail(ctx context.Context, from broker.Cursor, fn func(broker.Entry) error) error {
	return c.Ledger.Tail(ctx, from, func(e broker.Entry) error {
		if e.Seq > c.after {
			if err := c.cut(); err != nil {
				return err
			}
		}
		return fn(e)
	})
}

// TestExportIsCutShort checks that an export that cannot read on, because the engine is gone or ctx
// has ended, has the entries before, and that the next export continues it.
func TestExportIsCutShort(t *testing.T) {
	w := newFixture(t)
	dir := t.TempDir()
	view := w.mem.Connect()
	defer func() { _ = view.Close() }()
	b := brokertest.Over(w, view)
	w.mixedHandoffs()
	ctx, stop := context.WithCancel(w.ctx)
	for _, c := range []struct {
		ctx  context.Context
		cut  func() error
		last uint64
		want error
	}{
		{w.ctx, func() error { view.Disconnect(); return broker.ErrUnreachable }, 5, broker.ErrUnreachable},
		{ctx, func() error { stop(); return ctx.Err() }, 9, context.Canceled},
	} {
		view.Reconnect()
		done, err := ExportDir(c.ctx, cutOff{b, c.last, c.cut}, dir, nil)
		if !errors.Is(err, c.want) || done.File == "" || done.Last != c.last {
			t.Errorf("exported %+v, %v, want up to %d, %v", done, err, c.last, c.want)
		}
		report, err := VerifyFiles(dir, nil)
		w.must(err)
		if report.Found != 0 || report.Entries != c.last {
			t.Errorf("%+v", report)
		}
	}
	w.exportDir(dir)
	report, err := VerifyFiles(dir, nil)
	w.must(err)
	if report.Found != 0 || report.Entries != 15 {
		t.Errorf("%+v", report)
	}
}

// TestExportHasBodies checks that an export has the large packages and results, each once, and that
// one that was changed or removed is reported.
func TestExportHasBodies(t *testing.T) {
	w := newFixture(t)
	large := w.mixedHandoffs()[3]
	body, err := w.b.Package(w.ctx, large)
	w.must(err)
	dir := t.TempDir()
	w.exportDir(dir)
	w.exportEach(dir, 4)
	for _, path := range []string{w.export(large), dir} {
		files, _, err := filesOf(path)
		w.must(err)
		text, err := os.ReadFile(files[0])
		w.must(err)
		lines := strings.SplitAfter(string(text), "\n")
		at := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, `{"event_type":"body"`) })
		var line bodyLine
		w.must(json.Unmarshal([]byte(lines[at]), &line))
		if string(line.bytes()) != string(body) || line.Digest != broker.RefOf(body).Digest || strings.Count(string(text), `"event_type":"body"`) != 1 {
			t.Errorf("the line of the body has %d bytes, of %d", len(line.bytes()), len(body))
		}
		changed, removed := slices.Clone(lines), slices.Delete(slices.Clone(lines), at, at+1)
		changed[at] = strings.Replace(changed[at], "review", "ignore", 1)
		for _, c := range []struct {
			lines []string
			want  string
		}{
			{lines, ""},
			{changed, fmt.Sprintf("hash line %d", at+1)},
			{removed, fmt.Sprintf("missing line %d seq 4", at+1)},
		} {
			w.must(os.WriteFile(files[0], []byte(strings.Join(c.lines, "")), 0o600))
			report, err := VerifyFiles(path, nil)
			w.must(err)
			if got := problemKinds(report); c.want == "" && len(got) > 0 || c.want != "" && !slices.Contains(got, c.want) {
				t.Errorf("found %q, want %q", got, c.want)
			}
		}
	}
}

// TestExportHasRegularFiles checks that a named pipe in place of a file does not block.
func TestExportHasRegularFiles(t *testing.T) {
	w := newFixture(t)
	dir := t.TempDir()
	w.must(syscall.Mkfifo(filepath.Join(dir, "audit-1.jsonl"), 0o600))
	_, verifyErr := VerifyFiles(dir, nil)
	_, exportErr := ExportDir(w.ctx, w.b, dir, nil)
	for _, err := range []error{verifyErr, exportErr} {
		if err == nil || !strings.HasSuffix(err.Error(), "is no regular file") {
			t.Error(err)
		}
	}
}

// TestExportOfAnotherLedger checks that a directory of another ledger, or one that would get a
// gap, stays as it is.
func TestExportOfAnotherLedger(t *testing.T) {
	w := newFixture(t)
	dir := t.TempDir()
	w.mixedHandoffs()
	w.exportDir(dir)
	other := newFixture(t)
	for _, stories := range []int{0, 2} { // shorter, then longer
		for range stories {
			other.mixedHandoffs()
		}
		if done, err := ExportDir(w.ctx, other.b, dir, nil); !errors.Is(err, broker.ErrLedgerChanged) || done.File != "" {
			t.Errorf("exported %+v, %v", done, err)
		}
	}
	// A missing file is reported.
	w.mixedHandoffs()
	w.exportEach(dir, 1)
	files, _, err := filesOf(dir)
	w.must(err)
	if len(files) != 16 {
		t.Errorf("the directory has %q", files)
	}
	w.must(os.Remove(files[1]))
	report, err := VerifyFiles(dir, nil)
	w.must(err)
	if got := problemKinds(report); len(got) < 2 || !strings.HasPrefix(got[0], "line line 1") || !slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, "missing") }) {
		t.Errorf("%+v", report)
	}
	// The oldest files may have been moved.
	for _, f := range files[2 : len(files)-3] {
		w.must(os.Remove(f))
	}
	w.must(os.Remove(files[0]))
	report, err = VerifyFiles(dir, nil)
	w.must(err)
	if report.Found != 0 || report.WithoutBeginning == 0 || len(report.Notes) != 1 {
		t.Errorf("%+v", report)
	}
	if _, err := VerifyFiles(filepath.Join(dir, "none"), nil); err == nil {
		t.Error("there is nothing, and it is well")
	}
}

var _ Ledger = (*broker.Broker)(nil)
