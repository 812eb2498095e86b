package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/dossier"
)

func newBrief(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "brief TICKET",
		Short: "Print a handoff as instructions for the agent that works on it",
		Long: `Brief prints a handoff as a person or a model reads it, in Markdown: the task, a summary of
what came before, why this agent, requirements, the work so far, the last messages, what is
known, the constraints with what is left of time and budgets, the output that is expected,
and what to do where the work gets stuck. A program of "handoff work" has it in the file
that HANDOFF_BRIEF_FILE names, and on its input with "handoff work --input brief".

What others wrote is quoted, or between fences: no text of a package makes a section of its
own. Values over 4 KiB are cut; "handoff show TICKET --full" has them whole. With -o json
there are ticket, agent and brief.

Exit codes: 0 the handoff exists; 3 no such ticket.`,
		Example: `  handoff brief 5f0c…
  handoff brief 5f0c… | grep '^## '`,
		Args: takes("a TICKET"),
		RunE: a.onTicket(func(ctx context.Context, b *broker.Broker, ticket string) error {
			v, err := dossier.InstructionsOf(ctx, a.reader(b), ticket)
			return printed(a, v, err, func(v dossier.Instructions) error {
				a.printLines(v.Brief)
				return nil
			})
		}),
	}
}

// printLines prints a text of several lines. What in a line may not be shown is escaped.
func (a *app) printLines(text string) {
	for line := range strings.Lines(text) {
		a.printf("%s\n", strings.TrimSuffix(line, "\n"))
	}
}
