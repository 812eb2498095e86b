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

// An archive goes on where it was, through any cut of its last file.
func TestArchiveGoesOn(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	w.archive(dir, 0) // of nothing
	w.stories()
	w.archive(dir, 0)
	files, _, err := pathsOf(dir)
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
	// What comes later is added, in files of any size.
	w.stories()
	w.archive(dir, 2_000)
	w.stories()
	w.archive(dir, 2_000)
	report, err := VerifyFiles(dir, nil)
	w.must(err)
	span, err := w.b.LedgerInfo(w.ctx)
	w.must(err)
	if report.Found != 0 || report.FirstSeq != 1 || report.LastSeq != span.Last || report.Entries != span.Last || report.Handoffs != 15 {
		t.Errorf("%+v", report)
	}
}

func TestArchiveIsOneWriters(t *testing.T) {
	w := newWorld(t)
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

// What runs on has everything that comes, on the disk.
func TestArchiveFollows(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	a, err := OpenArchive(dir, 0)
	w.must(err)
	ctx, stop := context.WithCancel(w.ctx)
	done := make(chan error, 1)
	seen := make(chan uint64, 100)
	go func() {
		done <- a.Follow(ctx, w.b, FollowConfig{Progress: func(seq, _ uint64) { seen <- seq }})
	}()
	w.stories()
	span, err := w.b.LedgerInfo(w.ctx)
	w.must(err)
	for whole := false; !whole; { // the file is what others read
		text := ""
		if files, _, err := pathsOf(dir); err == nil {
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

// Packages and results that are too large for the ledger lie beside the files.
func TestArchiveKeepsBodies(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	large := w.stories()[3]
	w.archive(dir, 0)
	body, err := w.b.Package(w.ctx, large)
	w.must(err)
	kept, err := filepath.Glob(filepath.Join(dir, bodiesName, "*"))
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

// A named pipe in the place of an archive's file is not waited for.
func TestArchiveHasRegularFiles(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "audit-1-2026-01-01.jsonl"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := VerifyFiles(dir, nil); err == nil || !strings.HasSuffix(err.Error(), "is no regular file") {
		t.Error(err)
	}
}

// An engine that goes away and comes back costs the archive nothing.
func TestArchiveIsPatient(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	a, err := OpenArchive(dir, 0)
	w.must(err)
	view := w.mem.Connect() // the archive's own link
	defer func() { _ = view.Close() }()
	b := brokertest.Over(w, view)
	w.stories()
	ctx, stop := context.WithCancel(w.ctx)
	done, away, seen := make(chan error, 1), make(chan error, 100), make(chan uint64, 100)
	go func() {
		done <- a.Follow(ctx, b, FollowConfig{Away: func(err error) { away <- err }, Progress: func(seq, last uint64) { seen <- seq }})
	}()
	if seq := <-seen; seq != 15 {
		t.Errorf("archived up to %d", seq)
	}
	for range 2 {
		view.Disconnect()
		if err := <-away; !errors.Is(err, broker.ErrUnreachable) {
			t.Error(err)
		}
		w.stories()
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

// An archive that belongs to another ledger, or has a hole, is left as it is.
func TestArchiveOfAnotherLedger(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	w.stories()
	w.archive(dir, 0)
	files, _, err := pathsOf(dir)
	w.must(err)
	before, err := os.ReadFile(files[0])
	w.must(err)
	other := newWorld(t)
	for _, stories := range []int{0, 2} { // shorter, then longer
		for range stories {
			other.stories()
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
	// A part of it that is gone is told of.
	w.stories()
	w.archive(dir, 1_000)
	files, _, err = pathsOf(dir)
	w.must(err)
	w.must(os.Remove(files[1]))
	report, err := VerifyFiles(dir, nil)
	w.must(err)
	if got := found(report); len(got) < 2 || !strings.HasPrefix(got[0], "line line 1") || !slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, "missing") }) {
		t.Errorf("%+v", report)
	}
	// Its oldest may lie elsewhere.
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
