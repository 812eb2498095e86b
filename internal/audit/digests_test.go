package audit

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/record"
	"github.com/agenthandoff/handoff/protocol"
)

// bodyOf is the reference to a handoff's package.
func (w *fixture) bodyOf(ticket string) protocol.BlobRef {
	w.Helper()
	e, err := w.b.Next(w.ctx, ticket, 0)
	w.must(err)
	change, err := broker.DecodeChange(e)
	w.must(err)
	return bodyRefs(change)[0]
}

func TestVerifyBodies(t *testing.T) {
	w := newFixture(t)
	w.mixedHandoffs()
	replaced, missing := w.bodyOf(w.submit(60_000)), w.bodyOf(w.submit(70_000))
	w.mem.ReplaceBlob(replaced.Digest, bytes.Repeat([]byte("x"), int(replaced.Size)))
	w.mem.ReplaceBlob(missing.Digest, nil)
	report, err := VerifyLedger(w.ctx, w.b, nil)
	w.must(err)
	if got := problemKinds(report); !slices.Equal(got, []string{"hash seq 16", "missing seq 17"}) {
		t.Fatalf("%+v", report.Problems)
	}
	for i, ref := range []protocol.BlobRef{replaced, missing} {
		if !strings.Contains(report.Problems[i].Message, ref.Digest) {
			t.Errorf("%s does not name %s", report.Problems[i].Message, ref.Digest)
		}
	}
	// An export continues past both, and verification reports them there too.
	dir := t.TempDir()
	w.exportDir(dir)
	report, err = VerifyFiles(dir, nil)
	w.must(err)
	if report.Entries != 17 || report.Found != 2 || report.Problems[0].Kind != KindMissing || report.Problems[1].Kind != KindMissing {
		t.Errorf("%+v", report)
	}
}

// TestVerifyPackageInAppend checks that a package in an append must have the digest that the
// append names.
func TestVerifyPackageInAppend(t *testing.T) {
	w := newFixture(t)
	e, err := w.b.Next(w.ctx, w.submit(1), 0)
	w.must(err)
	change, err := broker.DecodeChange(e)
	w.must(err)
	forge := func(tamper func(*protocol.Submitted)) {
		t.Helper()
		own := change.Record
		submitted := *own.Events[0].(*protocol.Submitted)
		tamper(&submitted)
		own.Events = append([]protocol.Event{&submitted}, own.Events[1:]...)
		submitted.Ticket = protocol.NewTicket()
		own.State.Ticket = submitted.Ticket
		body, err := record.Encode(own)
		w.must(err)
		_, err = w.mem.Append(w.ctx, submitted.Ticket, 0, own.ID, "", body)
		w.must(err)
	}
	forge(func(s *protocol.Submitted) { s.Package = json.RawMessage(`{"source":"src"}`) })
	ref, err := w.mem.PutBlob(w.ctx, []byte("{}"))
	w.must(err)
	forge(func(s *protocol.Submitted) { s.Package, s.Blob = nil, &ref })
	report, err := VerifyLedger(w.ctx, w.b, nil)
	w.must(err)
	for i, words := range []string{"the digest of its package is", "refers to the package " + ref.Digest} {
		if p := report.Problems[i*report.Found/2]; p.Kind != KindHash || !strings.Contains(p.Message, words) {
			t.Errorf("%+v, want %s", p, words)
		}
	}
}

// TestVerifyPackageOfAKey checks that the digest of a package with a key ignores created_at, in
// the append and in the object store.
func TestVerifyPackageOfAKey(t *testing.T) {
	w := newFixture(t)
	for i, size := range []int{1, 60_000} {
		prepared, err := w.b.Prepare(w.ctx, protocol.Package{
			Source: "src", Target: protocol.Target{Agent: "a"}, Reason: "r", Key: "k" + strings.Repeat("x", i),
			Task: protocol.Task{Description: strings.Repeat("d", size)},
		})
		w.must(err)
		_, err = w.b.Submit(w.ctx, prepared)
		w.must(err)
	}
	report, err := VerifyLedger(w.ctx, w.b, nil)
	w.must(err)
	if report.Found != 0 {
		t.Errorf("%+v", report.Problems)
	}
	dir := t.TempDir()
	w.exportDir(dir)
	if report, err = VerifyFiles(dir, nil); err != nil || report.Found != 0 {
		t.Errorf("%+v, %v", report.Problems, err)
	}
}

func TestWithoutCreatedAt(t *testing.T) {
	for in, want := range map[string]string{
		`{"a":1,"created_at":"x","b":2}`:     `{"a":1,"b":2}`,
		`{"created_at":"x","b":2}`:           `{"b":2}`,
		`{"a":1,"created_at":"x"}`:           `{"a":1}`,
		`{"created_at":"x"}`:                 `{}`,
		`{"a":{"created_at":"x"}}`:           `{"a":{"created_at":"x"}}`,
		`{"a":1, "created_at" : "x", "b":2}`: `{"a":1, "b":2}`,
		`[1]`:                                `[1]`,
		`{"a":`:                              `{"a":`,
		``:                                   ``,
	} {
		if got := string(withoutCreatedAt([]byte(in))); got != want {
			t.Errorf("%s becomes %s, want %s", in, got, want)
		}
	}
}
