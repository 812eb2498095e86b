package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/protocol"
)

func newDecide(a *app) *cobra.Command {
	var (
		decision protocol.WorkDecision
		risk     string
		escalate bool
	)
	cmd := a.leaseCommand("decide LEASE --what WHAT --risk RISK",
		"Record a decision that you make during the work",
		`Decide records what you decide by yourself during the work: the history has it, and the
agents that the handoff is handed on to find it in context.decisions. The same words, or
the same --id, are recorded once.

You may decide up to the lower of two risks: max_risk in the profile of your agent, and
autonomy_budget.max_risk in the package. What is over it is refused (autonomy_exceeded),
and not recorded; with --escalate it goes to the authority above instead, and the lease
is over.

Exit codes: 0 recorded, or escalated; 7 the lease is lost; 9 over what you may decide.`,
		`  handoff decide "$LEASE" --what "keep the old table" --rationale "others read it" --risk low
  handoff decide "$LEASE" --what "drop the table" --risk high --escalate`,
		[]string{"a LEASE"},
		func(ctx context.Context, s holder, lease string) (protocol.State, error) {
			decision.Risk = protocol.Risk(risk)
			state, err := s.Decide(ctx, lease, decision)
			if !escalate || !errors.Is(err, &protocol.Error{Code: protocol.CodeAutonomy}) {
				return state, err
			}
			why := decision.Description
			if decision.Rationale != "" {
				why += ": " + decision.Rationale
			}
			return s.Escalate(ctx, lease, "to be decided, with "+risk+" risk: "+why, "")
		})
	fs := cmd.Flags()
	fs.StringVar(&decision.Description, "what", "", "`WHAT` is decided; required")
	fs.StringVar(&risk, "risk", "", "the `RISK` of it: low, medium or high; required")
	fs.StringVar(&decision.Rationale, "rationale", "", "`WHY` it is decided so")
	fs.StringVar(&decision.ID, "id", "", "`ID` of the decision, your own, at most 128 bytes (default: made of its words)")
	fs.BoolVar(&escalate, "escalate", false, "have the authority above decide where you may not")
	a.words(cmd, "risk", asWords(protocol.Risks)...)
	return cmd
}
