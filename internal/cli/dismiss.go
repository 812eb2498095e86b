package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/dossier"
)

func newDismiss(a *app) *cobra.Command {
	var note, from string
	cmd := &cobra.Command{
		Use:   "dismiss TICKET…",
		Short: "Take closed handoffs out of the inbox",
		Long: `Dismiss says of handoffs that closed without success that they have been seen:
they leave the inbox, and stay in "handoff dead list". Dismissing twice is harmless.

Exit codes: 0 they are in no inbox; 9 one is still open, and waits for an act.`,
		Example: `  handoff dismiss 5f0c… --note "known outage"
  handoff inbox -o jsonl | jq -r 'select(.why == "look") | .ticket' | xargs handoff dismiss`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("%s needs a TICKET; see %s --help", cmd.CommandPath(), cmd.CommandPath())
			}
			return nil
		},
		PreRunE: func(*cobra.Command, []string) error { return checkWords("note", note) },
		RunE: func(cmd *cobra.Command, args []string) error {
			tickets, err := a.parseTickets(cmd.Context(), args)
			if err != nil {
				return err
			}
			return a.onEngine(cmd.Context(), func(ctx context.Context, b *broker.Broker) error {
				for _, ticket := range tickets {
					state, err := a.session(b, from).Dismiss(ctx, ticket, note)
					if err != nil {
						return err
					}
					if err := a.line(dossier.StateOf(state), "%s  dismissed\n", state.Ticket); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&note, "note", "", "what there is to say about it")
	fromFlag(cmd, &from, "who dismisses it")
	return cmd
}
