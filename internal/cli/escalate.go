package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/protocol"
)

func newEscalate(a *app) *cobra.Command {
	var rationale, assessment string
	cmd := a.leaseCommand("escalate LEASE --rationale WHY",
		"Pass a handoff up the chain of authority",
		`Escalate passes the handoff up the chain of authority: to the agent that this one
escalates to (handoff agents put --escalates-to), at the third level always to a
person. The one that gets it sees the rationale, and the assessments of all levels before.
It comes back when it is answered ("handoff answer"), and counts its attempts anew.`,
		`  handoff escalate "$LEASE" --rationale "the change touches billing" --assessment "the code itself is fine"`,
		[]string{"a LEASE"},
		func(ctx context.Context, s holder, lease string) (protocol.State, error) {
			return s.Escalate(ctx, lease, rationale, assessment)
		})
	cmd.Flags().StringVar(&rationale, "rationale", "", "why an agent or a person above must decide; required")
	cmd.Flags().StringVar(&assessment, "assessment", "", "what you have found out so far")
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if err := needWords("rationale", rationale); err != nil {
			return err
		}
		return checkWords("assessment", assessment)
	}
	return cmd
}
