package protocol

import "encoding/json"

// ReturnStatus is how a return says the work went.
type ReturnStatus string

const (
	ReturnSuccess ReturnStatus = "success"
	ReturnPartial ReturnStatus = "partial"
	ReturnFailed  ReturnStatus = "failed" // also rejected, cancelled, rolled back: Outcome says which
	ReturnTimeout ReturnStatus = "timeout"
)

// ReturnStatusOf is the status of a return for an outcome.
func ReturnStatusOf(o Outcome) ReturnStatus {
	switch o {
	case OutcomeSuccess:
		return ReturnSuccess
	case OutcomePartial:
		return ReturnPartial
	case OutcomeTimeout:
		return ReturnTimeout
	}
	return ReturnFailed
}

// Return is the end of a handoff as its source gets it.
type Return struct {
	HandoffID      string          `json:"handoff_id"`
	FromAgent      string          `json:"from_agent"`
	ToAgent        string          `json:"to_agent"`
	LastID         string          `json:"last_id,omitempty"` // the handoff that its chain ended with, where that is another
	Status         ReturnStatus    `json:"status"`
	Result         *ReturnResult   `json:"result,omitempty"`
	ContextUpdates *ContextUpdates `json:"context_updates,omitempty"`
	Audit          ReturnAudit     `json:"audit,omitzero"`

	Outcome Outcome `json:"outcome"`
	Reason  string  `json:"reason,omitempty"`  // the code of the outcome
	Message string  `json:"message,omitempty"` // the same in words
	// RollbackReason is why the handoff was rolled back, and RollbackBy who asked for
	// that, where it was not its holder. Message has the holder's own words.
	RollbackReason string `json:"rollback_reason,omitempty"`
	RollbackBy     string `json:"rollback_by,omitempty"`
	// PackageDigest is the digest of what was handed off.
	PackageDigest string `json:"package_digest,omitempty"`
	// Progress is the last report of work that was not finished.
	Progress *Progress `json:"progress,omitempty"`
	// Trail is who refused, asked, escalated and gave up on the way.
	Trail []TrailEntry `json:"trail,omitempty"`
	// Members are the ends of a group's members, in the order of its recipients.
	Members []MemberReturn `json:"members,omitempty"`
}

// ReturnResult is the result in a return.
type ReturnResult struct {
	ContentType string          `json:"content_type,omitempty"`
	Body        json.RawMessage `json:"body,omitempty"`
	Summary     string          `json:"summary,omitempty"`
}

// ContextUpdates are what the work changed and made.
type ContextUpdates struct {
	VariablesChanged  map[string]json.RawMessage `json:"variables_changed,omitempty"`
	ArtifactsProduced Artifacts                  `json:"artifacts_produced,omitzero"`
	// Conflicts are variables of which the members of a group returned different values: its source
	// settles them. At most ConflictsMax are named, by their names.
	Conflicts []VariableConflict `json:"conflicts,omitempty"`
}

// ConflictsMax is how many such variables the return of a group names.
const ConflictsMax = 64

// VariableConflict is a variable of which members of a group returned different values.
type VariableConflict struct {
	Name    string   `json:"name"`
	Tickets []string `json:"tickets"` // of the members that returned one, in their order
}

// ReturnAudit is what the work took.
type ReturnAudit struct {
	CompletionTime Time   `json:"completion_time,omitzero"`
	TokensConsumed int64  `json:"tokens_consumed,omitempty"`
	Notes          string `json:"notes,omitempty"`
}

// MemberReturn is the end of one member of a group. Without Closed it had not
// ended when the group's outcome was certain.
type MemberReturn struct {
	Agent  string       `json:"agent"`
	Ticket string       `json:"ticket"`
	LastID string       `json:"last_id,omitempty"` // as in Return
	Closed bool         `json:"closed"`
	Status ReturnStatus `json:"status,omitempty"`
	// Outcome tells apart what Status calls failed: a member that was cancelled, say.
	Outcome Outcome `json:"outcome,omitempty"`
	// Result is left out where all results together would be over
	// MemberResultsBytesMax: then it is read by Ticket.
	Result *Result `json:"result,omitempty"`
}

// MemberResultsBytesMax is how much of its members' results the return of a
// group carries, in bytes of JSON.
const MemberResultsBytesMax = 4 << 20

// TrailEntry is one thing that happened to a handoff before it came to its
// present agent: what the next one needs to know, and no more.
type TrailEntry struct {
	At    Time      `json:"at"`
	Event EventType `json:"event"` // rejected, conditioned, answered, escalated, rerouted, timed_out, lease_lost, failed, redriven
	Agent string    `json:"agent,omitempty"`
	To    string    `json:"to,omitempty"`
	Code  string    `json:"code,omitempty"` // reason code, clock, failure code
	Words string    `json:"words,omitempty"`
	// Assessment is what an agent that escalated had found out.
	Assessment string `json:"assessment,omitempty"`
	Level      int    `json:"level,omitempty"`
	// Progress is the last report of the attempt that ended with this entry.
	Progress *Progress `json:"progress,omitempty"`
}

// TrailMax is how many entries a trail has at most: the newest are kept.
const TrailMax = 100
