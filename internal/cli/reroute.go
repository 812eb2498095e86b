package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
)

func newReroute(a *app) *cobra.Command {
	var (
		to, reason, from, deadline string
		until                      time.Time
	)
	cmd := a.act(&cobra.Command{
		Use:   "reroute TICKET --to AGENT",
		Short: "Send an open handoff to another agent",
		Long: `Reroute offers a handoff to the agent that you name, whichever agent has it now: it
is taken out of a queue, or from a worker, which finds its lease lost. Attempts are counted
anew there. It does not count as one of the reroutes that the policy allows, and a
refusal by that agent is forgotten. An overdue handoff stays so, and ends with the time
to intervene, unless --deadline gives it a new deadline: at most 90 days after its
submission. An agent reroutes to none that lacks the autonomy, the capabilities or the
context that the handoff needs; a person may, and history and why name the override.

Exit codes: 0 it is offered there; 9 no such agent, it is not fit, or the handoff is closed.`,
		Example: `  handoff reroute 5f0c… --to tester --reason "the reviewer is on leave"
  handoff reroute 5f0c… --to bob --deadline 2h`,
		PreRunE: func(*cobra.Command, []string) error {
			if to == "" {
				return usagef("reroute needs --to AGENT")
			}
			if err := protocol.CheckAgent("to", to); err != nil {
				return err
			}
			if deadline != "" {
				var err error
				if until, _, err = parseInstant(deadline, time.Now()); err != nil {
					return usagef("--deadline: %v", err)
				}
			}
			return checkWords("reason", reason)
		},
	}, &from, func(ctx context.Context, s *api.Session, ticket string) (protocol.State, error) {
		return s.Reroute(ctx, api.Reroute{Ticket: ticket, To: to, Reason: reason, Deadline: until})
	})
	cmd.Flags().StringVar(&deadline, "deadline", "", "a new deadline: `WHEN`, as a duration from now (2h, 3d) or an instant")
	cmd.Flags().StringVar(&to, "to", "", "the `AGENT` that gets it; required")
	cmd.Flags().StringVar(&reason, "reason", "", "why")
	fromFlag(cmd, &from, "who reroutes")
	a.agentFlags(cmd, "to", "from")
	return cmd
}
