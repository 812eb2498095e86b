package protocol

import (
	"fmt"
	"strings"
)

// Approve is which handoffs to an agent a person or an authority approves first: all, none, or those
// of a risk or above it. A handoff without a risk is among them.
type Approve string

const (
	ApproveAlways Approve = "always"
	ApproveLow    Approve = Approve(RiskLow)
	ApproveMedium Approve = Approve(RiskMedium)
	ApproveHigh   Approve = Approve(RiskHigh)
	ApproveNever  Approve = "never" // the profile asks for none; absent is the same
)

// Approves are all of them.
var Approves = []Approve{ApproveAlways, ApproveLow, ApproveMedium, ApproveHigh, ApproveNever}

// ApprovalRule is a rule of the fleet: what it fits is approved before an agent gets it.
type ApprovalRule struct {
	Name      string          `json:"name"`
	If        ApprovalWhen    `json:"if,omitzero"`  // all of it; nothing fits everything
	By        string          `json:"by,omitempty"` // the approver; absent is the package's
	TimeoutMS int64           `json:"timeout_ms,omitempty"`
	OnTimeout ApprovalTimeout `json:"on_timeout,omitempty"`
}

// ApprovalWhen is what a rule fits.
type ApprovalWhen struct {
	MinRisk    Risk   `json:"min_risk,omitempty"`
	Source     string `json:"source,omitempty"` // an id of an agent, or the beginning of some: prefix*
	Target     string `json:"target,omitempty"` // the same, of the agent that gets it
	Capability string `json:"capability,omitempty"`
	Type       Type   `json:"type,omitempty"`
	Complexity string `json:"complexity,omitempty"` // the class of the package
	// MinTokens fits what may use so many tokens: one whose limit is not below, or that has none.
	MinTokens int64 `json:"min_tokens,omitempty"`
}

// Fits tells whether a rule is about what one agent hands off to another.
func (w *ApprovalWhen) Fits(source, target string) bool {
	return (w.Source == "" || matchesAny([]string{w.Source}, source)) && (w.Target == "" || matchesAny([]string{w.Target}, target))
}

// checkApproval checks what a package says of its approval.
func checkApproval(a *Approval) *Error {
	if a == nil {
		return nil
	}
	if err := optionalID("approval.by", a.By); err != nil {
		return err
	}
	if len(a.Question) > QuestionBytesMax {
		return tooLarge("approval.question", len(a.Question), QuestionBytesMax)
	}
	if i := strings.IndexFunc(a.Question, func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' && r != 0 }); i >= 0 { // the state keeps it
		return Errorf(CodeInvalid, "approval.question", "has a control character at byte %d", i)
	}
	return checkApprovalTime("approval.", a.TimeoutMS, a.OnTimeout)
}

func checkApprovalTime(field string, ms int64, on ApprovalTimeout) *Error {
	if ms != 0 {
		if err := between(field+"timeout_ms", ms, ApprovalTimeoutMinMS, ApprovalTimeoutMaxMS); err != nil {
			return err
		}
	}
	return oneOf(field+"on_timeout", on, ApprovalTimeouts)
}

func checkApprovalRules(rules []ApprovalRule) *Error {
	if n := len(rules); n > ApprovalRulesMax {
		return Errorf(CodeTooLarge, "approvals", "lists %d rules, at most %d are allowed", n, ApprovalRulesMax)
	}
	seen := map[string]bool{}
	for i, r := range rules {
		if err := r.check(); err != nil {
			return err.below(fmt.Sprintf("approvals[%d]", i))
		}
		if seen[r.Name] {
			return Errorf(CodeConflict, fmt.Sprintf("approvals[%d].name", i), "names %s a second time", r.Name)
		}
		seen[r.Name] = true
	}
	return nil
}

// check checks what a rule fits. at is the beginning of its fields.
func (w *ApprovalWhen) check(at string) *Error {
	if err := oneOf(at+"min_risk", w.MinRisk, Risks); err != nil {
		return err
	}
	for _, pattern := range []struct{ field, value string }{{at + "source", w.Source}, {at + "target", w.Target}} {
		if pattern.value != "" {
			if err := checkPattern(pattern.field, pattern.value); err != nil {
				return err
			}
		}
	}
	if err := optionalID(at+"capability", w.Capability); err != nil {
		return err
	}
	if err := oneOf(at+"type", w.Type, Types); err != nil {
		return err
	}
	if err := oneOf(at+"complexity", w.Complexity, Complexities); err != nil {
		return err
	}
	return between(at+"min_tokens", w.MinTokens, 0, TokensMax)
}

func (r *ApprovalRule) check() *Error {
	if err := checkID("name", r.Name); err != nil {
		return err
	}
	if err := r.If.check("if."); err != nil {
		return err
	}
	if err := optionalID("by", r.By); err != nil {
		return err
	}
	return checkApprovalTime("", r.TimeoutMS, r.OnTimeout)
}
