package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
)

func newAgentsRemove(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "remove AGENT",
		Aliases: []string{"rm", "delete"},
		Short:   "Forget an agent",
		Long: `Remove forgets an agent: nothing can be handed to it any more. What was handed to
it already stays in its queue, and a worker that still serves it goes on. To keep
an agent from taking more for a while, pause it instead.`,
		Example: `  handoff agents rm reviewer`,
		Args:    takes("an AGENT"),
		RunE: a.onSession(func(ctx context.Context, s *api.Session, args []string) error {
			profile, err := s.RemoveAgent(ctx, args[0])
			if err != nil {
				return err
			}
			return a.line(profile, "%s  removed\n", profile.ID)
		}),
	}
}
