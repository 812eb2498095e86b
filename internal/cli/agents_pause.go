package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
)

func newAgentsPause(a *app, verb string, pause bool) *cobra.Command {
	short, long := "Let an agent take what waits for it again", `Resume ends a pause.`
	if pause {
		short = "Keep an agent from taking more; its offers wait"
		long = `Pause keeps an agent from taking handoffs. They can still be submitted to it and
wait in its queue; what it works on goes on. Nothing escalates because of a pause.`
	}
	return &cobra.Command{
		Use: verb + " AGENT", Short: short, Long: long,
		Example: "  handoff agents " + verb + " reviewer",
		Args:    takes("an AGENT"),
		RunE: a.onSession(func(ctx context.Context, s *api.Session, args []string) error {
			change := s.ResumeAgent
			if pause {
				change = s.PauseAgent
			}
			profile, err := change(ctx, args[0])
			if err != nil {
				return err
			}
			return a.line(profile, "%s  %s\n", profile.ID, verb+"d")
		}),
	}
}
