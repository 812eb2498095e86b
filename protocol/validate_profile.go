package protocol

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
)

// Validate checks a profile: its ids, capabilities and limits.
func (p Profile) Validate() error {
	if err := cmp.Or(checkAgent("id", p.ID), checkName("name", p.Name),
		optionalID("specialization", p.Specialization), checkCapabilities(p.Capabilities),
		atMost("examples", len(p.Examples), examplesMax, "lists %d examples"),
		between("max_concurrency", p.MaxConcurrency, 0, ConcurrencyMax),
		between("max_execution_time_ms", p.MaxExecutionMS, 0, WorkTimeoutMaxMS),
		p.Price.validate("price"),
		oneOf("max_risk", p.MaxRisk, Risks),
		optionalAgent("escalates_to", p.EscalatesTo)); err != nil {
		return err
	}
	if p.EscalatesTo == p.ID {
		return Errorf(CodeConflict, "escalates_to", "is the agent itself")
	}
	return cmp.Or(checkPatterns("hands_to", p.HandsTo),
		checkPatterns("accepts_from", p.AcceptsFrom),
		oneOf("handoffs", p.Handoffs, HandoffModes),
		oneOf("on_barred", p.OnBarred, BarredModes),
		zeroOrBetween("poll_patience_ms", p.PollPatienceMS, pollPatienceMinMS, PollPatienceMaxMS),
		checkAmount("autonomy_budget", p.AutonomyBudget),
		oneOf("approve", p.Approve, Approves),
		p.Policy.validate("policy"),
		checkPatterns("scopes", p.Scopes),
		p.Breaker.validate("breaker"),
		p.Contract.validate("contract"),
		checkKeyLimits("limits_by", p.LimitsBy),
		between("max_context_tokens", p.MaxContextTokens, 0, TokensMax),
		wellFormed(&p), p.checkSize()).orNil()
}

func (p *Profile) checkSize() *Error {
	body, err := Marshal(p)
	if err != nil {
		return Errorf(CodeMalformed, "profile", "cannot be written: %v", err)
	}
	if len(body) > profileBytesMax {
		return tooLarge("profile", len(body), profileBytesMax)
	}
	return nil
}

func checkCapabilities(list []Capability) *Error {
	return checkNamed("capabilities", list, capabilitiesMax, "lists %d capabilities", func(c *Capability) *Error {
		return cmp.Or(checkID("id", c.ID), checkProficiency("proficiency", c.Proficiency))
	}, ".id", func(c *Capability) string { return c.ID })
}

// CheckAckWithin checks the requested time to acknowledge a claim; 0 requests none.
func CheckAckWithin(ms int64) error {
	return between("ack_within_ms", ms, 0, AckWithinMaxMS).orNil()
}

// CheckExtension checks the requested extension of the work.
func CheckExtension(ms int64) error {
	return between("extend_ms", ms, 1, ExtensionMaxMS).orNil()
}

// Validate checks an acknowledgement: a refusal and a deferral need a reason, a conditional at
// least one condition, and an acceptance has none.
func (a Ack) Validate() error {
	return cmp.Or(required("status", string(a.Status)), oneOf("status", a.Status, AckStatuses), checkReason("reason", a.Reason),
		optionalID("reason_code", a.ReasonCode), optionalAgent("suggested_alternative", a.SuggestedAlternative),
		between("retry_after_ms", a.RetryAfterMS, 0, RetryAfterMaxMS),
		between("estimated_completion_ms", a.EstimatedCompletionMS, 0, EstimateMaxMS),
		checkNeeds("needs_context", a.NeedsContext),
		checkNeeds("needs_permission", a.NeedsPermission),
		a.checkFit(),
		wellFormed(&a)).orNil()
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
	case a.Status == AckConditional && condition == "retry_after_ms" && strings.TrimSpace(a.Reason) == "":
		return Errorf(CodeMissing, "reason", "is missing or empty: a deferral needs a reason")
	case a.Status == AckConditional && condition == "":
		return Errorf(CodeMissing, "needs_context", "is missing: a conditional names at least one of needs_context, needs_permission and retry_after_ms")
	case a.Status != AckConditional && condition != "":
		return Errorf(CodeConflict, condition, "belongs to the status conditional; this one is %s", a.Status)
	case a.Status == AckRejected && strings.TrimSpace(a.Reason) == "":
		return Errorf(CodeMissing, "reason", "is missing or empty: a refusal needs a reason")
	case a.Status == AckAccepted && a.SuggestedAlternative != "":
		return Errorf(CodeConflict, "suggested_alternative", "belongs to a refusal; this one is accepted")
	}
	return nil
}

// Validate checks an answer: it must not be empty, and permit and deny exclude each other.
func (a Answer) Validate() error {
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
	case size > answerBytesMax:
		return tooLarge("answer", size, answerBytesMax)
	}
	return cmp.Or(checkReason("deny_reason", a.DenyReason), wellFormed(&a)).orNil()
}

// Validate checks a progress report: a percentage from 0 to 100, a message of at most
// ProgressMessageBytesMax, details of at most ProgressBytesMax.
func (p Progress) Validate() error {
	if !(p.Percent >= 0 && p.Percent <= 100) { // NaN is neither
		return Errorf(CodeInvalid, "percent", "must be from 0 to 100, not %g", p.Percent)
	}
	return cmp.Or(notLonger("message", p.Message, ProgressMessageBytesMax), notLonger("details", p.Details, ProgressBytesMax),
		p.Usage.validate("usage"), wellFormed(&p)).orNil()
}

func checkReason(field, reason string) *Error { return notLonger(field, reason, ReasonBytesMax) }

// notLonger refuses a text of more than so many bytes.
func notLonger[T ~string | ~[]byte](field string, text T, most int) *Error {
	if len(text) > most {
		return tooLarge(field, len(text), most)
	}
	return nil
}

func checkNeeds(field string, needs []string) *Error {
	return checkList(field, needs, needsMax, "lists %d needs", func(need *string) *Error {
		return cmp.Or(required("", *need), notLonger("", *need, NeedBytesMax))
	})
}

// Validate checks a normalized result: its status and content type, that a text is text, counts,
// artifacts and the command. Package schema checks the body against the package's output schema.
func (r *Result) Validate() error {
	if err := cmp.Or(oneOf("status", r.Status, ResultStatuses), oneOf("content_type", r.ContentType, ContentTypes)); err != nil {
		return err
	}
	if r.ContentType == ContentText && len(r.Body) > 0 && first(r.Body) != '"' {
		return Errorf(CodeInvalid, "body", "must be text in quotes, since content_type is text")
	}
	if err := cmp.Or(r.Usage.validate("usage"),
		between("iterations", r.Iterations, 0, IterationsMax),
		checkArtifacts("artifacts", r.Artifacts),
		wellFormed(r)); err != nil {
		return err
	}
	if r.Command == nil {
		return nil
	}
	if _, err := r.Command.Targets(); err != nil {
		return err
	}
	if c := first(r.Command.Update); c != 0 && c != '{' && c != 'n' {
		return Errorf(CodeInvalid, "command.update", "must be an object")
	}
	return r.Command.validateAwait().orNil()
}

// Goto is one agent that a command names, or one capability, with its own update.
type Goto struct {
	Agent      string          `json:"agent,omitempty"`
	Capability string          `json:"capability,omitempty"`
	Update     json.RawMessage `json:"update,omitempty"`
}

// Targets parses Goto: a name, an object with agent or capability and update, or a list of these.
// It removes the quotes, blanks and full stops that models put around names. The error is a
// *protocol.Error.
func (c Command) Targets() ([]Goto, error) {
	var list []json.RawMessage
	switch first(c.Goto) {
	case 0, 'n':
		return nil, nil
	case '[':
		if err := json.Unmarshal(c.Goto, &list); err != nil {
			return nil, Errorf(CodeMalformed, "command.goto", "cannot be read: %v", err)
		}
	default:
		list = append(list, c.Goto)
	}
	if len(list) > gotoMax {
		return nil, Errorf(CodeTooLarge, "command.goto", "names %d agents, at most %d are allowed", len(list), gotoMax)
	}
	targets := make([]Goto, len(list))
	for i, raw := range list {
		field := "command.goto"
		if first(c.Goto) == '[' {
			field = fmt.Sprintf("command.goto[%d]", i)
		}
		var err error
		switch first(raw) {
		case '"':
			err = json.Unmarshal(raw, &targets[i].Agent)
		case '{':
			err = decodeStrict(raw, field, ResultBytesMax, 0, &targets[i])
		default:
			err = fmt.Errorf("neither a name nor an object with agent")
		}
		if err != nil {
			return nil, Errorf(CodeInvalid, field, "must be the name of an agent, or an object with agent or capability, and update: %v", err)
		}
		if err := targets[i].check(field); err != nil {
			return nil, err
		}
	}
	return targets, nil
}

func (to *Goto) check(field string) *Error {
	switch {
	case to.Capability == "":
		to.Agent = bareName(to.Agent)
		return checkSpelled(field, to.Agent)
	case to.Agent != "":
		return Errorf(CodeConflict, field, "names an agent and a capability; give one of them")
	}
	return checkID(field+".capability", to.Capability)
}

// bareName removes the punctuation that models put around a name: no id has any.
func bareName(name string) string { return strings.Trim(name, " \t\r\n\"'`.“”‘’") }

// checkSpelled checks a name that a result gives. Blanks may be within it: see SpelledAlike.
func checkSpelled(field, name string) *Error {
	if checkAgent(field, strings.Join(strings.Fields(name), "-")) == nil {
		return nil
	}
	return checkAgent(field, name)
}

// SpelledAlike reports whether two names differ in nothing but case, blanks, hyphens and underscores.
func SpelledAlike(a, b string) bool { return spelling(a) == spelling(b) }

func spelling(name string) string {
	return strings.Map(func(r rune) rune {
		if r == ' ' || r == '-' || r == '_' {
			return -1
		}
		return unicode.ToLower(r)
	}, name)
}
