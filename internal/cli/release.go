package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/protocol"
)

func newRelease(a *app) *cobra.Command {
	var reason string
	cmd := a.leaseCommand("release LEASE",
		"Release a handoff to its queue without charging an attempt",
		`Release puts the handoff back into its queue: it is offered to the same agent again at
once. After a cancel it is the end of it.`,
		`  handoff release "$LEASE" --reason "shutting down"`,
		[]string{"a LEASE"},
		func(ctx context.Context, s holder, lease string) (protocol.State, error) {
			return s.Release(ctx, lease, reason)
		})
	cmd.Flags().StringVar(&reason, "reason", "", "why")
	cmd.PreRunE = func(*cobra.Command, []string) error { return checkWords("reason", reason) }
	return cmd
}
