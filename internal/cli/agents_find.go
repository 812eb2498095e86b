package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

func newAgentsFind(a *app) *cobra.Command {
	most := 5
	cmd := &cobra.Command{
		Use:   "find TASK",
		Short: "Find the agents for a task, by its words",
		Long: `Find lists the agents whose profiles have the words of a task, the best first: their
names, specializations and capabilities count the most, then their examples, then
their descriptions. It asks no model. What "handoff agents put" says of an agent is
what it is found by. Agents that are paused or take no handoffs are left out.

Where the best is not well ahead of the second, or has too little of the task, find
says so and exits with 9 (no_match); the nearest are listed all the same.`,
		Example: `  handoff agents find "run the unit tests and check coverage"
  handoff submit --to "$(handoff agents find "deploy to staging" -o json | jq -r '.found[0].agent')" --task "deploy"`,
		Args: takes("a TASK"),
		RunE: a.onSession(func(ctx context.Context, s *api.Session, args []string) error {
			matches, err := s.FindAgents(ctx, args[0], most)
			if err != nil && !hasCode(protocol.CodeNoMatch)(err) {
				return err
			}
			if shown := printed(a, matches, nil, a.matches); shown != nil {
				return shown
			}
			return err
		}),
	}
	cmd.Flags().IntVarP(&most, "most", "k", most, fmt.Sprintf("list `N` agents at most, 1 to %d", api.FindMax))
	return cmd
}

func (a *app) matches(m lifecycle.Matches) error {
	if len(m.Found) == 0 {
		return nil
	}
	rows := [][]string{{"AGENT", "SCORE", "WORDS"}}
	for _, f := range m.Found {
		rows = append(rows, []string{f.Agent, fmt.Sprintf("%.1f", f.Score), strings.Join(f.Words, " ")})
	}
	return a.table(rows)
}
