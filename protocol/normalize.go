package protocol

import (
	"cmp"
	"time"
)

// Normalize fills in what a package leaves to us: version, type (broadcast for
// several agents or members, else sequential), trigger (escalation for an
// escalation, else explicit_request), priority normal, and now as the time it was
// made. A delegation and an escalation always expect a return. Instants become UTC.
func (p *Package) Normalize(now time.Time) {
	if p.Version == "" {
		p.Version = Version
	}
	if p.Type == "" {
		p.Type = Sequential
		if p.GroupSize() > 0 {
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
	p.expectReturn()
	if p.Parent != "" {
		if parent, err := ParseTicket(p.Parent); err == nil {
			p.Parent = parent
		}
	}
	tidyPackage(p)
}

// expectReturn makes explicit what the type implies. A
// delegation without a return protocol is left as it is: it has not said how
// long it waits.
func (p *Package) expectReturn() {
	switch {
	case p.Return != nil && p.Return.Expected, p.Type != Delegation && p.Type != Escalation:
	case p.Return != nil:
		own := *p.Return // the caller's stays as it is
		own.Expected = true
		p.Return = &own
	case p.Type == Escalation:
		p.Return = &ReturnProtocol{Expected: true}
	}
}

// Summarize is the part of a normalized package that the core works with. The
// package's own words on time become overrides of the policy, each clock for
// itself: the work time is policy.work_timeout_ms, else expectations.timeout_ms;
// the return's is policy.return_timeout_ms, else return.timeout_ms; what follows
// the return's is policy.on_return_timeout, else return.on_timeout.
//
// The summary of a group has an Aggregate and no Target: a state must stay small
// with a thousand recipients. Those of its members are MemberHandoff's.
func (p Package) Summarize(digest string) Summary {
	s := Summary{
		Type: p.Type, Source: p.Source, Target: p.Target, Priority: p.Priority,
		Deadline: p.Constraints.Deadline, Parent: p.Parent,
		WorkflowID: p.Context.WorkflowID, TaskID: p.Task.ID,
		Requires: p.RequiredCapabilities, Risk: p.Audit.RiskLevel,
		Digest: digest, Origin: p.Origin, Aggregate: p.aggregate(), Overrides: p.Policy, Class: p.Constraints.Complexity,
	}
	if s.Limits = p.Limits; p.Constraints.Budget != nil {
		tokens := min(int64(*p.Constraints.Budget), TokensMax)
		s.Limits = p.Limits.Over(&Limits{MaxTokens: &tokens})
	}
	if by := p.Constraints.ComplexityBy; by != "" {
		s.Classified = s.Class + "/" + string(by)
	}
	p.Routing.summarize(&s)
	s.Bids = p.Bids
	s.Workspace, s.Locks = p.Workspace, p.lockSummary()
	if s.Locks != nil && s.Workspace == "" {
		s.Workspace = p.Context.WorkflowID
	}
	if p.AutonomyBudget != nil {
		s.Deciders = p.AutonomyBudget.Deciders
		if own := p.AutonomyBudget; own.MaxRisk != "" || own.Amount != nil {
			s.Autonomy = &AutonomyBudget{MaxRisk: own.MaxRisk, Amount: own.Amount}
		}
	}
	if a := p.Approval; a != nil { // the question stays in the package, which who is asked reads
		own := *a
		own.Question = ""
		if own != (Approval{}) {
			s.Approval = &own
		}
	}
	if s.Aggregate != nil {
		s.Target = Target{}
	}
	if p.Returned != nil {
		s.ReturnOf = p.Returned.HandoffID
	}
	if p.Context.ConversationID != nil {
		s.ConversationID = *p.Context.ConversationID
	}
	o := &s.Overrides
	if timeout := p.Expectations.TimeoutMS; o.WorkTimeoutMS == nil && timeout > 0 {
		o.WorkTimeoutMS = new(int64) // rather than a part of the package, which would keep it whole
		*o.WorkTimeoutMS = timeout
	}
	if r := p.Return; r != nil {
		if r.Of == ReturnOfHandoff {
			s.EndOf = r.Of
		}
		if s.ReturnExpected = r.Expected; r.Expected {
			s.Wait = cmp.Or(r.Wait, WaitContinue)
		}
		if o.ReturnTimeoutMS == nil && r.TimeoutMS > 0 {
			timeout := r.TimeoutMS
			o.ReturnTimeoutMS = &timeout
		}
		if o.OnReturnTimeout == nil && r.OnTimeout != "" {
			action := r.OnTimeout
			o.OnReturnTimeout = &action
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
	r.meterCommand()
	if r.Usage != nil {
		r.Usage.Normalize()
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

// Content types of a result.
const (
	ContentText     = "text"
	ContentJSON     = "json"
	ContentArtifact = "artifact_ref"
)
