package cli

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/dossier"
)

func newStatus(a *app) *cobra.Command {
	var withPackage bool
	var gateway bool
	cmd := &cobra.Command{
		Use:     "status TICKET",
		Aliases: []string{"info"},
		Short:   "Show where a handoff stands, and what it waits for",
		Long: `Status shows where a handoff stands now: phase, agent, attempt, and what it is
waiting for. It asks the ledger's leader: right after submit, from anywhere, it
finds the ticket. Of a group it lists the members; with -o json all of them. Of one that
was handed on by goto it says to which agent, and where its chain stands; with -o json
"handed_on" has "next", "last" and "ended".

` + gatewayHelp + ` It tells of handoffs that the agent in
$HANDOFF_AGENT has to do with, and of none else.

Exit codes: 0 the handoff exists, however it went; 3 no such ticket.`,
		Example: `  handoff status 5f0c…
  handoff status 5f0c… -o json | jq -r .phase
  handoff status 5f0c… --package`,
		Args: takes("a TICKET"),
		RunE: func(cmd *cobra.Command, args []string) error {
			through, err := a.throughGateway(cmd, gateway, "package")
			if err != nil {
				return err
			}
			return a.onSource(cmd.Context(), through, args[0], func(ctx context.Context, s *source, ticket string) error {
				if withPackage {
					body, err := s.b.Package(ctx, ticket)
					return printed(a, json.RawMessage(body), err, a.document)
				}
				state, err := s.Status(ctx, ticket)
				if err != nil {
					return err
				}
				if !a.text() {
					return a.valueWithMembers(ctx, s, state)
				}
				chain, err := dossier.ChainOf(ctx, s, state)
				if err != nil {
					return err
				}
				views, err := dossier.Members(ctx, a.reader(s.b), state)
				if err != nil {
					return err
				}
				if err := errors.Join(a.stateText(state, chain), a.memberTable(views)); err != nil {
					return err
				}
				a.whyWaiting(ctx, s.b, state)
				return nil
			})
		},
	}
	gatewayFlag(cmd, &gateway)
	cmd.Flags().BoolVar(&withPackage, "package", false, "print what was handed off, as JSON, instead")
	return cmd
}

// onTicket is the RunE of a command that does something short with a TICKET and an engine.
func (a *app) onTicket(do func(context.Context, *broker.Broker, string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		ticket, err := a.ticket(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return a.onEngine(cmd.Context(), func(ctx context.Context, b *broker.Broker) error { return do(ctx, b, ticket) })
	}
}
