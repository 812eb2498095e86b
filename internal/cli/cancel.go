package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

func newCancel(a *app) *cobra.Command {
	var (
		reason, from string
		children     bool
	)
	cmd := a.act(&cobra.Command{
		Use:   "cancel TICKET",
		Short: "Ask for the end of a handoff",
		Long: `Cancel ends a handoff at once where no worker holds it. A worker that holds it is told
with its next beat and given time to stop (policy cancel_grace_ms, 30s by default);
"handoff wait TICKET" sees the end.

--children cancels everything that it has handed off as well, and what that has
handed off: the members of a group, for one. It does so where the handoff itself
is closed already, too.

Exit codes: 0 cancelled, or the worker was asked to stop; 9 it was closed already.`,
		Example: `  handoff cancel 5f0c… --reason "no longer needed"
  handoff cancel 5f0c… && handoff wait 5f0c… --timeout 1m
  handoff cancel 5f0c… --children`,
		PreRunE: func(*cobra.Command, []string) error { return checkWords("reason", reason) },
	}, &from, func(ctx context.Context, s *api.Session, ticket string) (protocol.State, error) {
		return s.Cancel(ctx, api.Cancel{Ticket: ticket, Reason: reason})
	})
	alone := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !children {
			return alone(cmd, args)
		}
		ticket, err := a.ticket(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return a.onLedger(cmd.Context(), func(ctx context.Context, b *broker.Broker) error { // a group may have a thousand
			return a.state(a.session(b, from).Cancel(ctx, api.Cancel{Ticket: ticket, Reason: reason, Children: true}))
		})
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why")
	cmd.Flags().BoolVar(&children, "children", false, "cancel what it has handed off, too")
	fromFlag(cmd, &from, "who asks")
	return cmd
}
