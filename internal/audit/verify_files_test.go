package audit

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

func TestExportHasTheWholeTrail(t *testing.T) {
	w := newFixture(t)
	tickets := w.mixedHandoffs()
	path := w.export(tickets...)
	report, err := VerifyFiles(path, nil)
	w.must(err)
	if report.Found != 0 || report.Handoffs != len(tickets) || report.Entries != 15 || len(report.Notes) != 0 {
		t.Errorf("%+v", report)
	}
	// Every line is an audit record of document 1; every append is there byte
	// for byte; each handoff has two records at least, but for the open one.
	perHandoff := map[string][]protocol.AuditType{}
	text, err := os.ReadFile(path)
	w.must(err)
	for line := range bytes.Lines(text) {
		var l recordLine
		w.must(json.Unmarshal(line, &l))
		if l.EventType == endEventType || l.EventType == bodyEventType {
			continue
		}
		perHandoff[l.HandoffID] = append(perHandoff[l.HandoffID], l.EventType)
		variables, artifacts := map[string]json.RawMessage{"branch": json.RawMessage(`"main"`)}, 0
		if l.EventType == protocol.AuditCompleted { // the result's
			variables, artifacts = map[string]json.RawMessage{"merged": json.RawMessage("true")}, 2
		}
		if l.ContextSnapshot.VariablesHash != protocol.VariablesHash(variables) || l.ContextSnapshot.ArtifactCount != artifacts || l.DecisionRationale != "b knows this best" {
			t.Errorf("%+v", l)
		}
		if l.Entry == nil {
			continue
		}
		stored, err := w.b.Next(w.ctx, l.HandoffID, l.Seq-1)
		w.must(err)
		if e := l.entry(); !bytes.Equal(e.Body, stored.Body) || broker.HashOf(e.Body) != l.Hash || !e.At.Equal(stored.At) {
			t.Errorf("entry %d is not as it was stored", l.Seq)
		}
	}
	want := [][]protocol.AuditType{
		{"initiated", "accepted", "noted", "completed"}, {"initiated", "rejected", "noted", "accepted", "completed"},
		{"initiated", "rejected", "cancelled"}, {"initiated", "accepted", "completed"}, {"initiated"},
	}
	for i, ticket := range tickets {
		if !slices.Equal(perHandoff[ticket], want[i]) {
			t.Errorf("handoff %d has the records %v, want %v", i, perHandoff[ticket], want[i])
		}
	}
}

// TestTamperedExport checks where changes to a file are reported.
func TestTamperedExport(t *testing.T) {
	w := newFixture(t)
	path := w.export(w.mixedHandoffs()...)
	text, err := os.ReadFile(path)
	w.must(err)
	lines := strings.SplitAfter(string(text), "\n")
	lines = lines[:len(lines)-1]
	if len(lines) != 18 {
		t.Fatalf("%d lines:\n%s", len(lines), text)
	}
	for _, c := range []struct {
		name   string
		tamper func(lines []string) []string
		want   []string
	}{
		{"nothing", func(l []string) []string { return l }, nil},
		{"a changed byte of a body", func(l []string) []string {
			l[3] = strings.Replace(l[3], `\"tokens\":7`, `\"tokens\":8`, 1)
			return l
		}, []string{"hash line 4 seq 12", "replay line 4 seq 12", "line line 5"}},
		{"a changed record", func(l []string) []string {
			l[5] = strings.Replace(l[5], "full", "lazy", 1)
			return l
		}, []string{"hash line 6 seq 7", "line line 7"}},
		{"a changed rationale", func(l []string) []string {
			l[5] = strings.Replace(l[5], "knows", "likes", 1)
			return l
		}, []string{"line line 7"}},
		{"a removed line", func(l []string) []string { return slices.Delete(l, 1, 2) },
			[]string{"line line 2", "chain line 2 seq 11", "missing line 17"}},
		{"the last append of a handoff removed", func(l []string) []string { return slices.Delete(l, 3, 4) },
			[]string{"line line 4", "missing line 17"}},
		{"swapped lines", func(l []string) []string { l[1], l[2] = l[2], l[1]; return l },
			[]string{"line line 2", "chain line 2 seq 11", "line line 3", "chain line 3 seq 6", "line line 4", "chain line 4 seq 12"}},
		{"truncated between lines", func(l []string) []string { return l[:9] }, []string{"truncated line 9"}},
		{"truncated within a line", func(l []string) []string { l[9] = l[9][:40]; return l[:10] }, []string{"truncated line 10"}},
		{"a line that is none", func(l []string) []string { return slices.Insert(l, 2, "what\n") },
			[]string{"unreadable line 3", "line line 4", "missing line 19"}},
		{"more behind the end", func(l []string) []string { return append(l, l[0]) },
			[]string{"line line 19", "line line 19", "chain line 19 seq 1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tampered := filepath.Join(t.TempDir(), "x.jsonl")
			w.must(os.WriteFile(tampered, []byte(strings.Join(c.tamper(slices.Clone(lines)), "")), 0o600))
			report, err := VerifyFiles(tampered, nil)
			w.must(err)
			if got := problemKinds(report); !slices.Equal(got, c.want) || report.Found != len(c.want) {
				t.Errorf("found %q, want %q\n%+v", got, c.want, report.Problems)
			}
			for _, p := range report.Problems {
				if p.File != tampered || p.Message == "" {
					t.Errorf("%+v", p)
				}
			}
		})
	}
}

// TestAnyByteOfAnExport checks that a change of any byte is found.
func TestAnyByteOfAnExport(t *testing.T) {
	w := newFixture(t)
	path := w.export(w.mixedHandoffs()[:3]...)
	text, err := os.ReadFile(path)
	w.must(err)
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		at, with := r.IntN(len(text)), byte(r.IntN(256))
		if with|0x20 == text[at]|0x20 { // a field's name may be written in capitals
			continue
		}
		changed := bytes.Clone(text)
		changed[at] = with
		w.must(os.WriteFile(path, changed, 0o600))
		report, err := VerifyFiles(path, nil)
		w.must(err)
		if report.Found == 0 {
			t.Fatalf("seed %d: byte %d of %d is %q instead of %q, and all is well: …%s…", seed, at, len(text), with, text[at], changed[max(0, at-40):min(len(text), at+40)])
		}
	}
}

// TestTooLongLine checks that a line longer than any of an export ends the reading of its file.
func TestTooLongLine(t *testing.T) {
	w := newFixture(t)
	path := w.export(w.submit(1))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	w.must(err)
	w.must(f.Truncate(lineBytesMax + 1<<20))
	w.must(f.Close())
	report, err := VerifyFiles(path, nil)
	w.must(err)
	if got := problemKinds(report); !slices.Equal(got, []string{"unreadable line 3"}) {
		t.Errorf("found %+v", report.Problems)
	}
}

// TestUncachedStates checks that states that are no longer cached are read again from files.
func TestUncachedStates(t *testing.T) {
	w := newFixture(t)
	dir := t.TempDir()
	w.mixedHandoffs()
	w.exportEach(dir, 1)
	files, _, err := filesOf(dir)
	w.must(err)
	if len(files) != 15 {
		t.Errorf("%d files", len(files))
	}
	v, err := newFileVerifier(dir, nil, nil)
	w.must(err)
	v.states.most = 0
	report, err := v.verify()
	w.must(err)
	if report.Found != 0 || report.Entries != 15 {
		t.Errorf("%+v", report)
	}
}
