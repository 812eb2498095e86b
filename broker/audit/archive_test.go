package audit

import (
	"context"
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
)

// TestArchiveContinues checks that an archive continues after its last file was truncated at any
// byte.
func TestArchiveContinues(t *testing.T) {
	w := newFixture(t)
	dir := t.TempDir()
	w.archive(dir, 0) // of nothing
	w.mixedHandoffs()
	w.archive(dir, 0)
	files, _, err := filesOf(dir)
	w.must(err)
	whole, err := os.ReadFile(files[0])
	w.must(err)
	for size := 0; size < len(whole); size += 1 + len(whole)/97 {
		w.must(os.WriteFile(files[0], whole[:size], 0o600))
		a, err := OpenArchive(dir, 0)
		w.must(err)
		if a.Position() == 0 != (a.file == nil) {
			t.Fatalf("cut to %d it stands at %d", size, a.Position())
		}
		w.must(a.Follow(w.ctx, w.b, FollowConfig{Once: true}))
		w.must(a.Close())
		again, err := os.ReadFile(files[0])
		w.must(err)
		if string(again) != string(whole) {
			t.Fatalf("cut to %d of %d bytes and made whole again it is another", size, len(whole))
		}
	}
	// Later appends are added, in files of any size.
	w.mixedHandoffs()
	w.archive(dir, 2_000)
	w.mixedHandoffs()
	w.archive(dir, 2_000)
	report, err := VerifyFiles(dir, nil)
	w.must(err)
	span, err := w.b.LedgerInfo(w.ctx)
	w.must(err)
	if report.Found != 0 || report.FirstSeq != 1 || report.LastSeq != span.Last || report.Entries != span.Last || report.Handoffs != 15 {
		t.Errorf("%+v", report)
	}
}

func TestArchiveHasOneWriter(t *testing.T) {
	w := newFixture(t)
	dir := t.TempDir()
	a, err := OpenArchive(dir, 0)
	w.must(err)
	if _, err := OpenArchive(dir, 0); !errors.Is(err, ErrInUse) {
		t.Errorf("opened twice: %v", err)
	}
	w.must(a.Close())
	a, err = OpenArchive(dir, 0)
	w.must(err)
	w.must(a.Close())
}

// TestArchiveFollows checks that an archive that follows has every new entry, synced.
func TestArchiveFollows(t *testing.T) {
	w := newFixture(t)
	dir := t.TempDir()
	a, err := OpenArchive(dir, 0)
	w.must(err)
	ctx, stop := context.WithCancel(w.ctx)
	done := make(chan error, 1)
	seen := make(chan uint64, 100)
	go func() {
		done <- a.Follow(ctx, w.b, FollowConfig{Progress: func(seq, _ uint64) { seen <- seq }})
	}()
	w.mixedHandoffs()
	span, err := w.b.LedgerInfo(w.ctx)
	w.must(err)
	for whole := false; !whole; { // the file is what others read
		text := ""
		if files, _, err := filesOf(dir); err == nil {
			raw, err := os.ReadFile(files[0])
			w.must(err)
			text = string(raw)
		}
		whole = strings.Count(text, `,"entry":{"`) == int(span.Last)
		if w.ctx.Err() != nil {
			t.Fatal("it does not come")
		}
	}
	report, err := VerifyFiles(dir, nil) // beside the writer
	w.must(err)
	if report.Found != 0 || report.Entries != span.Last {
		t.Errorf("%+v", report)
	}
	stop()
	w.must(<-done)
	w.must(a.Close())
}

// TestArchiveCopiesBodies checks that large packages and results are copied beside the files.
func TestArchiveCopiesBodies(t *testing.T) {
	w := newFixture(t)
	dir := t.TempDir()
	large := w.mixedHandoffs()[3]
	w.archive(dir, 0)
	body, err := w.b.Package(w.ctx, large)
	w.must(err)
	kept, err := filepath.Glob(filepath.Join(dir, bodiesDir, "*"))
	w.must(err)
	if len(kept) != 1 || filepath.Base(kept[0]) != broker.HashOf(body) {
		t.Fatalf("kept %q", kept)
	}
	for want, tamper := range map[string]func() error{
		"":              func() error { return nil },
		"hash seq 4":    func() error { return os.WriteFile(kept[0], []byte("{}"), 0o600) },
		"missing seq 4": func() error { return os.Remove(kept[0]) },
		"unreadable seq 4": func() error {
			return errors.Join(os.Remove(kept[0]), syscall.Mkfifo(kept[0], 0o600), os.Remove(filepath.Join(dir, lockName)),
				syscall.Mkfifo(filepath.Join(dir, lockName), 0o600)) // which an archive from elsewhere may hold
		},
	} {
		_ = os.Remove(kept[0])
		w.must(os.WriteFile(kept[0], body, 0o600))
		w.must(tamper())
		report, err := VerifyFiles(dir, nil)
		w.must(err)
		got := ""
		for _, p := range report.Problems {
			got += fmt.Sprintf("%s seq %d", p.Kind, p.Seq)
		}
		if got != want {
			t.Errorf("found %+v, want %s", report.Problems, want)
		}
	}
}

// TestArchiveHasRegularFiles checks that a named pipe in place of a file does not block.
func TestArchiveHasRegularFiles(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "audit-1-2026-01-01.jsonl"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := VerifyFiles(dir, nil); err == nil || !strings.HasSuffix(err.Error(), "is no regular file") {
		t.Error(err)
	}
}

// TestArchiveReconnects checks that an archive continues when the engine comes back.
func TestArchiveReconnects(t *testing.T) {
	w := newFixture(t)
	dir := t.TempDir()
	a, err := OpenArchive(dir, 0)
	w.must(err)
	view := w.mem.Connect() // the archive's own link
	defer func() { _ = view.Close() }()
	b := brokertest.Over(w, view)
	w.mixedHandoffs()
	ctx, stop := context.WithCancel(w.ctx)
	done, away, seen := make(chan error, 1), make(chan error, 100), make(chan uint64, 100)
	go func() {
		done <- a.Follow(ctx, b, FollowConfig{Unreachable: func(err error) { away <- err }, Progress: func(seq, last uint64) { seen <- seq }})
	}()
	if seq := <-seen; seq != 15 {
		t.Errorf("archived up to %d", seq)
	}
	for range 2 {
		view.Disconnect()
		if err := <-away; !errors.Is(err, broker.ErrUnreachable) {
			t.Error(err)
		}
		w.mixedHandoffs()
		view.Reconnect()
	}
	for seq := uint64(0); seq != 45; {
		select {
		case seq = <-seen:
		case <-w.ctx.Done():
			t.Fatalf("archived up to %d", seq)
		}
	}
	stop()
	w.must(<-done)
	w.must(a.Close())
	report, err := VerifyFiles(dir, nil)
	w.must(err)
	if report.Found != 0 || report.Entries != 45 {
		t.Errorf("%+v", report)
	}
}

// TestArchiveOfAnotherLedger checks that an archive of another ledger, or one that would get a
// gap, stays as it is.
func TestArchiveOfAnotherLedger(t *testing.T) {
	w := newFixture(t)
	dir := t.TempDir()
	w.mixedHandoffs()
	w.archive(dir, 0)
	files, _, err := filesOf(dir)
	w.must(err)
	before, err := os.ReadFile(files[0])
	w.must(err)
	other := newFixture(t)
	for _, stories := range []int{0, 2} { // shorter, then longer
		for range stories {
			other.mixedHandoffs()
		}
		a, err := OpenArchive(dir, 0)
		w.must(err)
		if err := a.Follow(w.ctx, other.b, FollowConfig{}); !errors.Is(err, broker.ErrLedgerChanged) {
			t.Errorf("%v", err)
		}
		w.must(a.Close())
	}
	after, err := os.ReadFile(files[0])
	w.must(err)
	if string(after) != string(before) {
		t.Error("the archive has changed")
	}
	// A missing file is reported.
	w.mixedHandoffs()
	w.archive(dir, 1_000)
	files, _, err = filesOf(dir)
	w.must(err)
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
	if report.Found != 0 || report.WithoutBeginning == 0 || len(report.Notes) != 2 {
		t.Errorf("%+v", report)
	}
	if _, err := VerifyFiles(filepath.Join(dir, "none"), nil); err == nil {
		t.Error("there is nothing, and it is well")
	}
}

var _ Ledger = (*broker.Broker)(nil)
