package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

func newBudget(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "budget TICKET",
		Short: "Show what a handoff and its family have used",
		Long: `Budget shows the tokens and the cost of a handoff, of all handoffs that belong together
with it (those of "handoff tree"), and of each agent among them. An agent counts with the
handoffs that it has, or had last. What attempts use they report themselves: with their
results, in HANDOFF_USAGE_FILE, or by "handoff spend".

Exit codes: 0 the handoff exists; 3 no such ticket.`,
		Example: `  handoff budget 5f0c…
  handoff budget 5f0c… -o json | jq .family_used.tokens`,
		Args: takes("a TICKET"),
		RunE: a.onTicket(func(ctx context.Context, b *broker.Broker, ticket string) error {
			v, err := dossier.BudgetOf(ctx, a.reader(b), ticket)
			return printed(a, v, err, a.budget)
		}),
	}
	cmd.AddCommand(newBudgetRaise(a))
	return cmd
}

// budget prints what a family has used.
func (a *app) budget(b dossier.Budget) error {
	if err := a.fields(
		"used", cmp.Or(explain.Usage(b.Own), "nothing is known"),
		"limits", b.Left,
		"family", explain.Join(explain.Count(len(b.Handoffs), "handoff"), explain.Usage(b.Family)),
	); err != nil {
		return err
	}
	if len(b.Agents) > 0 {
		rows := [][]string{{"AGENT", "HANDOFFS", "TOKENS", "COST", "CALLS"}}
		for _, of := range b.Agents {
			rows = append(rows, append([]string{of.Agent, fmt.Sprint(of.Handoffs)}, usageCells(of.Used)...))
		}
		a.printf("\n")
		if err := a.table(rows); err != nil {
			return err
		}
	}
	rows := [][]string{{"HANDOFF", "AGENT", "PHASE", "TOKENS", "COST", "CALLS"}}
	for _, of := range b.Handoffs {
		rows = append(rows, append([]string{strings.Repeat("  ", of.Depth) + of.Ticket, of.Agent, explain.Phase(of.State)}, usageCells(of.Used)...))
	}
	a.printf("\n")
	if err := a.table(rows); err != nil {
		return err
	}
	a.remarks(b.Notes, b.Actions)
	return nil
}

// usageCells are the tokens, the cost and the calls of a row.
func usageCells(u protocol.Usage) []string {
	cells := []string{"-", "-", "-"}
	if u.Tokens > 0 {
		cells[0] = fmt.Sprint(u.Tokens)
	}
	if u.CostMicros > 0 {
		cells[1] = explain.Cost(u.CostMicros)
	}
	if u.Calls > 0 {
		cells[2] = fmt.Sprint(u.Calls)
	}
	return cells
}
