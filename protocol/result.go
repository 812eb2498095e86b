package protocol

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
)

// ResultStatus is how well the work went.
type ResultStatus string

const (
	Success ResultStatus = "success"
	Partial ResultStatus = "partial"
)

// Result is the answer of a worker.
type Result struct {
	Status      ResultStatus               `json:"status,omitempty"`             // default success
	ContentType string                     `json:"content_type,omitempty"`       // text, json or artifact_ref; default by body
	Body        json.RawMessage            `json:"body,omitempty" redact:"free"` // any JSON; text is a JSON string
	Summary     string                     `json:"summary,omitempty" redact:"text"`
	Artifacts   Artifacts                  `json:"artifacts,omitzero"`
	Variables   map[string]json.RawMessage `json:"variables,omitempty" redact:"free"` // the changed ones
	Usage       *Usage                     `json:"usage,omitempty"`                   // of the whole attempt
	Iterations  int                        `json:"iterations,omitempty"`
	Notes       string                     `json:"notes,omitempty" redact:"text"`
	// SetAside describes the part of a program's output that did not go into the result unchanged.
	SetAside string `json:"set_aside,omitempty" redact:"text"`
	// Malformed means that the body is the output of a program that tried to write a result: it
	// describes the error and its place. The attempt has failed with it.
	Malformed string   `json:"malformed,omitempty" redact:"text"`
	Command   *Command `json:"command,omitempty"`
}

// Command asks for a further handoff. Goto is a name, a list of names, or a list of objects with
// agent and update: see Continue. Await is a list of objects with agent and task, which the work
// waits for: all of them, any, or a majority (Await).
type Command struct {
	Goto   json.RawMessage `json:"goto,omitempty" redact:"free"`
	Update json.RawMessage `json:"update,omitempty" redact:"free"`
	Await  json.RawMessage `json:"await,omitempty" redact:"free"`
	For    Aggregation     `json:"for,omitempty"` // default all
}

// AckStatus is the target's answer to an offer.
type AckStatus string

const (
	AckAccepted    AckStatus = "accepted"
	AckRejected    AckStatus = "rejected"
	AckConditional AckStatus = "conditional"
)

// ReasonUnreadable is why an agent refuses a handoff whose package is missing or unreadable.
const ReasonUnreadable = "unreadable"

// Ack is a target's acknowledgement of an offer. A rejection needs a reason; a conditional needs at
// least one condition. With only RetryAfterMS it defers the offer, which needs a reason but no
// answer. EstimatedCompletionMS is counted from the acceptance.
type Ack struct {
	Status                AckStatus `json:"status"`
	Reason                string    `json:"reason,omitempty" flag:"reason" doc:"why; required for rejected"`
	ReasonCode            string    `json:"reason_code,omitempty" flag:"reason-code" doc:"the reason as a word to count by, such as capability_mismatch"` // a token
	SuggestedAlternative  string    `json:"suggested_alternative,omitempty" flag:"alternative" doc:"rejected: the agent that fits better"`
	NeedsContext          []string  `json:"needs_context,omitempty" flag:"needs-context,,each" doc:"conditional: {WHAT} must be known first (repeatable)"`
	NeedsPermission       []string  `json:"needs_permission,omitempty" flag:"needs-permission,,each" doc:"conditional: {WHAT} must be allowed first (repeatable)"`
	RetryAfterMS          int64     `json:"retry_after_ms,omitempty" flag:"retry-after" doc:"conditional: offer it again after this"`
	EstimatedCompletionMS int64     `json:"estimated_completion_ms,omitempty" flag:"estimate" doc:"how long the work takes; conditional: once the conditions are met"`
}

// QuestionMax bounds the number of a question.
const QuestionMax = 1_000_000

// Answer is the answer of the source, or of a person, to a conditional: a supplement, a permission
// or a denial.
type Answer struct {
	By string `json:"by,omitempty" redact:"-"`
	// Question is the number of the answered question: State.OpenQuestion when it was read.
	Question   int                        `json:"question,omitempty" flag:"question" doc:"the number {N} of the question that it answers (default: the open one)"`
	Text       string                     `json:"text,omitempty" redact:"text" flag:"text" doc:"the answer in words"`
	Variables  map[string]json.RawMessage `json:"variables,omitempty" redact:"free"`
	Permit     bool                       `json:"permit,omitempty" flag:"permit" doc:"give the permission that is asked for"`
	Deny       bool                       `json:"deny,omitempty" flag:"deny" doc:"deny it, for good"`
	DenyReason string                     `json:"deny_reason,omitempty" redact:"text" flag:"reason" doc:"why it is denied"`
	// LetOthers turns a denial into a refusal by the denied agent: another agent, or the next
	// authority, gets the handoff. Otherwise a denial is final.
	LetOthers bool `json:"let_others,omitempty" flag:"let-others" doc:"of a denial: another agent, or the next authority, may decide"`
}

// Progress is a report from within the work.
type Progress struct {
	Percent float64         `json:"percent,omitempty" flag:"percent" doc:"how much is done, 0 to 100"`
	Message string          `json:"message,omitempty" redact:"text" flag:"message" doc:"in words"`
	Details json.RawMessage `json:"details,omitempty" redact:"free"`
	Usage   *Usage          `json:"usage,omitempty"` // of the attempt so far
}

// WorkDecision is a decision that the holder of a handoff makes during the work.
type WorkDecision struct {
	// ID is decisionID of the description if absent, so that equal words are the same decision.
	ID          string `json:"id,omitempty" flag:"id" doc:"{ID} of the decision, your own, at most 128 bytes (default: made of its words)"`
	Description string `json:"description" flag:"what" doc:"{WHAT} is decided; required"`
	Rationale   string `json:"rationale,omitempty" flag:"rationale" doc:"{WHY} it is decided so"`
	Risk        Risk   `json:"risk" flag:"risk" doc:"the {RISK} of it: low, medium or high; required"`
}

// Normalize fills in the id.
func (d *WorkDecision) Normalize() {
	if d.ID == "" {
		d.ID = decisionID(d.Description)
	}
}

// Validate checks a normalized decision.
func (d WorkDecision) Validate() error {
	if err := cmp.Or(required("description", d.Description),
		notLonger("id", d.ID, DecisionIDBytesMax), checkName("id", d.ID),
		checkReason("description", d.Description), checkReason("rationale", d.Rationale)); err != nil {
		return err
	}
	if d.Risk == "" {
		return Errorf(CodeMissing, "risk", "is missing: low, medium or high")
	}
	return oneOf("risk", d.Risk, Risks).orNil()
}

// decisionID returns the id of a decision without one.
func decisionID(description string) string {
	sum := sha256.Sum256([]byte(description))
	return "d-" + hex.EncodeToString(sum[:6])
}

// AddDecisions adds decisions of the work to a context.
func (c *Context) AddDecisions(made []Decision) {
	for _, d := range made {
		if !slices.ContainsFunc(c.Decisions, func(other Decision) bool { return other.ID == d.ID }) {
			c.Decisions = append(slices.Clip(c.Decisions), d)
		}
	}
}

// Supplement merges the variables of answers over those of a package, in order. The package's own
// map is not changed.
func (p *Package) Supplement(answers []Answer) {
	own := false
	for _, a := range answers {
		if len(a.Variables) == 0 {
			continue
		}
		if !own {
			p.Context.Variables, own = maps.Clone(p.Context.Variables), true
			if p.Context.Variables == nil {
				p.Context.Variables = map[string]json.RawMessage{}
			}
		}
		maps.Copy(p.Context.Variables, a.Variables)
	}
}

// Vote is the vote of a member of a group.
type Vote string

const (
	VoteYes Vote = "yes"
	VoteNo  Vote = "no"
)

// Vote returns the vote in the body of a result: {"vote": "yes"} or {"vote": "no"}. It is empty
// without one.
func (r *Result) Vote() Vote {
	var body struct {
		Vote Vote `json:"vote"`
	}
	if len(r.Body) == 0 || r.Body[0] != '{' || json.Unmarshal(r.Body, &body) != nil {
		return ""
	}
	switch body.Vote {
	case VoteYes, VoteNo:
		return body.Vote
	}
	return ""
}
