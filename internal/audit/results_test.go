package audit

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// TestRecordsOfResults checks that the completing record has the hash and the artifacts of the
// result, wherever it is stored, and that its files verify.
func TestRecordsOfResults(t *testing.T) {
	w := newFixture(t)
	large := json.RawMessage(strings.Replace(resultJSON, `"status"`, `"summary":"`+strings.Repeat("x", protocol.InlineBytesMax)+`","status"`, 1))
	blob, err := w.mem.PutBlob(w.ctx, large)
	w.must(err)
	inBlob, late := w.submit(1), w.submit(1)
	w.accept(inBlob)
	w.appendEvents(inBlob, func(h broker.Head, meta protocol.Meta) []protocol.Event {
		return []protocol.Event{&protocol.Completed{Meta: meta, Fence: h.State.Fence, Status: protocol.Success, Blob: &blob}}
	})
	w.accept(late)
	w.appendEvents(late, func(h broker.Head, meta protocol.Meta) []protocol.Event {
		return []protocol.Event{&protocol.LeaseLost{Meta: meta, Holder: "w1", Fence: h.State.Fence, Attempt: 1}}
	})
	w.appendEvents(late, func(h broker.Head, meta protocol.Meta) []protocol.Event {
		return []protocol.Event{&protocol.ResultParked{Meta: meta, Holder: "w1", Fence: 5, Attempt: 1, Status: protocol.Success, Result: json.RawMessage(resultJSON)}}
	})
	w.appendEvents(late, func(h broker.Head, meta protocol.Meta) []protocol.Event {
		return []protocol.Event{&protocol.LateResultUsed{Meta: meta, Seq: h.State.LateSeq}}
	})
	want := protocol.VariablesHash(map[string]json.RawMessage{"merged": json.RawMessage("true")})
	for _, ticket := range []string{inBlob, late} {
		found := 0
		w.must(NewReader(w.b).Appends(w.ctx, ticket, func(_ broker.Entry, records []protocol.AuditRecord) error {
			for _, r := range records {
				if shown := r.ContextSnapshot; r.EventType == protocol.AuditCompleted {
					if found++; shown.VariablesHash != want || shown.ArtifactCount != 2 {
						t.Errorf("%+v", r)
					}
				}
			}
			return nil
		}))
		if found != 1 {
			t.Errorf("%d records say that it is complete", found)
		}
	}
	dir := t.TempDir()
	w.exportDir(dir)
	report, err := VerifyFiles(dir, nil)
	w.must(err)
	if report.Found > 0 {
		t.Errorf("%+v", report.Problems)
	}
}

// TestTheTwoRecordsOfEveryHandoff checks that each handoff has the two records of document 1 §7.2:
// also a group, and one that ended before an agent answered.
func TestTheTwoRecordsOfEveryHandoff(t *testing.T) {
	w := newFixture(t)
	in, err := w.b.Prepare(t.Context(), protocol.Package{Source: "src", Type: protocol.Broadcast, Target: protocol.Target{Agents: []string{"a", "b"}},
		Reason: "a vote", Task: protocol.Task{Description: "vote"}})
	w.must(err)
	group, err := w.b.Submit(w.ctx, in)
	w.must(err)
	unheard := w.submit(1)
	_, err = w.b.Cancel(w.ctx, unheard, "ann", "not needed")
	w.must(err)
	for ticket, want := range map[string][]string{
		group.Ticket: {"initiated ", "accepted group: each member is a handoff with records of its own"},
		unheard:      {"initiated ", "rejected unacknowledged: cancelled: cancelled on request", "cancelled cancelled: cancelled on request"},
	} {
		var got []string
		w.must(NewReader(w.b).Appends(w.ctx, ticket, func(_ broker.Entry, records []protocol.AuditRecord) error {
			for _, r := range records {
				reason := r.Reason
				if r.EventType == protocol.AuditInitiated {
					reason = ""
				}
				got = append(got, fmt.Sprintf("%s %s", r.EventType, reason))
				if (r.ClosedAs != "") != (r.EventType == protocol.AuditCancelled) || r.RiskLevel != protocol.RiskLow {
					t.Errorf("%+v", r)
				}
			}
			return nil
		}))
		if !slices.Equal(got, want) {
			t.Errorf("the records are %q, want %q", got, want)
		}
	}
}
