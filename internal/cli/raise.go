package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
)

// raiseCommand is the command that raises a limit of a handoff.
func raiseCommand(ticket, limit string) string {
	switch limit {
	case "max_tokens":
		return "handoff raise " + ticket + " --tokens N"
	case "max_cost_micros":
		return "handoff raise " + ticket + " --cost AMOUNT"
	}
	return "handoff raise " + ticket
}

func newRaise(a *app) *cobra.Command {
	var more protocol.Amounts
	cmd := a.act(&cobra.Command{
		Use:   "raise TICKET",
		Short: "Add to the limits of an open handoff",
		Long: `Raise adds to the limits of an open handoff that has such limits: handoffs, agents, tokens
or cost. A handoff that waits for its budget (on_exhausted: ask) goes on then. Limits are never
lowered. What is added stays with this handoff: the limits of those above it are as they were.

Exit codes: 0 added; 3 no such ticket; 9 it is closed, or has no such limit.`,
		Example: `  handoff raise 5f0c… --tokens 50000
  handoff raise 5f0c… --handoffs 2 --cost 0.50`,
		PreRunE: func(*cobra.Command, []string) error {
			if more.IsZero() {
				return usagef("say what is added: --handoffs, --agents, --tokens or --cost")
			}
			return nil
		},
	}, func(ctx context.Context, s *api.Session, ticket string) (protocol.State, error) {
		return s.Raise(ctx, ticket, more)
	})
	fs := cmd.Flags()
	fs.Int64Var(&more.Handoffs, "handoffs", 0, "`N` handoffs more below it")
	fs.Int64Var(&more.Agents, "agents", 0, "`N` agents more")
	fs.Int64Var(&more.Tokens, "tokens", 0, "`N` tokens more")
	fs.Var((*costValue)(&more.CostMicros), "cost", "as much more cost, as 0.50")
	a.fromFlag(cmd, "who allows it")
	return cmd
}
