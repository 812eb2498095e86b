package protocol

import "time"

// Parent is a handoff from which others follow: where it stands, and its package.
type Parent struct {
	State   State
	Package Package
}

// Inherit fills in what a package takes over from the handoff that it follows from. What
// the package says itself stays. It takes over: conversation, workflow, user, the user's
// intent, correlation, trace, priority, risk and the workspace, for all but an escalation. It is called
// before Normalize, which fills in defaults.
//
// Of an open parent it also takes over the deadline, and has none that is later:
// what follows is of no use once its parent has ended. Two deadlines are no agent's
// word and bind no others: one that has passed, which stands where a person has to
// intervene; and, for a sequential handoff, which leaves its parent behind, the
// default one.
func (p *Package) Inherit(parent Parent, now Time) {
	c, from := &p.Context, &parent.Package.Context
	inheritText(&c.ConversationID, from.ConversationID)
	inheritText(&c.UserIntent, from.UserIntent)
	for _, field := range []struct{ to, from *string }{
		{&c.WorkflowID, &from.WorkflowID}, {&c.UserID, &from.UserID},
		{&c.CorrelationID, &from.CorrelationID}, {&c.TraceID, &from.TraceID},
	} {
		if *field.to == "" {
			*field.to = *field.from
		}
	}
	if p.Priority == "" {
		p.Priority = parent.Package.Priority
	}
	if p.Audit.RiskLevel == "" {
		p.Audit.RiskLevel = parent.Package.Audit.RiskLevel
	}
	if p.Workspace == "" && p.Type != Escalation {
		p.Workspace = parent.State.Workspace
	}
	limit := parent.State.Deadline
	isDefault := limit.Equal(parent.State.SubmittedAt.Add(time.Duration(DeadlineDefaultMS) * time.Millisecond))
	isSequential := p.Type == Sequential || p.Type == "" && p.GroupSize() == 0
	if parent.State.Closed || !limit.After(now) || isDefault && isSequential {
		return
	}
	if own := p.Constraints.Deadline; own.IsZero() || own.After(limit) {
		p.Constraints.Deadline = limit
	}
}

// inheritText takes over a text that may be absent. One that is there and empty is
// for Validate to refuse.
func inheritText(to **string, from *string) {
	if *to == nil && from != nil {
		text := *from
		*to = &text
	}
}
