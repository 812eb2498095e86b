package cli

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/internal/demo"
)

// newDemoTether runs another command of ours for as long as stdin is open. The
// demo starts its agents through it: whatever ends the demo, SIGKILL included,
// closes the pipe, and no agent outlives it.
func newDemoTether(a *app) *cobra.Command {
	return &cobra.Command{
		Use:                demo.TetherCommand + " ARG…",
		Short:              "Run a command for as long as stdin is open",
		Hidden:             true,
		DisableFlagParsing: true, // the arguments are another command's
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			go func() { // ends with the process
				_, _ = io.Copy(io.Discard, a.in)
				cancel()
				// An agent that drains asks an engine that may be gone with the
				// demo, and would ask for long.
				time.Sleep(tetherGrace)
				os.Exit(exitInterrupted)
			}()
			root := newRoot(a)
			root.SetArgs(args)
			root.SetIn(a.in)
			root.SetOut(a.out)
			root.SetErr(a.err)
			return root.ExecuteContext(ctx)
		},
	}
}

// tetherGrace is how long a command may take to end after its tether was cut.
const tetherGrace = 4 * time.Second
