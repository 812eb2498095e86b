package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/worker"
)

func newExample(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "example",
		Short: "Print a script to start an agent from",
		Example: `  handoff example > agent.sh && chmod +x agent.sh
  handoff work --agent reviewer -- ./agent.sh`,
		Args: takes(),
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprint(a.out, worker.ExampleScript())
			return err
		},
	}
}
