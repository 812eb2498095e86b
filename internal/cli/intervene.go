package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// What a person, or an agent in charge, does with a handoff that another agent
// has: each works on every open handoff, whichever agent has it now.

// act is a command that does something with a ticket, on behalf of from, and prints the
// state after it.
func (a *app) act(cmd *cobra.Command, from *string, do func(ctx context.Context, s *api.Session, ticket string) (protocol.State, error)) *cobra.Command {
	cmd.Args = takes("a TICKET")
	cmd.RunE = a.onTicket(func(ctx context.Context, b *broker.Broker, ticket string) error {
		return a.state(do(ctx, a.session(b, *from), ticket))
	})
	return cmd
}

// fromFlag says who acts, where that is not whom the environment names.
func fromFlag(cmd *cobra.Command, from *string, who string) {
	cmd.Flags().StringVar(from, "from", "", who+" (default $HANDOFF_AGENT, else human)")
}
