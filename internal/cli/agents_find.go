package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

func newAgentsFind(a *app) *cobra.Command {
	most, assistCommand := 5, ""
	cmd := &cobra.Command{
		Use:   "find TASK",
		Short: "Find the agents for a task, by its words",
		Long: `Find lists the agents whose profiles have the words of a task, the best first: their
names, specializations and capabilities count the most, then their examples, then
their descriptions. What "handoff agents put" says of an agent is what it is found by.
Agents that are paused or take no handoffs are left out.

Where the best is not well ahead of the second, or has too little of the task, find
says so and exits with 9 (no_match); the nearest are listed all the same.

Unless something may choose then: a command (--assist, $HANDOFF_ASSIST), or a model
behind an endpoint that is compatible with OpenAI's. $HANDOFF_LLM_URL is the address in
front of /chat/completions, $HANDOFF_LLM_MODEL the name of the model; the key is in the
file $HANDOFF_LLM_KEY_FILE, or in $HANDOFF_LLM_KEY. It gets the task and all agents,
without secrets, and has 30 seconds to answer an id, or NONE; the command reads
{"kind": "find", "task", "agents"}. The chosen one is listed first, and "chosen_by" says
what chose. Any other answer is no_match, as above.`,
		Example: `  handoff agents find "run the unit tests and check coverage"
  handoff agents find "make it fast" --assist ./choose.sh
  handoff submit --to "$(handoff agents find "deploy to staging" -o json | jq -r '.found[0].agent')" --task "deploy"`,
		Args: takes("a TASK"),
		RunE: func(cmd *cobra.Command, args []string) error {
			matches, err := a.find(cmd.Context(), args[0], most, assistCommand)
			if err != nil && !hasCode(protocol.CodeNoMatch)(err) {
				return err
			}
			if shown := printed(a, matches, nil, a.matches); shown != nil {
				return shown
			}
			return err
		},
	}
	assistFlag(cmd.Flags(), &assistCommand)
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
	if m.ChosenBy != "" {
		a.notef("handoff: the words are not certain; a %s chose %s\n", m.ChosenBy, m.Found[0].Agent)
	}
	return a.table(rows)
}
