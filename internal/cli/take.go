package cli

import (
	"cmp"
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

func newTake(a *app) *cobra.Command {
	var (
		agent, reason string
		lease         time.Duration
	)
	cmd := &cobra.Command{
		Use:   "take TICKET",
		Short: "Take an open handoff into your own hands",
		Long: `Take puts one particular handoff into your hands, whichever agent has it now, and
prints what "handoff claim" prints: a LEASE, and the package. It is accepted with that; go on
with heartbeat, progress, complete, fail, release or rollback. A worker that had it
finds its lease lost.

"handoff claim" takes the next one from a queue instead, and only what is offered. An agent
takes none for which it lacks the autonomy, the capabilities or the context; a person takes all.

Exit codes: 0 it is yours; 9 it is closed, a group, not for that agent, or no such agent.`,
		Example: `  handoff take 5f0c… > taken
  LEASE=$(sed -n 's/^LEASE //p' taken)
  handoff complete "$LEASE" --text "done by hand"`,
		Args:    takes("a TICKET"),
		PreRunE: func(*cobra.Command, []string) error { return checkWords("reason", reason) },
		RunE: func(cmd *cobra.Command, args []string) error {
			agent = cmp.Or(agent, a.me())
			if err := protocol.CheckAgent("agent", agent); err != nil {
				return err
			}
			if err := api.CheckLease(lease); err != nil {
				return err
			}
			return a.onTicket(func(ctx context.Context, b *broker.Broker, ticket string) error {
				return a.held(a.session(b, "").Take(ctx, api.Take{Ticket: ticket, Agent: agent, Lease: lease, Reason: reason, Host: hostname()}))
			})(cmd, args)
		},
	}
	cmd.Flags().StringVar(&agent, "agent", "", "the `AGENT` that takes it (default $HANDOFF_AGENT, else human)")
	durationVar(cmd.Flags(), &lease, "lease", claimLease, "how long it stays yours without a heartbeat")
	cmd.Flags().StringVar(&reason, "reason", "", "why")
	a.agentFlags(cmd, "agent")
	return cmd
}
