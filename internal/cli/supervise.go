package cli

import (
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/supervisor"
)

func newSupervise(a *app) *cobra.Command {
	var flags serviceFlags
	cmd := &cobra.Command{
		Use:   "supervise",
		Short: "Run a supervisor beside an engine that is there",
		Long: `Supervise retries, reroutes, escalates and fires timeouts. One is enough; more share
the work, and any may be killed. "handoff dev" has one in it.

` + waitHelp + `

` + metricsHelp + `

Exit codes: 0 stopped with Ctrl-C; 6 the engine is not reachable.`,
		Example: `  handoff supervise -s nats://engine:4222
  handoff supervise --metrics 0.0.0.0:9090`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.serve(cmd.Context(), &flags, func(b *broker.Broker, log *slog.Logger, shown *showing) error {
				shown.engine(b)
				s, err := supervisor.New(b, a.engine, supervisor.Config{Log: log, Watch: shown.supervision(b)})
				if err != nil {
					return err
				}
				shown.supervisor(s)
				shown.started()
				log.Info("supervising", "engine", a.conn.resolve(a.env).where())
				return s.Run(cmd.Context())
			})
		},
	}
	flags.declare(cmd)
	return cmd
}
