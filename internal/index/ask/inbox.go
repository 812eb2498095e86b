package ask

import (
	"time"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

const (
	// registeredMax bounds WaitingQuery.Registered, and Below.
	registeredMax = 10_000
	// bucketsMax bounds the buckets of a series.
	bucketsMax = 1_000
)

// WaitingQuery asks for the inbox of an agent or a person, in the order of submission.
type WaitingQuery struct {
	Question
	Agent string `json:"agent"`
	// Registered are the agents that can answer (lifecycle.Answering). A question whose source is none
	// of them is in the inbox of protocol.Human; for any other agent Registered is not needed.
	Registered []string `json:"registered,omitempty"`
	// Below are the agents that Agent is above: their approvals are in its inbox too.
	Below  []string `json:"below,omitempty"`
	Limit  int      `json:"limit,omitempty"` // 0 is PageDefault
	Cursor string   `json:"cursor,omitempty"`
	// Count asks for the number of handoffs in place of the handoffs, up to CountedMax; with Free, only
	// of those that no worker has.
	Count bool `json:"count,omitempty"`
	Free  bool `json:"free,omitempty"`
}

// CountedMax is how many handoffs of an inbox are counted at most.
const CountedMax = 10_000

// WaitingAnswer is a page of an inbox, or its number of handoffs.
type WaitingAnswer struct {
	Position
	Handoffs []WaitingRow  `json:"handoffs"`
	Cursor   string        `json:"cursor,omitempty"`  // of the next page; empty at the end
	Counted  int           `json:"counted,omitempty"` // over CountedMax: there are more
	Since    protocol.Time `json:"since,omitzero"`    // of the counted ones, the one that changed first
}

// WaitingRow is a handoff with the reason for which the inbox lists it.
type WaitingRow struct {
	Row
	Inbox lifecycle.InboxReason `json:"why"`
}

// DeadQuery asks for dead letters (lifecycle.DeadLetter), the last to close first.
type DeadQuery struct {
	Question
	Agent    string           `json:"agent,omitempty" flag:"agent" doc:"only those that ended at this {AGENT}"`
	Source   string           `json:"source,omitempty" flag:"source" doc:"only those from {AGENT}, schedule:NAME or signal:NAME"`
	Outcome  protocol.Outcome `json:"outcome,omitempty" flag:"outcome" doc:"only those with this {OUTCOME}: failed, timeout, rejected, cancelled, rolled_back"`
	Since    protocol.Time    `json:"since,omitzero" flag:"since" doc:"only those that closed since {WHEN}: an instant, or a duration ago (2h, 3d)"`
	Redriven bool             `json:"redriven,omitempty"` // include those that were redriven
	Limit    int              `json:"limit,omitempty" flag:"limit" doc:"only the {N} that closed last (default: all)"`
	Cursor   string           `json:"cursor,omitempty"`
}

// Selects reports whether a dead letter is one of those that the query asks for.
func (q DeadQuery) Selects(s protocol.State) bool {
	switch {
	case q.Agent != "" && s.Agent != q.Agent,
		q.Source != "" && s.Source != q.Source && s.From() != q.Source,
		q.Outcome != "" && s.Outcome != q.Outcome,
		s.ClosedAt.Before(q.Since),
		s.RedrivenAs != "" && !q.Redriven:
		return false
	}
	return true
}

// DeadAnswer is a page of dead letters.
type DeadAnswer struct {
	Position
	Handoffs []Row  `json:"handoffs"`
	Cursor   string `json:"cursor,omitempty"` // of the next page; empty at the end
}

// SeriesQuery asks for counts and durations over time, in buckets of BucketMS.
type SeriesQuery struct {
	Question
	Filter   Filter        `json:"filter"`
	Since    protocol.Time `json:"since"`
	Until    protocol.Time `json:"until"`
	BucketMS int64         `json:"bucket_ms"`
	// Counts asks for no durations. Whole hours of all handoffs are then read from a table of them.
	Counts bool `json:"counts,omitempty"`
}

// SeriesAnswer has every bucket from Since to Until, empty ones included.
type SeriesAnswer struct {
	Position
	Buckets []Bucket `json:"buckets"`
}

// Bucket counts the events from Since on, up to the next bucket.
type Bucket struct {
	Since     protocol.Time `json:"since"`
	Submitted int64         `json:"submitted"`
	Succeeded int64         `json:"succeeded"` // closed with success or partial
	Failed    int64         `json:"failed"`    // closed with any other outcome
	Whole     Durations     `json:"whole_ms"`  // submitted to closed, of the closed ones
}

// Validate refuses an inbox that no agent can have. Its errors are *protocol.Error.
func (q WaitingQuery) Validate() error {
	if err := protocol.CheckID("agent", q.Agent); err != nil {
		return err
	}
	for field, agents := range map[string][]string{"registered": q.Registered, "below": q.Below} {
		if len(agents) > registeredMax {
			return protocol.Errorf(protocol.CodeTooLarge, field, "has %d agents, at most %d are allowed", len(agents), registeredMax)
		}
	}
	return checkLimit(q.Limit)
}

// Validate refuses filters that no dead letter can pass. Its errors are *protocol.Error.
func (q DeadQuery) Validate() error {
	if q.Agent != "" {
		if err := protocol.CheckID("agent", q.Agent); err != nil {
			return err
		}
	}
	if q.Source != "" {
		if err := CheckFrom("source", q.Source); err != nil {
			return err
		}
	}
	if q.Outcome != "" {
		if err := oneOf("outcome", []protocol.Outcome{q.Outcome}, protocol.Outcomes); err != nil {
			return err
		}
	}
	return checkLimit(q.Limit)
}

// Validate refuses a series without a span, or with too many buckets. Its errors are
// *protocol.Error.
func (q SeriesQuery) Validate() error {
	span := q.Until.Sub(q.Since)
	switch {
	case q.Since.IsZero():
		return protocol.Errorf(protocol.CodeMissing, "since", "is missing: a series has a beginning")
	case span <= 0:
		return protocol.Errorf(protocol.CodeInvalid, "until", "must be after since")
	case q.BucketMS < 1:
		return protocol.Errorf(protocol.CodeInvalid, "bucket_ms", "must be 1 or more, not %d", q.BucketMS)
	case q.BucketMS < int64(span/time.Millisecond+bucketsMax-1)/bucketsMax:
		return protocol.Errorf(protocol.CodeTooLarge, "bucket_ms", "makes more than %d buckets from since to until", bucketsMax)
	}
	return q.Filter.Validate()
}

func checkLimit(limit int) error {
	if limit < 0 || limit > PageMax {
		return protocol.Errorf(protocol.CodeInvalid, "limit", "must be from 1 to %d, not %d", PageMax, limit)
	}
	return nil
}
