package protocol

// Interim: stands only until decode.go, validate.go and redact.go land. Delete
// this file and protocol/schema/interim.go when they do.

import (
	"encoding/json"
	"time"
	"unicode/utf8"
)

const (
	PackageBytesMax = 64 << 20
	ResultBytesMax  = 64 << 20
	InlineBytesMax  = 256 << 10
	FailureBytesMax = 16 << 10
)

var DefaultRedactions = []string{}

type Redactor struct{}

func NewRedactor(patterns []string) (*Redactor, error) { return &Redactor{}, nil }
func (r *Redactor) Redact(body []byte) ([]byte, int)   { return body, 0 }
func EncodePackage(p Package) ([]byte, error)          { return marshal(p) }
func EncodeResult(r Result) ([]byte, error)            { return marshal(r) }
func DecodePackage(body []byte) (p Package, err error) { return p, json.Unmarshal(body, &p) }
func DecodeResult(body []byte) (r Result, err error)   { return r, json.Unmarshal(body, &r) }
func DecodeAck(body []byte) (a Ack, err error)         { return a, json.Unmarshal(body, &a) }
func DecodeAnswer(body []byte) (a Answer, err error)   { return a, json.Unmarshal(body, &a) }
func DecodeProfile(body []byte) (p Profile, err error) { return p, json.Unmarshal(body, &p) }
func (r *Result) Normalize() {
	if r.Status == "" {
		r.Status = Success
	}
}
func (r Result) Validate() error   { return nil }
func (a Ack) Validate() error      { return nil }
func (a Answer) Validate() error   { return nil }
func (p Profile) Validate() error  { return nil }
func (p Progress) Validate() error { return nil }
func (t Target) String() string {
	if t.Agent != "" {
		return t.Agent
	}
	return t.Capability
}
func (p *Package) Normalize(now time.Time) {
	if p.Version == "" {
		p.Version = Version
	}
	if p.Type == "" {
		p.Type = Sequential
	}
	if p.Priority == "" {
		p.Priority = Normal
	}
	if p.Trigger == "" {
		p.Trigger = TriggerExplicitRequest
	}
	if p.CreatedAt.IsZero() {
		p.CreatedAt = now
	}
}
func (p Package) Validate(now time.Time) error {
	if p.Source == "" {
		return Errorf(CodeMissing, "source", "is missing or empty")
	}
	return nil
}
func (p Package) Summarize(digest string) Summary {
	s := Summary{Type: p.Type, Source: p.Source, Target: p.Target, Priority: p.Priority, Deadline: p.Constraints.Deadline,
		Parent: p.Parent, WorkflowID: p.Context.WorkflowID, TaskID: p.Task.ID, Requires: p.RequiredCapabilities,
		Risk: p.Audit.RiskLevel, Digest: digest, Overrides: p.Policy}
	if p.Context.ConversationID != nil {
		s.ConversationID = *p.Context.ConversationID
	}
	if ms := p.Expectations.TimeoutMS; ms > 0 && s.Overrides.WorkTimeoutMS == nil {
		s.Overrides.WorkTimeoutMS = &ms
	}
	return s
}
func set[T any](to *T, from *T) {
	if from != nil {
		*to = *from
	}
}
func (p Policy) With(o PolicyOverrides) Policy {
	set(&p.AckTimeoutMS, o.AckTimeoutMS)
	set(&p.QueueTimeoutMS, o.QueueTimeoutMS)
	set(&p.WorkTimeoutMS, o.WorkTimeoutMS)
	set(&p.ReminderPercent, o.ReminderPercent)
	set(&p.OnTimeout, o.OnTimeout)
	set(&p.MaxAttempts, o.MaxAttempts)
	set(&p.BackoffBaseMS, o.BackoffBaseMS)
	set(&p.BackoffCapMS, o.BackoffCapMS)
	set(&p.BackoffSpreadPct, o.BackoffSpreadPct)
	set(&p.MaxReroutes, o.MaxReroutes)
	set(&p.OnNoTaker, o.OnNoTaker)
	set(&p.MaxEscalations, o.MaxEscalations)
	set(&p.ConditionTimeoutMS, o.ConditionTimeoutMS)
	set(&p.MaxConditions, o.MaxConditions)
	set(&p.CancelGraceMS, o.CancelGraceMS)
	return p
}
func (a Artifacts) IsZero() bool { return a.List == nil && a.ByName == nil }
func (a Artifacts) MarshalJSON() ([]byte, error) {
	if a.ByName != nil {
		return marshal(a.ByName)
	}
	return marshal(a.List)
}
func (a *Artifacts) UnmarshalJSON(b []byte) error {
	if json.Unmarshal(b, &a.List) == nil {
		return nil
	}
	return json.Unmarshal(b, &a.ByName)
}
func ResultFromOutput(stdout []byte) Result {
	if json.Valid(stdout) {
		return Result{Status: Success, ContentType: "json", Body: stdout}
	}
	body, _ := marshal(string(stdout))
	return Result{Status: Success, ContentType: "text", Body: body}
}
func Printable(s string) string { return s }
func CutText(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}

