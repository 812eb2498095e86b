package audit

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/embedded"
	handoffjs "github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/record"
	"github.com/agenthandoff/handoff/protocol"
)

func TestVerifyLedger(t *testing.T) {
	w := newFixture(t)
	report, err := VerifyLedger(w.ctx, w.b, nil)
	w.must(err)
	if report.Found != 0 || report.Entries != 0 {
		t.Errorf("an empty ledger: %+v", report)
	}
	w.mixedHandoffs()
	report, err = VerifyLedger(w.ctx, w.b, nil)
	w.must(err)
	if report.Found != 0 || report.Entries != 15 || report.Handoffs != 5 || len(report.Notes) != 0 {
		t.Errorf("%+v", report)
	}
}

// forged is an append that was written into the ledger without Handoff.
func (w *fixture) forged(ticket string, tamper func(r *protocol.Record)) {
	w.Helper()
	head, err := w.b.Head(w.ctx, ticket, 0)
	w.must(err)
	state := head.State
	state.PrevHash = head.Hash
	own := protocol.Record{ID: "forged", State: state, Events: []protocol.Event{
		&protocol.Completed{Meta: protocol.Meta{At: state.UpdatedAt, By: "mallory"}, Fence: state.Fence, Status: protocol.Success}}}
	tamper(&own)
	body, err := record.Encode(own)
	w.must(err)
	_, err = w.mem.Append(w.ctx, ticket, head.Seq, own.ID, "", body)
	w.must(err)
}

func TestForgedAppend(t *testing.T) {
	for _, c := range []struct {
		name   string
		tamper func(r *protocol.Record)
		want   string
		words  string
	}{
		{"events that are not legal", func(r *protocol.Record) {}, "replay seq 16", "not legal"},
		{"a state that does not follow", func(r *protocol.Record) {
			r.Events = []protocol.Event{&protocol.Stuck{Meta: protocol.Meta{At: r.State.UpdatedAt}, Reason: "x"}}
			r.State.StuckReason, r.State.Source, r.State.Usage = "x", "mallory", &protocol.Used{Usage: protocol.Usage{Tokens: 9}}
		}, "replay seq 16", "source, usage"},
		{"another append before it", func(r *protocol.Record) { r.State.PrevHash = strings.Repeat("0", 64) }, "chain seq 16", "prev_hash is 0000000000000000"},
		{"none before it", func(r *protocol.Record) { r.State.PrevHash = "" }, "chain seq 16", "prev_hash is none"},
		{"another's ticket", func(r *protocol.Record) {
			r.State.Ticket = protocol.NewTicket()
			r.Events = []protocol.Event{&protocol.Stuck{Meta: protocol.Meta{At: r.State.UpdatedAt}, Reason: "x"}}
			r.State.StuckReason = "x"
		}, "chain seq 16", "is stored under one ticket"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newFixture(t)
			w.forged(w.mixedHandoffs()[4], c.tamper)
			report, err := VerifyLedger(w.ctx, w.b, nil)
			w.must(err)
			if got := problemKinds(report); len(got) == 0 || got[0] != c.want || !strings.Contains(report.Problems[0].Message, c.words) {
				t.Errorf("found %+v, want %s: %s", report.Problems, c.want, c.words)
			}
		})
	}
	// Handoffs that do not begin with a submission, and bytes that cannot be decoded.
	w := newFixture(t)
	began := w.submit(1)
	for _, r := range []protocol.Record{
		{ID: "1", State: protocol.State{Ticket: "x", PackageSeq: 9}, Events: []protocol.Event{&protocol.Stuck{}}},
		{ID: "2", State: protocol.State{PackageSeq: 1, PrevHash: strings.Repeat("0", 64)}, Events: []protocol.Event{&protocol.Stuck{}}},
	} {
		ticket := protocol.NewTicket()
		r.State.Ticket = ticket
		body, err := record.Encode(r)
		w.must(err)
		_, err = w.mem.Append(w.ctx, ticket, 0, r.ID, "", body)
		w.must(err)
	}
	_, err := w.mem.Append(w.ctx, protocol.NewTicket(), 0, "3", "", []byte("\xff\x00 what"))
	w.must(err)
	w.accept(began)
	want := []string{"chain seq 2", "missing seq 3", "unreadable seq 4"}
	report, err := VerifyLedger(w.ctx, w.b, nil)
	w.must(err)
	if got := problemKinds(report); !slices.Equal(got, want) {
		t.Errorf("found %+v, want %q", report.Problems, want)
	}
	// An export has them too, and its verification reports the same.
	dir := t.TempDir()
	w.exportDir(dir)
	report, err = VerifyFiles(dir, nil)
	w.must(err)
	if got := problemKinds(report); len(got) != 3 || report.Entries != 5 {
		t.Errorf("found %+v", report)
	}
	for i, p := range report.Problems {
		if string(p.Kind) != strings.Fields(want[i])[0] {
			t.Errorf("found %+v, want %s", p, want[i])
		}
	}
}

// TestVerifyLedgerOfJetStream checks foreign messages and missing entries, in the middle and at
// the beginning, on NATS.
func TestVerifyLedgerOfJetStream(t *testing.T) {
	w := newFixture(t)
	w.mixedHandoffs()
	var bodies []broker.Entry
	w.must(w.b.Entries(w.ctx, nil, func(e broker.Entry) error {
		e.Body = bytes.Clone(e.Body)
		bodies = append(bodies, e)
		return nil
	}))
	n, err := embedded.Start(w.ctx, embedded.Config{Dir: t.TempDir(), Fsync: embedded.FsyncInterval})
	w.must(err)
	defer func() { _ = n.Stop() }()
	nc, err := n.Conn()
	w.must(err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	w.must(err)
	w.must(handoffjs.EnsureTopology(w.ctx, nc, handoffjs.Topology{}))
	w.must(js.DeleteStream(w.ctx, handoffjs.LedgerStream))
	// A stream that allows deletion, unlike the ledger of Handoff.
	stream, err := js.CreateStream(w.ctx, jetstream.StreamConfig{Name: handoffjs.LedgerStream, Subjects: []string{"handoff.ledger.>"}, AllowDirect: true})
	w.must(err)
	engine, err := handoffjs.Dial(w.ctx, handoffjs.DialConfig{URL: n.ClientURL(), Name: t.Name()})
	w.must(err)
	defer func() { _ = engine.Close() }()
	real := brokertest.Over(w, engine)
	for i, e := range bodies {
		change, err := broker.DecodeChange(e)
		w.must(err)
		for _, ref := range bodyRefs(change) {
			body, err := w.b.Blob(w.ctx, ref)
			w.must(err)
			_, err = engine.PutBlob(w.ctx, body)
			w.must(err)
		}
		seq, err := engine.Append(w.ctx, e.Ticket, lastSequence(bodies[:i], e.Ticket), "id", "", e.Body)
		w.must(err)
		if seq != e.Seq {
			t.Fatalf("entry %d became %d", e.Seq, seq)
		}
	}
	verify := func(want ...string) {
		t.Helper()
		report, err := VerifyLedger(w.ctx, real, nil)
		w.must(err)
		if got := problemKinds(report); !slices.Equal(got, want) {
			t.Errorf("found %+v, want %q", report, want)
		}
	}
	verify()
	kept := filepath.Join(t.TempDir(), "kept")
	for last := range uint64(16) {
		_, err = ExportDir(w.ctx, shorter{real, last}, kept, nil)
		w.must(err)
	}
	against := func(compared int, want ...string) {
		t.Helper()
		report, err := VerifyAgainst(w.ctx, kept, real, nil)
		w.must(err)
		got := []string{}
		for _, p := range report.Problems {
			got = append(got, fmt.Sprintf("%s seq %d", p.Kind, p.Seq))
		}
		if !slices.Equal(got, append([]string{}, want...)) || report.Compared != compared {
			t.Errorf("found %+v, want %q of %d", report, want, compared)
		}
	}
	against(15)
	// A second verification reports the same.
	_, err = js.Publish(w.ctx, "handoff.ledger."+bodies[14].Ticket, bodies[14].Body)
	w.must(err)
	verify("chain seq 16")
	against(15) // it came later
	_, err = js.Publish(w.ctx, "handoff.ledger.not.one", []byte("x"))
	w.must(err)
	verify("chain seq 16", "unreadable seq 17")
	w.must(stream.DeleteMsg(w.ctx, 7)) // the refusal of the second handoff
	verify("chain seq 8", "chain seq 16", "missing seq 7", "unreadable seq 17")
	against(15, "missing seq 7")
	if done, err := ExportDir(w.ctx, real, t.TempDir(), nil); !errors.Is(err, broker.ErrLedgerChanged) || done.File == "" || done.Last != 6 {
		t.Errorf("exported %+v: %v", done, err)
	}
	w.must(stream.DeleteMsg(w.ctx, 1))
	verify("chain seq 8", "chain seq 16", "missing seq 1", "missing seq 7", "unreadable seq 17")
	against(14, "missing seq 7") // the first is as if it was dropped
	// The same handoffs in a rewritten ledger, and a ledger that has lost its end.
	w.must(js.DeleteStream(w.ctx, handoffjs.LedgerStream))
	stream, err = js.CreateStream(w.ctx, jetstream.StreamConfig{Name: handoffjs.LedgerStream, Subjects: []string{"handoff.ledger.>"}, AllowDirect: true})
	w.must(err)
	for _, e := range bodies[:13] {
		body := e.Body
		if e.Seq == 12 {
			body = bytes.Replace(body, []byte(`"tokens":7`), []byte(`"tokens":9`), 2)
		}
		_, err = js.Publish(w.ctx, "handoff.ledger."+e.Ticket, body)
		w.must(err)
	}
	against(15, "hash seq 12", "missing seq 14", "missing seq 15")
	w.must(stream.DeleteMsg(w.ctx, 1))
	// The records of a handoff that has lost its first appends.
	w.must(NewReader(real).Appends(w.ctx, bodies[0].Ticket, func(_ broker.Entry, records []protocol.AuditRecord) error {
		for _, r := range records {
			if (r.ContextSnapshot.VariablesHash != "") != (r.EventType == protocol.AuditCompleted) || r.FromAgent != "src" {
				t.Errorf("%+v", r)
			}
		}
		return nil
	}))
}

// lastSequence is the sequence of a handoff's last entry.
func lastSequence(entries []broker.Entry, ticket string) uint64 {
	last := uint64(0)
	for _, e := range entries {
		if e.Ticket == ticket {
			last = e.Seq
		}
	}
	return last
}
