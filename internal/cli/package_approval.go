package cli

import (
	"github.com/agenthandoff/handoff/protocol"
)

// declareApproval declares the flags of what is approved before an agent gets it.
func (f *packageFlags) declareApproval() {
	type pkg = protocol.Package
	own := func(p *pkg) *protocol.Approval { return orNew(&p.Approval) }
	f.text("approve-by", "the `AGENT`, or human, that approves it before its target gets it", func(p *pkg) *string { own(p).Required = true; return &p.Approval.By })
	f.text("approval-question", "`WHAT` the approver is asked", func(p *pkg) *string { return &own(p).Question })
	f.millis("approval-timeout", "an approver has so long to answer, then the authority above is asked (default 24h)", func(p *pkg) *int64 { return &own(p).TimeoutMS })
	f.text("on-approval-timeout", "`WHAT` follows where an approver does not answer: escalate (default) or close", func(p *pkg) *string { return (*string)(&own(p).OnTimeout) })
}

// declareApproval declares the flags of what is approved before the agent gets it.
func (f *profileFlags) declareApproval() {
	type profile = protocol.Profile
	own := func(p *profile) *protocol.ProfileApproval {
		next := protocol.ProfileApproval{}
		if p.Approval != nil {
			next = *p.Approval
		}
		p.Approval = &next
		return p.Approval
	}
	f.text("approval-risk", "handoffs to it of this `RISK` or a higher one are approved first: low, medium or high", func(p *profile) *string { return (*string)(&own(p).MinRisk) })
	sources := f.fs.StringArray("approval-from", nil, "handoffs to it from this `AGENT`, or from all whose names begin so (ci-*), are approved first (repeatable)")
	f.onGiven("approval-from", func(p *profile) { own(p).Sources = *sources })
}

// declareAutonomy declares the flag of how much autonomy the agent has.
func (f *profileFlags) declareAutonomy() {
	amount := f.fs.Float64("autonomy", 0, "the largest autonomy_budget.amount of a package that it takes (default: any)")
	f.onGiven("autonomy", func(p *protocol.Profile) { p.AutonomyBudget = amount })
}
