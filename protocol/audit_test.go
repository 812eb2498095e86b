package protocol

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

var auditNow = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func auditMeta() Meta { return Meta{At: auditNow.Add(1500 * time.Millisecond), By: "w1"} }

// auditEvents has every event that leaves one of document 1's words, once. What is not
// here is noted.
var auditEvents = map[EventType]struct {
	e      Event
	state  State
	want   AuditType
	to     string
	reason string
	closes bool
}{
	EventSubmitted:   {&Submitted{Meta: auditMeta()}, State{}, AuditInitiated, "a", "ready", false},
	EventAccepted:    {&Accepted{Meta: auditMeta(), Agent: "a", Attempt: 2}, State{}, AuditAccepted, "a", "", false},
	EventCompleted:   {&Completed{Meta: auditMeta()}, State{Closed: true, Outcome: OutcomePartial}, AuditCompleted, "a", "", true},
	EventFailed:      {&Failed{Meta: auditMeta(), Attempt: 2, Code: "exit", Message: "code 3"}, State{}, AuditFailed, "a", "exit: code 3", false},
	EventRejected:    {&Rejected{Meta: auditMeta(), Agent: "b", ReasonCode: "at_capacity", Reason: "full"}, State{}, AuditRejected, "b", "at_capacity: full", false},
	EventConditioned: {&Conditioned{Meta: auditMeta(), Agent: "b", NeedsContext: []string{"x"}, Reason: "y"}, State{}, AuditDeferred, "b", "needs context: x; y", false},
	EventGated: {&Gated{Meta: auditMeta(), GateTerms: GateTerms{Waits: []GateKind{GateApproval}, Agent: "b", Rules: []string{"prod"}}}, State{}, AuditDeferred, "b",
		"gated: approval: prod", false},
	EventDenied:         {&Denied{Meta: auditMeta(), Agent: "b", Reason: "because"}, State{}, AuditRejected, "b", "denied: because", false},
	EventAnswered:       {&Answered{Meta: auditMeta(), Answer: Answer{Deny: true, DenyReason: "no"}}, State{}, AuditRejected, "a", "denied: no", false},
	EventEscalated:      {&Escalated{Meta: auditMeta(), From: "b", To: "a", Reason: "too hard", Assessment: "half done"}, State{}, AuditEscalated, "a", "too hard", false},
	EventLeaseLost:      {&LeaseLost{Meta: auditMeta(), Fence: 7, Attempt: 2}, State{}, AuditFailed, "a", "lease_lost: the worker that had it is gone", false},
	EventTimedOut:       {&TimedOut{Meta: auditMeta(), Clock: ClockAcknowledge, Agent: "b"}, State{}, AuditTimeout, "b", "acknowledge", false},
	EventClosed:         {&Closed{Meta: auditMeta(), Outcome: OutcomeCancelled, Reason: "cancelled"}, State{Closed: true, Outcome: OutcomeCancelled}, AuditCancelled, "a", "cancelled", true},
	EventTaken:          {&Taken{Meta: auditMeta(), Agent: "human", Reason: "mine"}, State{}, AuditAccepted, "human", "mine", false},
	EventRolledBack:     {&RolledBack{Meta: auditMeta(), Reason: "not now"}, State{Closed: true, Outcome: OutcomeRolledBack}, AuditFailed, "a", "returned: not now", true},
	EventLateResultUsed: {&LateResultUsed{Meta: auditMeta()}, State{Closed: true, Outcome: OutcomeSuccess}, AuditCompleted, "a", "late_result", true},
}

func TestEveryEventInTheAuditTrail(t *testing.T) {
	snapshot := Snapshot{Reason: "ready", Rationale: "because", VariablesHash: VariablesHash(nil), Artifacts: 3,
		Result: ResultSnapshot{VariablesHash: "the result's", Artifacts: 5}}
	for _, kind := range EventTypes {
		c, leaves := auditEvents[kind]
		if !leaves {
			c.e = NewEvent(kind)
		}
		s := c.state
		s.Ticket, s.Agent, s.SubmittedAt, s.Attempt, s.Usage, s.PrevHash = "t", "a", auditNow, 1, &Used{Usage: Usage{Tokens: 42}}, "before"
		s.AttemptsTotal = 1
		s.Summary = Summary{Source: "src", Type: Delegation, TaskID: "task-1", Risk: RiskHigh}
		records := AuditOf(Change{Seq: 9, Hash: "hash", Record: Record{Events: []Event{c.e}, State: s}}, snapshot)
		if len(records) != 1 {
			t.Fatalf("%s: %d records", kind, len(records))
		}
		r := records[0]
		if !leaves {
			if r.EventType != AuditNoted || r.Event != kind {
				t.Errorf("%s: %s of %s, want it noted", kind, r.EventType, r.Event)
			}
			continue
		}
		if r.EventType != c.want || r.ToAgent != c.to || r.Reason != c.reason || (r.Outcome != "") != c.closes || (r.ClosedAs != "") != c.closes {
			t.Errorf("%s: %+v", kind, r)
		}
		if r.HandoffID != "t" || r.HandoffType != Delegation || r.RiskLevel != RiskHigh || r.TokensConsumed != 42 || r.DurationMS != 1500 || r.By != "w1" ||
			r.Seq != 9 || r.Hash != "hash" || r.PrevHash != "before" || r.ContextSnapshot.TaskID != "task-1" {
			t.Errorf("%s: %+v", kind, r)
		}
		hash, artifacts := snapshot.VariablesHash, 3
		if c.want == AuditCompleted {
			hash, artifacts = "the result's", 5
		}
		if r.ContextSnapshot.VariablesHash != hash || r.ContextSnapshot.ArtifactCount != artifacts {
			t.Errorf("%s: %+v", kind, r.ContextSnapshot)
		}
		if from := map[bool]string{true: "b", false: "src"}[kind == EventEscalated]; r.FromAgent != from {
			t.Errorf("%s: from %s", kind, r.FromAgent)
		}
	}
}

// What moves a handoff on in the same append does not take from the agent
// before it what it did.
func TestAuditOfSeveralEvents(t *testing.T) {
	s := State{Ticket: "t", Agent: "human", SubmittedAt: auditNow, Phase: Pending}
	events := []Event{
		&TimedOut{Meta: auditMeta(), Clock: ClockDeadline},
		&LeaseLost{Meta: auditMeta(), Fence: 3, Attempt: 1},
		&Escalated{Meta: auditMeta(), From: "a", To: "human", Reason: "x"},
		&Offered{Meta: auditMeta(), Agent: "human"},
	}
	var got []string
	for _, r := range AuditOf(Change{Record: Record{Events: events, State: s}}, Snapshot{}) {
		got = append(got, fmt.Sprintf("%d %s %s %s", r.N, r.EventType, r.ToAgent, r.ContextSnapshot.TaskStatus))
	}
	want := []string{"0 timeout a pending", "1 failed a pending", "2 escalated human pending"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// The serialization is what docs/operations/audit.md says, so that others can
// compute the hash.
func TestVariablesHash(t *testing.T) {
	sha := func(text string) string {
		sum := sha256.Sum256([]byte(text))
		return hex.EncodeToString(sum[:])
	}
	for given, written := range map[string]string{
		`{}`: `{}`,
		`{"b":1,"a":{"z":[3,{"y":1.0,"x":1e2}],"k":"<é\u0041\n>"}}`: `{"a":{"k":"<éA\n>","z":[3,{"x":1e2,"y":1.0}]},"b":1}`,
		`{"a":12345678901234567890.10,"b":null,"c":true}`:           `{"a":12345678901234567890.10,"b":null,"c":true}`,
	} {
		var variables map[string]json.RawMessage
		if err := json.Unmarshal([]byte(given), &variables); err != nil {
			t.Fatal(err)
		}
		if got := VariablesHash(variables); got != sha(written) {
			t.Errorf("%s has another hash than %s", given, written)
		}
	}
	if got := VariablesHash(nil); got != sha("{}") {
		t.Errorf("no variables have the hash %s", got)
	}
	snapshot, err := SnapshotOf([]byte(`{"source":"s","target":{"agent":"a"},"reason":"r","task":{"description":"d"},
		"context":{"variables":{"x":1},"artifacts":{"one":"p","two":null}},"audit":{"decision_rationale":"why"}}`))
	if want := (Snapshot{Reason: "r", Rationale: "why", VariablesHash: sha(`{"x":1}`), Artifacts: 2}); err != nil || snapshot != want {
		t.Errorf("%+v, %v", snapshot, err)
	}
}

// TestAuditTable compares the table in the docs with what is done.
func TestAuditTable(t *testing.T) {
	text, err := os.ReadFile("../docs/operations/audit.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 || !strings.HasPrefix(cells[1], " `") {
			continue
		}
		record := strings.Trim(cells[2], " `")
		for name := range strings.SplitSeq(cells[1], ",") {
			rows[strings.Trim(name, " `")] = record
		}
	}
	for kind, c := range auditEvents {
		if got, there := rows[string(kind)]; !there || !strings.Contains(got, string(c.want)) {
			t.Errorf("docs/operations/audit.md says of %s: %q, it leaves %s", kind, got, c.want)
		}
		delete(rows, string(kind))
	}
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		t.Errorf("docs/operations/audit.md has a row for %s", name)
	}
}
