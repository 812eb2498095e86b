package protocol

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
)

// AuditType is what an audit record says has happened. Deferred and noted are ours, for what
// the handoff protocol specification has no word for.
type AuditType string

const (
	AuditInitiated AuditType = "initiated"
	AuditAccepted  AuditType = "accepted"
	AuditRejected  AuditType = "rejected"
	AuditCompleted AuditType = "completed"
	AuditFailed    AuditType = "failed"
	AuditTimeout   AuditType = "timeout"
	AuditEscalated AuditType = "escalated"
	AuditCancelled AuditType = "cancelled"
	// AuditDeferred is the third answer to an offer: not now, or only if.
	AuditDeferred AuditType = "deferred"
	// AuditNoted is an append that holds none of the above: a retry, a beat of
	// progress, a reminder. It has a record all the same, so that what is
	// exported is the whole chain.
	AuditNoted AuditType = "noted"
)

// AuditTypes are all of them.
var AuditTypes = []AuditType{AuditInitiated, AuditAccepted, AuditRejected, AuditCompleted, AuditFailed, AuditTimeout,
	AuditEscalated, AuditCancelled, AuditDeferred, AuditNoted}

// AuditRecord is one line of the audit trail, and where in the ledger it comes from. It is made
// of an append, never stored: the ledger is the trail.
type AuditRecord struct {
	HandoffID       string          `json:"handoff_id"`
	Timestamp       Time            `json:"timestamp"` // of the event
	EventType       AuditType       `json:"event_type"`
	FromAgent       string          `json:"from_agent"` // the source; of an escalation who passes it up
	ToAgent         string          `json:"to_agent"`   // the agent that the event concerns
	HandoffType     Type            `json:"handoff_type"`
	Reason          string          `json:"reason"`
	ContextSnapshot ContextSnapshot `json:"context_snapshot"`
	// DecisionRationale is the package's; of an escalation its reason, and the
	// assessment of who escalates.
	DecisionRationale string `json:"decision_rationale"`
	RiskLevel         Risk   `json:"risk_level"`
	DurationMS        int64  `json:"duration_ms"` // from the submission to this event
	TokensConsumed    int64  `json:"tokens_consumed"`
	// Outcome is success, partial or failed, in the record that closes the
	// handoff; ClosedAs says there how it ended in the words of a state.
	Outcome  ResultStatus `json:"outcome,omitempty"`
	ClosedAs Outcome      `json:"closed_as,omitempty"`

	Event    EventType `json:"event,omitempty"`   // of docs/concepts/lifecycle.md
	By       string    `json:"by,omitempty"`      // who caused it
	Attempt  int       `json:"attempt,omitempty"` // at this agent
	Seq      uint64    `json:"seq"`               // of its append in the ledger
	N        int       `json:"n"`                 // its event's place in that, from 0
	Hash     string    `json:"hash"`              // sha256 of the append as stored, hex
	PrevHash string    `json:"prev_hash,omitempty"`
}

// ContextSnapshot is what the handoff was about, and where it stood.
type ContextSnapshot struct {
	TaskID     string `json:"task_id"`
	TaskStatus string `json:"task_status"` // after the append: pending, in_progress, blocked, complete or failed
	// VariablesHash is VariablesHash of the package, where the record says that the
	// handoff completed that of its result; empty where that is lost. ArtifactCount
	// is likewise the package's or the result's.
	VariablesHash string `json:"context_variables_hash"`
	ArtifactCount int    `json:"artifact_count"`
}

// Snapshot is what audit records need to know of a package. The package never
// changes, so it is made once for a handoff. The zero value is a package that
// could not be read.
type Snapshot struct {
	Reason        string
	Rationale     string
	VariablesHash string
	Artifacts     int
	// Result is that of the result which an append completes the handoff with.
	Result ResultSnapshot
}

// ResultSnapshot is what audit records need to know of a result. The zero value
// is a result that could not be read.
type ResultSnapshot struct {
	VariablesHash string
	Artifacts     int
}

// ResultSnapshotOf reads a snapshot out of a result as stored. Without a body there
// is no result, and nothing was lost.
func ResultSnapshotOf(body []byte) (ResultSnapshot, error) {
	var result Result
	if len(body) > 0 {
		var err error
		if result, err = DecodeResult(body); err != nil {
			return ResultSnapshot{}, err
		}
	}
	return ResultSnapshot{VariablesHash: VariablesHash(result.Variables), Artifacts: len(result.Artifacts.All())}, nil
}

// Completes tells whether an event ends a handoff with a result, whose snapshot
// its record has.
func Completes(e EventType) bool { return e == EventCompleted || e == EventLateResultUsed }

// SnapshotOf reads a snapshot out of a package as stored.
func SnapshotOf(body []byte) (Snapshot, error) {
	pkg, err := DecodePackage(body)
	if err != nil {
		return Snapshot{}, err
	}
	return Snapshot{Reason: pkg.Reason, Rationale: pkg.Audit.DecisionRationale,
		VariablesHash: VariablesHash(pkg.Context.Variables), Artifacts: len(pkg.Context.Artifacts.All())}, nil
}

// VariablesHash is the SHA-256, in hex, of the variables as one JSON object:
// the names in the order of their bytes at every level, no white space, strings
// with no more escapes than JSON demands (and U+2028, U+2029), numbers as they
// were written. Without variables it is that of {}.
func VariablesHash(variables map[string]json.RawMessage) string {
	body, err := Marshal(canonicalMap(variables))
	if err != nil { // what was decoded from JSON has a JSON form
		return ""
	}
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// canonical is a value that encoding/json writes with its names in order.
func canonical(raw json.RawMessage) any {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return string(raw) // a package in the ledger is JSON
	}
	return v
}

// AuditOf is what an append leaves in the audit trail: a record for each event
// that an AuditType stands for, in their order, or one AuditNoted where there is
// none. The mapping is auditEvent, and a table in docs/operations/audit.md.
func AuditOf(c Change, of Snapshot) []AuditRecord {
	s := c.Record.State
	var records []AuditRecord
	for n, e := range c.Record.Events {
		r := AuditRecord{N: n, Timestamp: e.When().UTC(), Event: e.EventType(), FromAgent: s.Source,
			ToAgent: agentAt(c, n), Attempt: s.Attempt, DecisionRationale: of.Rationale}
		if !auditEvent(&r, e, s, of) {
			continue
		}
		if ack, missing := acknowledgement(r, s); missing && ack.EventType == AuditRejected {
			records = append(records, ack, r)
		} else if missing {
			records = append(records, r, ack)
		} else {
			records = append(records, r)
		}
	}
	if len(records) == 0 {
		r := AuditRecord{EventType: AuditNoted, Timestamp: s.UpdatedAt.UTC(), FromAgent: s.Source, ToAgent: agentAt(c, 0),
			Attempt: s.Attempt, DecisionRationale: of.Rationale}
		if len(c.Record.Events) > 0 {
			e := c.Record.Events[0]
			r.Timestamp, r.Event = e.When().UTC(), e.EventType()
		}
		records = append(records, r)
	}
	for i := range records {
		r := &records[i]
		r.HandoffID, r.HandoffType, r.RiskLevel, r.TokensConsumed = s.Ticket, s.Type, cmp.Or(s.Risk, RiskLow), s.Usage.Total().Tokens
		r.ContextSnapshot = ContextSnapshot{TaskID: s.TaskID, TaskStatus: taskStatus(s), VariablesHash: of.VariablesHash, ArtifactCount: of.Artifacts}
		if Completes(r.Event) {
			r.ContextSnapshot.VariablesHash, r.ContextSnapshot.ArtifactCount = of.Result.VariablesHash, of.Result.Artifacts
		}
		r.DurationMS = max(0, r.Timestamp.Sub(s.SubmittedAt).Milliseconds())
		r.By = causedBy(c.Record.Events, r.N)
		r.Seq, r.Hash, r.PrevHash = c.Seq, c.Hash, s.PrevHash
	}
	return records
}

// acknowledgement is the record that a handoff must have beside initiated
// where no agent gives it: a group is accepted as it is submitted, for the
// work is its members'; one that closes before any agent has acknowledged it is
// rejected by then.
func acknowledgement(r AuditRecord, s State) (ack AuditRecord, missing bool) {
	ack = r
	switch {
	case r.EventType == AuditInitiated && s.Aggregate != nil:
		ack.EventType, ack.Reason = AuditAccepted, "group: each member is a handoff with records of its own"
	case r.ClosedAs != "" && r.EventType != AuditRejected && s.Aggregate == nil && s.AttemptsTotal == 0 && len(s.Refused) == 0:
		ack.EventType, ack.Reason = AuditRejected, colons("unacknowledged", r.Reason)
		ack.ClosedAs, ack.Outcome = "", ""
	default:
		return AuditRecord{}, false
	}
	return ack, true
}

// auditEvent fills in what an event says, and tells whether it leaves a record.
func auditEvent(r *AuditRecord, e Event, s State, of Snapshot) bool {
	switch e := e.(type) {
	case *Submitted:
		r.EventType, r.Reason = AuditInitiated, of.Reason
	case *Accepted:
		r.EventType, r.ToAgent, r.Attempt = AuditAccepted, e.Agent, e.Attempt
	case *Taken:
		r.EventType, r.ToAgent, r.Reason = AuditAccepted, e.Agent, e.Reason
	case *Rejected:
		r.EventType, r.ToAgent, r.Reason = AuditRejected, e.Agent, colons(e.ReasonCode, e.Reason)
	case *Conditioned:
		r.EventType, r.ToAgent, r.Reason = AuditDeferred, e.Agent, askedFor(e)
	case *Gated:
		r.EventType, r.ToAgent, r.Reason = AuditDeferred, e.Agent, colons("gated", gateReason(e))
	case *Denied:
		r.EventType, r.ToAgent, r.Reason, r.DecisionRationale = AuditRejected, e.Agent, colons("denied", e.Reason), e.Reason
	case *Answered:
		if !e.Answer.Deny {
			return false
		}
		r.EventType, r.Reason = AuditRejected, colons("denied", cmp.Or(e.Answer.DenyReason, e.Answer.Text))
	case *Failed:
		r.EventType, r.Attempt, r.Reason = AuditFailed, e.Attempt, colons(e.Code, e.Message)
	case *LeaseLost:
		if e.Fence == 0 { // it was claimed and never acknowledged
			return false
		}
		r.EventType, r.Attempt, r.Reason = AuditFailed, e.Attempt, colons("lease_lost", "the worker that had it is gone")
	case *TimedOut:
		r.EventType, r.Reason = AuditTimeout, string(e.Clock)
		r.ToAgent = cmp.Or(e.Agent, r.ToAgent)
	case *Escalated:
		r.EventType, r.FromAgent, r.ToAgent, r.Reason = AuditEscalated, e.From, e.To, e.Reason
		r.DecisionRationale = colons(e.Reason, e.Assessment)
	case *Completed:
		r.EventType = AuditCompleted
	case *LateResultUsed:
		r.EventType, r.Reason = AuditCompleted, "late_result"
	case *RolledBack:
		r.EventType, r.Reason = AuditFailed, colons("returned", e.Reason)
	case *Closed:
		r.EventType, r.Reason = auditClosing(e.Outcome), colons(e.Reason, e.Message)
	default:
		return false
	}
	switch e.(type) {
	case *Completed, *LateResultUsed, *RolledBack, *Closed:
		r.ClosedAs, r.Outcome = s.Outcome, auditOutcome(s.Outcome)
	}
	return true
}

// gateReason says what a gate waits for, and what asks for that.
func gateReason(e *Gated) string {
	words := make([]string, len(e.Waits))
	for i, kind := range e.Waits {
		words[i] = string(kind)
	}
	return colons(strings.Join(words, ", "), cmp.Or(e.Why, strings.Join(e.Rules, ", ")))
}

// auditClosing is the record of an end.
func auditClosing(o Outcome) AuditType {
	switch o {
	case OutcomeSuccess, OutcomePartial:
		return AuditCompleted
	case OutcomeTimeout:
		return AuditTimeout
	case OutcomeRejected:
		return AuditRejected
	case OutcomeCancelled:
		return AuditCancelled
	}
	return AuditFailed
}

// auditOutcome is an outcome in the three words of an audit record.
func auditOutcome(o Outcome) ResultStatus {
	switch o {
	case OutcomeSuccess:
		return Success
	case OutcomePartial:
		return Partial
	}
	return "failed"
}

// agentAt is who had the handoff, or before whom it stood, at an event: before
// what moves it on in the same append.
func agentAt(c Change, n int) string {
	for _, e := range c.Record.Events[min(n, len(c.Record.Events)):] {
		switch e := e.(type) {
		case *Rerouted:
			return e.From
		case *Escalated:
			return e.From
		}
	}
	return cmp.Or(c.Record.State.Agent, c.Record.State.TargetWords())
}

func causedBy(events []Event, n int) string {
	if n >= len(events) {
		return ""
	}
	return CausedBy(events[n])
}

// CausedBy is the name that an event gives of who made it.
func CausedBy(e Event) string {
	if e, ok := e.(interface{ causer() string }); ok {
		return e.causer()
	}
	return ""
}

func (m Meta) causer() string { return m.By }

// taskStatus is the state in the words of a task of the handoff protocol specification.
func taskStatus(s State) string {
	switch {
	case s.Closed && (s.Outcome == OutcomeSuccess || s.Outcome == OutcomePartial):
		return "complete"
	case s.Closed:
		return "failed"
	}
	switch s.Phase {
	case AwaitingApproval, AwaitingSource, Pending, Retrying:
		return "pending"
	case PhaseAccepted, Working:
		return "in_progress"
	}
	return "blocked"
}

// colons puts a colon between what is not empty.
func colons(parts ...string) string {
	kept := parts[:0:0]
	for _, part := range parts {
		if part != "" {
			kept = append(kept, part)
		}
	}
	return strings.Join(kept, ": ")
}
