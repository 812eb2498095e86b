package cli

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

func newDeadList(a *app) *cobra.Command {
	var filter deadFilter
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List what closed without success",
		Long: `List shows the handoffs that closed without success, the last to close at the end.
Those that were redriven are left out: they live on under another ticket. With -o
json or jsonl each is the handoff's state.

It asks an index (handoff index; handoff dev has one), and reads the head of every handoff
where none answers.`,
		Example: `  handoff dead list --since 1d
  handoff dead list --agent reviewer --outcome failed -o jsonl | jq -r .ticket`,
		Args:    takes(),
		PreRunE: func(*cobra.Command, []string) error { return filter.check(time.Now()) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.onLedger(cmd.Context(), func(ctx context.Context, b *broker.Broker) error {
				states, err := a.session(b, "").DeadLetters(ctx, filter.query())
				if err != nil {
					return err
				}
				return a.deadLetters(states)
			})
		},
	}
	filter.declare(a, cmd)
	cmd.Flags().BoolVar(&filter.redriven, "redriven", false, "list those that were redriven, too")
	return cmd
}

func (a *app) deadLetters(states []protocol.State) error {
	if !a.text() {
		views := make([]dossier.StateView, len(states))
		for i, s := range states {
			views[i] = dossier.StateOf(s)
		}
		return list(a, views)
	}
	if len(states) == 0 {
		a.notef("handoff: no dead letters\n")
		return nil
	}
	now := time.Now()
	rows := [][]string{{"TICKET", "OUTCOME", "CLOSED", "FROM", "TO", "ATTEMPTS", "WORDS"}}
	for _, s := range states {
		rows = append(rows, []string{s.Ticket, string(s.Outcome), explain.Ago(s.ClosedAt, now) + " ago", s.Source, cmp.Or(s.Agent, s.TargetWords()),
			fmt.Sprint(s.AttemptsTotal), explain.Join(deadWords(s), explain.Kept(s, explain.KeptAsDeadLetter))})
	}
	return a.tableFit(rows, nil)
}

// deadWords is why a handoff closed without success, without the outcome.
func deadWords(s protocol.State) string {
	text := s.Message
	switch {
	case s.Reason == string(s.Outcome) || s.Reason == "":
	case text == "":
		text = s.Reason
	default:
		text = s.Reason + ": " + text
	}
	if s.RedrivenAs != "" {
		text = "redriven as " + s.RedrivenAs + "; " + text
	}
	return text
}
