package protocol

import "encoding/json"

// ResultStatus is how well the work went.
type ResultStatus string

const (
	Success ResultStatus = "success"
	Partial ResultStatus = "partial"
)

// Result is what a worker answers with.
type Result struct {
	Status      ResultStatus               `json:"status,omitempty"`       // default success
	ContentType string                     `json:"content_type,omitempty"` // text, json or artifact_ref; default by body
	Body        json.RawMessage            `json:"body,omitempty"`         // any JSON; text is a JSON string
	Summary     string                     `json:"summary,omitempty"`
	Artifacts   Artifacts                  `json:"artifacts,omitzero"`
	Variables   map[string]json.RawMessage `json:"variables,omitempty"` // those that changed
	Usage       *Usage                     `json:"usage,omitempty"`     // of the whole attempt
	Iterations  int                        `json:"iterations,omitempty"`
	Notes       string                     `json:"notes,omitempty"`
	// SetAside says what of a program's output did not go into the result, or not as it came.
	SetAside string `json:"set_aside,omitempty"`
	// Malformed says that this is no result: the body is the output of a program that tried to
	// give one, and this is what is wrong with it, and where. The attempt has failed with it.
	Malformed string   `json:"malformed,omitempty"`
	Command   *Command `json:"command,omitempty"`
}

// Command asks for a further handoff. Goto is a name, a list of
// names, or a list of objects with agent and update: see Continue. Await is a list of objects
// with agent and task, which the work waits for: all of them, any, or a majority (Await).
type Command struct {
	Goto   json.RawMessage `json:"goto,omitempty"`
	Update json.RawMessage `json:"update,omitempty"`
	Await  json.RawMessage `json:"await,omitempty"`
	For    Aggregation     `json:"for,omitempty"` // default all
}

// AckStatus is the target's answer to an offer.
type AckStatus string

const (
	AckAccepted    AckStatus = "accepted"
	AckRejected    AckStatus = "rejected"
	AckConditional AckStatus = "conditional"
)

// ReasonUnreadable is why an agent refuses a handoff whose package is gone, or can't be
// read.
const ReasonUnreadable = "unreadable"

// Ack is a target's acknowledgement of an offer. A rejection
// needs a reason; a conditional needs at least one of its conditions. With
// RetryAfterMS alone it defers the offer, which needs a reason too and
// no answer. EstimatedCompletionMS is counted from the acceptance.
type Ack struct {
	Status                AckStatus `json:"status"`
	Reason                string    `json:"reason,omitempty"`
	ReasonCode            string    `json:"reason_code,omitempty"` // e.g. capability_mismatch; a token
	SuggestedAlternative  string    `json:"suggested_alternative,omitempty"`
	NeedsContext          []string  `json:"needs_context,omitempty"`
	NeedsPermission       []string  `json:"needs_permission,omitempty"`
	RetryAfterMS          int64     `json:"retry_after_ms,omitempty"`
	EstimatedCompletionMS int64     `json:"estimated_completion_ms,omitempty"`
}

// QuestionMax bounds the number of a question.
const QuestionMax = 1_000_000

// Answer is what the source, or a person, says to a conditional: a supplement,
// a permission or a denial.
type Answer struct {
	By string `json:"by,omitempty" redact:"-"`
	// Question is the number of the question that it answers: State.OpenQuestion when it was read.
	Question   int                        `json:"question,omitempty"`
	Text       string                     `json:"text,omitempty" redact:"text"`
	Variables  map[string]json.RawMessage `json:"variables,omitempty" redact:"free"`
	Permit     bool                       `json:"permit,omitempty"`
	Deny       bool                       `json:"deny,omitempty"`
	DenyReason string                     `json:"deny_reason,omitempty" redact:"text"`
	// LetOthers makes of a denial a refusal by the agent that is denied: another agent, or
	// the next authority, gets the handoff. Else a denial is final.
	LetOthers bool `json:"let_others,omitempty"`
}

// Progress is a report from within the work.
type Progress struct {
	Percent float64         `json:"percent,omitempty"` // 0 to 100
	Message string          `json:"message,omitempty" redact:"text"`
	Details json.RawMessage `json:"details,omitempty" redact:"free"`
	Usage   *Usage          `json:"usage,omitempty"` // of the attempt so far
}
