package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/protocol"
)

func newSpend(a *app) *cobra.Command {
	var flags usageFlags
	cmd := a.leaseCommand("spend LEASE",
		"Report what the attempt has used so far",
		`Spend records the tokens and the cost of the attempt so far. The figures are totals: a
report that is no more than the one before changes nothing. Where the profile of the agent
has a price and no --cost is given, the cost follows from the tokens. Progress, complete
and fail take --tokens and --cost as well.`,
		`  handoff spend "$LEASE" --tokens 1200
  handoff spend "$LEASE" --tokens-in 900 --tokens-out 300 --calls 2 --model small-1`,
		[]string{"a LEASE"},
		func(ctx context.Context, s holder, lease string) (protocol.State, error) {
			return s.Spend(ctx, lease, flags.usage)
		})
	flags.declareAll(cmd.Flags())
	cmd.PreRunE = func(*cobra.Command, []string) error { return flags.usage.Validate() }
	return cmd
}
