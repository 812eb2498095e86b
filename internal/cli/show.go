package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/dossier"
)

func newShow(a *app) *cobra.Command {
	var full bool
	cmd := &cobra.Command{
		Use:   "show TICKET",
		Short: "Show everything there is to know about one handoff",
		Long: `Show reads one handoff whole from the ledger: what was handed off, by whom and
why; which agents had it, and how they were chosen; every attempt, question and
answer; the result, and what came too late; the handoffs that belong to it; how
long it spent where; and every event with who caused it.

Of the package it prints the task and counts the context; --full prints its body
too, and that of the result. With -o json it is all one document, both bodies included:
state, package, entries, way, trail, routings, attempts, questions, stages_ms, result,
late_results, parent, group, children, return, redriven_as, redrive_of. "goto" is true of a
parent or a child with which a chain goes on, and state.handed_on has its next and its last
handoff.

Exit codes: 0 the handoff exists, however it went; 3 no such ticket.`,
		Example: `  handoff show 5f0c…
  handoff show 5f0c… --full | less
  handoff show 5f0c… -o json | jq .attempts`,
		Args: takes("a TICKET"),
		RunE: a.onTicket(func(ctx context.Context, b *broker.Broker, ticket string) error {
			v, err := dossier.Show(ctx, a.reader(b), ticket)
			return printed(a, v, err, func(v dossier.Handoff) error { return a.whole(v, full) })
		}),
	}
	cmd.Flags().BoolVar(&full, "full", false, "print the bodies of the package and of the result too")
	return cmd
}
