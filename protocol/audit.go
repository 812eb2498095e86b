package protocol

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
)

// AuditType is the kind of an audit record. The handoff protocol specification has no word for
// deferred and noted: these are ours.
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
	// AuditDeferred is the third answer to an offer: not now, or only under a condition.
	AuditDeferred AuditType = "deferred"
	// AuditNoted is an append without any of the other kinds: a retry, a report of progress, a
	// reminder. It has a record too, so that an export contains the whole chain.
	AuditNoted AuditType = "noted"
)

// AuditTypes lists all kinds.
var AuditTypes = []AuditType{AuditInitiated, AuditAccepted, AuditRejected, AuditCompleted, AuditFailed, AuditTimeout,
	AuditEscalated, AuditCancelled, AuditDeferred, AuditNoted}

// AuditRecord is one line of the audit trail, with its place in the ledger. It is computed from an
// append and never stored: the ledger is the trail.
type AuditRecord struct {
	HandoffID       string          `json:"handoff_id"`
	Timestamp       Time            `json:"timestamp"` // of the event
	EventType       AuditType       `json:"event_type"`
	FromAgent       string          `json:"from_agent"` // the source; of an escalation the agent that escalates
	ToAgent         string          `json:"to_agent"`   // the agent that the event concerns
	HandoffType     Type            `json:"handoff_type"`
	Reason          string          `json:"reason"`
	ContextSnapshot ContextSnapshot `json:"context_snapshot"`
	// DecisionRationale is the package's; of an escalation its reason, and the assessment of the agent
	// that escalates.
	DecisionRationale string `json:"decision_rationale"`
	RiskLevel         Risk   `json:"risk_level"`
	DurationMS        int64  `json:"duration_ms"` // from the submission to this event
	TokensConsumed    int64  `json:"tokens_consumed"`
	// Outcome is success, partial or failed, in the record that closes the handoff; ClosedAs is the
	// state's outcome there.
	Outcome  ResultStatus `json:"outcome,omitempty"`
	ClosedAs Outcome      `json:"closed_as,omitempty"`

	Event    EventType `json:"event,omitempty"`   // of docs/concepts/lifecycle.md
	By       string    `json:"by,omitempty"`      // its author
	Attempt  int       `json:"attempt,omitempty"` // at this agent
	Seq      uint64    `json:"seq"`               // of its append in the ledger
	N        int       `json:"n"`                 // the index of its event in the append, from 0
	Hash     string    `json:"hash"`              // sha256 of the append as stored, hex
	PrevHash string    `json:"prev_hash,omitempty"`
}

// ContextSnapshot is the subject of the handoff, and its status.
type ContextSnapshot struct {
	TaskID     string `json:"task_id"`
	TaskStatus string `json:"task_status"` // after the append: pending, in_progress, blocked, complete or failed
	// VariablesHash is the hash of the package's variables; in the record of a completion, of the
	// result's variables, or empty if that is lost. ArtifactCount likewise.
	VariablesHash string `json:"context_variables_hash"`
	ArtifactCount int    `json:"artifact_count"`
}

// Snapshot is the part of a package that audit records need. The package never changes, so it is
// made once per handoff. The zero value is a package that could not be read.
type Snapshot struct {
	Reason        string
	Rationale     string
	VariablesHash string
	Artifacts     int
	// Result is the snapshot of the result with which an append completes the handoff.
	Result ResultSnapshot
}

// ResultSnapshot is the part of a result that audit records need. The zero value is a result that
// could not be read.
type ResultSnapshot struct {
	VariablesHash string
	Artifacts     int
}

// ResultSnapshotOf reads a snapshot from a stored result. Without a body there is no result, and
// nothing was lost.
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

// Completes reports whether an event ends a handoff with a result, whose snapshot its record has.
func Completes(e EventType) bool { return e == EventCompleted || e == EventLateResultUsed }

// SnapshotOf reads a snapshot from a stored package.
func SnapshotOf(body []byte) (Snapshot, error) {
	pkg, err := DecodePackage(body)
	if err != nil {
		return Snapshot{}, err
	}
	return Snapshot{Reason: pkg.Reason, Rationale: pkg.Audit.DecisionRationale,
		VariablesHash: VariablesHash(pkg.Context.Variables), Artifacts: len(pkg.Context.Artifacts.All())}, nil
}

// VariablesHash returns the SHA-256, in hex, of the variables as one JSON object. Names are sorted
// by their bytes at every level; there is no white space; strings have no more escapes than JSON
// demands (and U+2028, U+2029); numbers stay as written. Without variables it is the hash of {}.
func VariablesHash(variables map[string]json.RawMessage) string {
	body, err := Marshal(canonicalMap(variables))
	if err != nil { // values decoded from JSON have a JSON form
		return ""
	}
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// canonical returns a value that encoding/json writes with sorted names.
func canonical(raw json.RawMessage) any {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return string(raw) // a package in the ledger is JSON
	}
	return v
}

// AuditOf returns the audit records of an append: one for each event that has an AuditType, in
// order, or one AuditNoted if there is none. The kinds are in the outlines of the events, and a table in
// docs/operations/audit.md.
func AuditOf(c Change, of Snapshot) []AuditRecord {
	s := c.Record.State
	agentAt := func(n int) string { return cmp.Or(c.Record.AgentAt(n), s.TargetWords()) }
	var records []AuditRecord
	for n, e := range c.Record.Events {
		o := e.outline()
		if o.Audit == "" {
			continue
		}
		r := AuditRecord{N: n, EventType: o.Audit, Timestamp: e.When().UTC(), Event: e.EventType(), By: e.Author(),
			FromAgent: cmp.Or(o.From, s.Source), ToAgent: cmp.Or(o.To, o.Agent, agentAt(n)), Attempt: cmp.Or(o.Attempt, s.Attempt),
			Reason: colons(o.Code, o.Words), DecisionRationale: of.Rationale}
		switch r.Event {
		case EventSubmitted:
			r.Reason = of.Reason
		case EventEscalated, EventDenied:
			r.DecisionRationale = colons(o.Words, o.Assessment)
		}
		if o.Closes {
			r.ClosedAs, r.Outcome = s.Outcome, auditOutcome(s.Outcome)
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
		r := AuditRecord{EventType: AuditNoted, Timestamp: s.UpdatedAt.UTC(), FromAgent: s.Source, ToAgent: agentAt(0),
			Attempt: s.Attempt, DecisionRationale: of.Rationale}
		if len(c.Record.Events) > 0 {
			e := c.Record.Events[0]
			r.Timestamp, r.Event, r.By = e.When().UTC(), e.EventType(), e.Author()
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
		r.Seq, r.Hash, r.PrevHash = c.Seq, c.Hash, s.PrevHash
	}
	return records
}

// acknowledgement returns the record that a handoff must have in addition to initiated, if no agent
// acknowledges it. A group is accepted at its submission, because its members do the work. A
// handoff that closes before any agent has acknowledged it is rejected.
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

// auditClosing are the kinds of records for ends.
var auditClosing = map[Outcome]AuditType{OutcomeSuccess: AuditCompleted, OutcomePartial: AuditCompleted, OutcomeFailed: AuditFailed,
	OutcomeTimeout: AuditTimeout, OutcomeRejected: AuditRejected, OutcomeCancelled: AuditCancelled, OutcomeRolledBack: AuditFailed}

// auditOutcome maps an outcome to the three words of an audit record.
func auditOutcome(o Outcome) ResultStatus {
	if o == OutcomeSuccess || o == OutcomePartial {
		return ResultStatus(o)
	}
	return "failed"
}

// AgentAt returns the agent that had the handoff, or its offer, at event n of an append. Later events
// of the append may move it.
func (r *Record) AgentAt(n int) string {
	for _, e := range r.Events[min(n, len(r.Events)):] {
		if from := e.outline().From; from != "" {
			return from
		}
	}
	return r.State.Agent
}

// taskStatus returns the state in the words that the handoff protocol specification has for a task.
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

// colons joins the nonempty parts with colons.
func colons(parts ...string) string {
	kept := parts[:0:0]
	for _, part := range parts {
		if part != "" {
			kept = append(kept, part)
		}
	}
	return strings.Join(kept, ": ")
}

// trailWordsBytesMax is how much of a trail entry's words and assessment is kept.
const trailWordsBytesMax = 2 << 10

// TrailOf returns the part of a handoff's history that the next agent needs: refusals and suggested
// agents, questions and answers, escalations with their assessments, reroutes, timeouts, lost
// leases, failed attempts with their last progress, and the origin of a redrive. It has at most
// trailMax entries, the newest, in the order of the history, with words cut to trailWordsBytesMax.
// Deferrals are omitted: they ask nothing.
//
// changes are those of one handoff from its first on; for a redrive, those of its origin followed
// by its own.
func TrailOf(changes []Change) []TrailEntry {
	var trail []TrailEntry
	agent := ""            // whose queue it is in, or its holder's
	var reported *Progress // the last report of the attempt
	for _, change := range changes {
		for _, e := range change.Record.Events {
			o := e.outline()
			if o.Trail {
				entry := TrailEntry{At: e.When(), Event: e.EventType(), Agent: cmp.Or(o.From, o.Agent, agent), To: cmp.Or(o.To, o.Suggests),
					Code: o.Code, Words: CutText(o.Words, trailWordsBytesMax), Assessment: CutText(o.Assessment, trailWordsBytesMax), Level: o.Level}
				switch entry.Event {
				case EventSubmitted:
					entry.Event, entry.Agent = EventRedriven, e.Author()
				case EventAnswered:
					entry.Agent, entry.To = e.Author(), agent
				case EventFailed, EventLeaseLost, EventTimedOut:
					entry.Progress, reported = reported, nil
				}
				trail = append(trail, entry)
			}
			agent = cmp.Or(o.To, agent)
			if o.Takes {
				reported = nil
			} else if e, ok := e.(*Progressed); ok {
				reported = trailProgress(e.Progress)
			}
		}
		if len(trail) > 2*trailMax { // a long history keeps no more than needed
			trail = slices.Clone(trail[len(trail)-trailMax:])
		}
	}
	return trail[max(0, len(trail)-trailMax):]
}

// trailProgress returns a report for a trail: bounded, and without usage, which is counted
// elsewhere.
func trailProgress(p Progress) *Progress {
	p.Message, p.Usage = CutText(p.Message, trailWordsBytesMax), nil
	if len(p.Details) > trailWordsBytesMax {
		p.Details = nil
	}
	return &p
}
