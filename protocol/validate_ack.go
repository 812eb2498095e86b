package protocol

import "fmt"

// Validate checks an acknowledgement: a refusal and a deferral need a reason, a
// conditional at least one condition, and an acceptance has none.
func (a Ack) Validate() error {
	if err := a.validate(); err != nil {
		return err
	}
	return nil
}

// CheckAckWithin checks the time to acknowledge that a claim asks for; 0 asks for none.
func CheckAckWithin(ms int64) error {
	if err := between("ack_within_ms", ms, 0, AckWithinMaxMS); err != nil {
		return err
	}
	return nil
}

func (a *Ack) validate() *Error {
	if err := required("status", string(a.Status)); err != nil {
		return err
	}
	if err := oneOf("status", a.Status, AckStatuses); err != nil {
		return err
	}
	if err := checkReason("reason", a.Reason); err != nil {
		return err
	}
	if err := optionalID("reason_code", a.ReasonCode); err != nil {
		return err
	}
	if err := optionalAgent("suggested_alternative", a.SuggestedAlternative); err != nil {
		return err
	}
	if err := between("retry_after_ms", a.RetryAfterMS, 0, RetryAfterMaxMS); err != nil {
		return err
	}
	if err := between("estimated_completion_ms", a.EstimatedCompletionMS, 0, EstimateMaxMS); err != nil {
		return err
	}
	if err := checkNeeds("needs_context", a.NeedsContext); err != nil {
		return err
	}
	if err := checkNeeds("needs_permission", a.NeedsPermission); err != nil {
		return err
	}
	if err := a.checkFit(); err != nil {
		return err
	}
	return wellFormed(ackShape, a)
}

// checkFit checks that the fields belong to the status.
func (a *Ack) checkFit() *Error {
	condition := ""
	switch {
	case len(a.NeedsContext) > 0:
		condition = "needs_context"
	case len(a.NeedsPermission) > 0:
		condition = "needs_permission"
	case a.RetryAfterMS > 0:
		condition = "retry_after_ms"
	}
	switch {
	case a.Status == AckConditional && condition == "retry_after_ms":
		if err := required("reason", a.Reason); err != nil {
			return Errorf(CodeMissing, "reason", "is missing or empty: a deferral says why")
		}
	case a.Status == AckConditional && condition == "":
		return Errorf(CodeMissing, "needs_context", "is missing: a conditional names at least one of needs_context, needs_permission and retry_after_ms")
	case a.Status != AckConditional && condition != "":
		return Errorf(CodeConflict, condition, "belongs to the status conditional; this one is %s", a.Status)
	case a.Status == AckRejected:
		if err := required("reason", a.Reason); err != nil {
			return Errorf(CodeMissing, "reason", "is missing or empty: a refusal says why")
		}
	case a.Status == AckAccepted && a.SuggestedAlternative != "":
		return Errorf(CodeConflict, "suggested_alternative", "belongs to a refusal; this one is accepted")
	}
	return nil
}

// Validate checks an answer: something must be given, and permit and deny
// exclude each other.
func (a Answer) Validate() error {
	if err := a.validate(); err != nil {
		return err
	}
	return nil
}

func (a *Answer) validate() *Error {
	if err := checkName("by", a.By); err != nil {
		return err
	}
	if err := CheckBy("by", a.By); err != nil {
		return err.(*Error)
	}
	size := len(a.Text)
	for name, value := range a.Variables {
		size += len(name) + len(value)
	}
	switch {
	case a.Question < 0 || a.Question > QuestionMax:
		return Errorf(CodeInvalid, "question", "must be from 1 to %d, not %d", QuestionMax, a.Question)
	case a.Permit && a.Deny:
		return Errorf(CodeConflict, "deny", "and permit exclude each other")
	case !a.Permit && !a.Deny && a.Text == "" && len(a.Variables) == 0:
		return Errorf(CodeMissing, "text", "is missing: an answer gives at least one of text, variables, permit and deny")
	case a.DenyReason != "" && !a.Deny:
		return Errorf(CodeConflict, "deny_reason", "is given without deny")
	case a.LetOthers && !a.Deny:
		return Errorf(CodeConflict, "let_others", "is given without deny")
	case size > AnswerBytesMax:
		return tooLarge("answer", size, AnswerBytesMax)
	}
	if err := checkReason("deny_reason", a.DenyReason); err != nil {
		return err
	}
	return wellFormed(answerShape, a)
}

// Validate checks a progress report: a percentage from 0 to 100, a message of
// at most ProgressMessageBytesMax, details of at most ProgressBytesMax.
func (p Progress) Validate() error {
	if err := p.validate(); err != nil {
		return err
	}
	return nil
}

func (p *Progress) validate() *Error {
	if !(p.Percent >= 0 && p.Percent <= 100) { // NaN is neither
		return Errorf(CodeInvalid, "percent", "must be from 0 to 100, not %g", p.Percent)
	}
	if n := len(p.Message); n > ProgressMessageBytesMax {
		return tooLarge("message", n, ProgressMessageBytesMax)
	}
	if n := len(p.Details); n > ProgressBytesMax {
		return tooLarge("details", n, ProgressBytesMax)
	}
	if err := p.Usage.validate("usage"); err != nil {
		return err
	}
	return wellFormed(progressShape, p)
}

func checkReason(field, reason string) *Error {
	if len(reason) > ReasonBytesMax {
		return tooLarge(field, len(reason), ReasonBytesMax)
	}
	return nil
}

func checkNeeds(field string, needs []string) *Error {
	if len(needs) > NeedsMax {
		return Errorf(CodeTooLarge, field, "lists %d needs, at most %d are allowed", len(needs), NeedsMax)
	}
	for i, need := range needs {
		at := fmt.Sprintf("%s[%d]", field, i)
		if err := required(at, need); err != nil {
			return err
		}
		if len(need) > NeedBytesMax {
			return tooLarge(at, len(need), NeedBytesMax)
		}
	}
	return nil
}
