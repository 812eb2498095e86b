package audit

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/embedded"
	handoffjs "github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/internal/record"
	"github.com/agenthandoff/handoff/protocol"
)

// TestScale prints the cost of a large ledger:
//
//	HANDOFF_BENCH=1 HANDOFF_BENCH_HANDOFFS=1000000 go test ./internal/audit -run TestScale -v -timeout 30m
func TestScale(t *testing.T) {
	if os.Getenv("HANDOFF_BENCH") == "" {
		t.Skip("HANDOFF_BENCH is not set")
	}
	handoffs := 100_000
	if n, err := strconv.Atoi(os.Getenv("HANDOFF_BENCH_HANDOFFS")); err == nil {
		handoffs = n
	}
	ctx := t.Context()
	w := &fixture{T: t, ctx: ctx}
	n, err := embedded.Start(ctx, embedded.Config{Dir: t.TempDir(), Fsync: embedded.FsyncInterval})
	w.must(err)
	defer func() { _ = n.Stop() }()
	nc, err := n.Conn()
	w.must(err)
	defer nc.Close()
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(4_000))
	w.must(err)
	w.must(handoffjs.EnsureTopology(ctx, nc, handoffjs.Topology{}))
	engine, err := handoffjs.Open(t.Context(), nc, handoffjs.Config{})
	w.must(err)
	defer func() { _ = engine.Close() }()
	w.b, err = broker.New(engine, broker.Config{})
	w.must(err)
	began := time.Now()
	entries := fill(w, js, handoffs)
	t.Logf("%d handoffs, %d entries written in %v", handoffs, entries, time.Since(began))
	measure := func(what string, do func()) {
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began := time.Now()
		do()
		took := time.Since(began)
		runtime.GC()
		runtime.ReadMemStats(&after)
		t.Logf("%-20s %8v  %7.0f entries/s, heap %+d MiB after it", what, took.Round(time.Millisecond), float64(entries)/took.Seconds(),
			(int64(after.HeapAlloc)-int64(before.HeapAlloc))>>20)
	}
	var reports []Report
	measure("verify the ledger", func() {
		r, err := VerifyLedger(ctx, w.b, nil)
		w.must(err)
		reports = append(reports, r)
	})
	dir := t.TempDir()
	measure("export", func() { w.exportDir(dir) })
	measure("verify the export", func() {
		r, err := VerifyFiles(dir, nil)
		w.must(err)
		reports = append(reports, r)
	})
	for _, r := range reports {
		if r.Found != 0 || int(r.Entries) != entries || r.Handoffs != handoffs {
			t.Errorf("%+v", r)
		}
	}
}

// fill writes handoffs of three entries each, a thousand at a time interleaved.
func fill(w *fixture, js jetstream.JetStream, handoffs int) (entries int) {
	now := time.Now().UTC().Truncate(time.Microsecond)
	words := strings.Repeat("the form is to be filed where it belongs; ", 20)
	seq := uint64(0)
	const together = 1_000
	for first := 0; first < handoffs; first += together {
		group := min(together, handoffs-first)
		states, hashes, last := make([]protocol.State, group), make([]string, group), make([]uint64, group)
		for step := range 3 {
			for i := range group {
				s := states[i]
				meta := protocol.Meta{At: now, By: "bench"}
				var events []protocol.Event
				switch step {
				case 0:
					pkg := fmt.Appendf(nil, `{"version":"1.0","source":"src","target":{"agent":"a"},"reason":"r","task":{"description":%q}}`, words)
					events = []protocol.Event{
						&protocol.Submitted{Meta: meta, Ticket: protocol.NewTicket(), Package: pkg, Policy: protocol.DefaultPolicy(),
							Summary: protocol.Summary{Type: protocol.Sequential, Source: "src", Target: protocol.Target{Agent: "a"}, Priority: protocol.Normal}},
						&protocol.Offered{Meta: meta, Agent: "a", Reason: "submitted"}}
				case 1:
					events = []protocol.Event{&protocol.Accepted{Meta: meta, Offer: s.Offer, Agent: "a", Holder: "h", LeaseMS: 30_000, Attempt: 1}, &protocol.Started{Meta: meta}}
				case 2:
					events = []protocol.Event{&protocol.Completed{Meta: meta, Fence: s.Fence, Status: protocol.Success, Result: []byte(`{"status":"success"}`)}}
				}
				next, err := lifecycle.ApplyAll(s, events)
				w.must(err)
				next.PrevHash = hashes[i]
				body, err := record.Encode(protocol.Record{ID: "id", Events: events, State: next})
				w.must(err)
				seq++
				_, err = js.PublishAsync("handoff.ledger."+next.Ticket, body, jetstream.WithExpectLastSequencePerSubject(last[i]))
				w.must(err)
				next.Bind(seq)
				states[i], hashes[i], last[i] = next, broker.HashOf(body), seq
				entries++
			}
			<-js.PublishAsyncComplete()
		}
	}
	return entries
}
