package protocol

import "time"

// Normalize fills in what a package leaves to us: version, type (broadcast for
// several agents, else sequential), trigger (escalation for an escalation, else
// explicit_request), priority normal, and now as the time it was made. A
// delegation always expects a return. Instants become UTC.
func (p *Package) Normalize(now time.Time) {
	if p.Version == "" {
		p.Version = Version
	}
	if p.Type == "" {
		p.Type = Sequential
		if len(p.Target.Agents) > 0 {
			p.Type = Broadcast
		}
	}
	if p.Trigger == "" {
		p.Trigger = TriggerExplicitRequest
		if p.Type == Escalation {
			p.Trigger = TriggerEscalation
		}
	}
	if p.Priority == "" {
		p.Priority = Normal
	}
	if p.CreatedAt.IsZero() {
		p.CreatedAt = now.Truncate(time.Millisecond) // what people and logs can compare; and without the monotonic clock
	}
	p.CreatedAt = p.CreatedAt.UTC()
	if !p.Constraints.Deadline.IsZero() {
		p.Constraints.Deadline = p.Constraints.Deadline.UTC()
	}
	if p.Type == Delegation && p.Return != nil && !p.Return.Expected {
		own := *p.Return // the caller's stays as it is
		own.Expected = true
		p.Return = &own
	}
	if parent, err := ParseTicket(p.Parent); err == nil {
		p.Parent = parent
	}
	tidyPackage(p)
}

// Summarize is the part of a normalized package that the core works with. The
// package's own words on time become overrides of the policy: the work time
// is policy.work_timeout_ms, else expectations.timeout_ms, else
// return.timeout_ms; what follows it is policy.on_timeout, else return.on_timeout.
func (p Package) Summarize(digest string) Summary {
	s := Summary{
		Type: p.Type, Source: p.Source, Target: p.Target, Priority: p.Priority,
		Deadline: p.Constraints.Deadline, Parent: p.Parent,
		WorkflowID: p.Context.WorkflowID, TaskID: p.Task.ID,
		Requires: p.RequiredCapabilities, Risk: p.Audit.RiskLevel,
		Digest: digest, Overrides: p.Policy,
	}
	if p.Context.ConversationID != nil {
		s.ConversationID = *p.Context.ConversationID
	}
	o := &s.Overrides
	if o.WorkTimeoutMS == nil && p.Expectations.TimeoutMS > 0 {
		o.WorkTimeoutMS = &p.Expectations.TimeoutMS
	}
	if r := p.Return; r != nil {
		if o.WorkTimeoutMS == nil && r.TimeoutMS > 0 {
			timeout := r.TimeoutMS
			o.WorkTimeoutMS = &timeout
		}
		if o.OnTimeout == nil && r.OnTimeout != "" {
			action := r.OnTimeout
			o.OnTimeout = &action
		}
	}
	return s
}

// Normalize fills in what a result leaves to us: the status success, and the
// content type by the body: text for a JSON string, artifact_ref where there
// is no body but artifacts, else json.
func (r *Result) Normalize() {
	if r.Status == "" {
		r.Status = Success
	}
	if string(r.Body) == "null" {
		r.Body = nil
	}
	if r.ContentType != "" {
		return
	}
	switch {
	case first(r.Body) == '"':
		r.ContentType = ContentText
	case len(r.Body) > 0:
		r.ContentType = ContentJSON
	case !r.Artifacts.IsZero():
		r.ContentType = ContentArtifact
	}
}

// Content types of a result (document 1 §4.1).
const (
	ContentText     = "text"
	ContentJSON     = "json"
	ContentArtifact = "artifact_ref"
)
