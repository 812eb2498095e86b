package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// fixture is a broker over an engine in memory.
type fixture struct {
	*testing.T
	ctx context.Context
	b   *broker.Broker
	mem *brokertest.Memory
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	mem := brokertest.NewMemory()
	t.Cleanup(func() { _ = mem.Close() })
	w := &fixture{T: t, ctx: ctx, b: brokertest.Over(t, mem), mem: mem}
	brokertest.Register(t, w.b, "a", "b")
	return w
}

func (w *fixture) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *fixture) submit(size int) string {
	w.Helper()
	return brokertest.Submit(w, w.b, protocol.Package{Source: "src", Target: protocol.Target{Agent: "a"}, Reason: "the <change> is ready",
		Task:    protocol.Task{ID: "task-1", Description: strings.Repeat("review ", size)},
		Context: protocol.Context{Variables: map[string]json.RawMessage{"branch": json.RawMessage(`"main"`)}},
		Audit:   protocol.Audit{DecisionRationale: "b knows this best", RiskLevel: protocol.RiskLow}}).Ticket
}

// appendEvents appends events to a handoff.
func (w *fixture) appendEvents(ticket string, events func(h broker.Head, meta protocol.Meta) []protocol.Event) {
	w.Helper()
	_, _, err := brokertest.Update(w.ctx, w.b, ticket, func(h broker.Head, q lifecycle.Query) (lifecycle.Step, error) {
		return lifecycle.StepOf(h.State, events(h, protocol.Meta{At: q.Now, By: "w1"})...)
	})
	w.must(err)
}

func (w *fixture) accept(ticket string) {
	w.Helper()
	w.appendEvents(ticket, func(h broker.Head, meta protocol.Meta) []protocol.Event {
		return []protocol.Event{
			&protocol.Accepted{Meta: meta, Offer: h.State.Offer, Agent: h.State.Agent, Holder: "w1", LeaseMS: 30_000, Attempt: h.State.Attempt + 1},
			&protocol.Started{Meta: meta},
		}
	})
}

// resultJSON is the result of completed handoffs.
const resultJSON = `{"status":"success","variables":{"merged":true},"artifacts":{"patch":"p","log":"l"}}`

func (w *fixture) complete(ticket string) {
	w.Helper()
	w.appendEvents(ticket, func(h broker.Head, meta protocol.Meta) []protocol.Event {
		return []protocol.Event{&protocol.Completed{Meta: meta, Fence: h.State.Fence, Status: protocol.Success, Result: json.RawMessage(resultJSON), Usage: &protocol.Usage{Tokens: 7}}}
	})
}

// mixedHandoffs are handoffs whose appends are interleaved: one that completes, one that is
// rejected and rerouted, one that is cancelled, one whose package is in a blob, one that is open.
func (w *fixture) mixedHandoffs() []string {
	w.Helper()
	tickets := []string{w.submit(1), w.submit(1), w.submit(1), w.submit(50_000), w.submit(1)}
	w.accept(tickets[0])
	w.appendEvents(tickets[1], func(h broker.Head, meta protocol.Meta) []protocol.Event {
		return []protocol.Event{&protocol.Rejected{Meta: meta, Offer: h.State.Offer, Agent: "a", ReasonCode: "at_capacity", Reason: "full"}}
	})
	w.appendEvents(tickets[1], func(h broker.Head, meta protocol.Meta) []protocol.Event {
		return []protocol.Event{&protocol.Rerouted{Meta: meta, From: "a", To: "b", Reason: "refused"}, &protocol.Offered{Meta: meta, Agent: "b", Reason: "reroute"}}
	})
	w.appendEvents(tickets[2], func(h broker.Head, meta protocol.Meta) []protocol.Event {
		return []protocol.Event{&protocol.CancelRequested{Meta: meta, Reason: "changed my mind"}, &protocol.Closed{Meta: meta, Outcome: protocol.OutcomeCancelled, Reason: "cancelled"}}
	})
	w.accept(tickets[3])
	w.appendEvents(tickets[0], func(h broker.Head, meta protocol.Meta) []protocol.Event {
		return []protocol.Event{&protocol.Progressed{Meta: meta, Fence: h.State.Fence, Progress: protocol.Progress{Message: "half\u2028way"}}}
	})
	w.complete(tickets[0])
	w.accept(tickets[1])
	w.complete(tickets[3])
	w.complete(tickets[1])
	return tickets
}

// exportDir exports what a directory lacks.
func (w *fixture) exportDir(dir string) Exported {
	w.Helper()
	done, err := ExportDir(w.ctx, w.b, dir, nil)
	w.must(err)
	return done
}

// shorter is a ledger that has entries up to last.
type shorter struct {
	Ledger
	last uint64
}

func (s shorter) LedgerInfo(ctx context.Context) (broker.LedgerInfo, error) {
	info, err := s.Ledger.LedgerInfo(ctx)
	info.Last = min(info.Last, s.last)
	return info, err
}

// exportEach exports what a directory lacks in files of n entries.
func (w *fixture) exportEach(dir string, n uint64) {
	w.Helper()
	end, err := lastExported(dir)
	w.must(err)
	for last := end.seq + n; ; last += n {
		done, err := ExportDir(w.ctx, shorter{w.b, last}, dir, nil)
		if w.must(err); done.Last < last {
			return
		}
	}
}

// export exports handoffs to a file.
func (w *fixture) export(tickets ...string) string {
	w.Helper()
	path := filepath.Join(w.TempDir(), "export.jsonl")
	f, err := os.Create(path)
	w.must(err)
	x := NewExport(f, w.b)
	for _, ticket := range tickets {
		_, err := x.AddHandoff(w.ctx, ticket, func(protocol.AuditRecord) bool { return true })
		w.must(err)
	}
	w.must(x.End())
	w.must(f.Close())
	return path
}

// problemKinds are the problems of a report, without their messages.
func problemKinds(r Report) []string {
	var all []string
	for _, p := range r.Problems {
		text := string(p.Kind)
		if p.Line > 0 {
			text += fmt.Sprintf(" line %d", p.Line)
		}
		if p.Seq > 0 {
			text += fmt.Sprintf(" seq %d", p.Seq)
		}
		all = append(all, text)
	}
	return all
}
