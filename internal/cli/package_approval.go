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
	f.text("approve", "`WHICH` handoffs to it are approved first: always, never (default), or from a risk on: low, medium or high; one without a risk is among these", func(p *protocol.Profile) *string { return (*string)(&p.Approve) })
}

// declareAutonomy declares the flag of how much autonomy the agent has.
func (f *profileFlags) declareAutonomy() {
	amount := f.fs.Float64("autonomy", 0, "the largest autonomy_budget.amount of a package that it takes (default: any)")
	f.onGiven("autonomy", func(p *protocol.Profile) { p.AutonomyBudget = amount })
}
