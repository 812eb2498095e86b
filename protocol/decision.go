package protocol

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
)

// WorkDecision is a decision that the holder of a handoff makes during the work.
type WorkDecision struct {
	ID          string `json:"id,omitempty"` // absent is DecisionID of the description: the same words are the same decision
	Description string `json:"description"`
	Rationale   string `json:"rationale,omitempty"`
	Risk        Risk   `json:"risk"`
}

// Normalize fills in the id.
func (d *WorkDecision) Normalize() {
	if d.ID == "" {
		d.ID = DecisionID(d.Description)
	}
}

// Validate checks a decision as Normalize leaves it.
func (d WorkDecision) Validate() error {
	if err := d.validate(); err != nil {
		return err
	}
	return nil
}

func (d *WorkDecision) validate() *Error {
	if err := required("description", d.Description); err != nil {
		return err
	}
	if len(d.ID) > DecisionIDBytesMax {
		return tooLarge("id", len(d.ID), DecisionIDBytesMax)
	}
	if err := checkName("id", d.ID); err != nil {
		return err
	}
	for _, text := range []struct{ field, value string }{{"description", d.Description}, {"rationale", d.Rationale}} {
		if len(text.value) > ReasonBytesMax {
			return tooLarge(text.field, len(text.value), ReasonBytesMax)
		}
	}
	if d.Risk == "" {
		return Errorf(CodeMissing, "risk", "is missing: low, medium or high")
	}
	return oneOf("risk", d.Risk, Risks)
}

// DecisionID is the id of a decision that is given none.
func DecisionID(description string) string {
	sum := sha256.Sum256([]byte(description))
	return "d-" + hex.EncodeToString(sum[:6])
}

// AddDecisions adds to a context the decisions that were made during the work.
func (c *Context) AddDecisions(made []Decision) {
	for _, d := range made {
		if !slices.ContainsFunc(c.Decisions, func(other Decision) bool { return other.ID == d.ID }) {
			c.Decisions = append(slices.Clip(c.Decisions), d)
		}
	}
}
