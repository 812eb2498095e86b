package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/supervisor"
)

func newSupervise(a *app) *cobra.Command {
	var flags struct {
		serviceFlags `flag:""`
		Accept       bool `flag:"accept-damage" doc:"continue without the entries that the ledger has lost"`
	}
	cmd := &cobra.Command{
		Use:   "supervise",
		Short: "Run a supervisor for an engine elsewhere",
		Long: `Supervise retries, reroutes, escalates and fires timeouts. One is enough; more share
the work, and any may be killed. "handoff dev" has one in it.

` + waitHelp + `

` + metricsHelp + `

At its start it looks for entries that the ledger has lost, by the server's own figures,
the index and a witness ($XDG_STATE_HOME/handoff), and each second by the figures alone. If
there are any it names them and ends, unless --accept-damage. See docs/operations/damage.md.

Exit codes: 0 stopped with Ctrl-C; 6 the engine is not reachable; 11 the ledger is damaged.`,
		Example: `  handoff supervise -s nats://engine:4222
  handoff supervise --metrics 0.0.0.0:9090`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.serve(cmd.Context(), &flags.serviceFlags, func(b *broker.Broker, log *slog.Logger, shown *showing) error {
				shown.engine(b)
				guard := &servedGuard{a: a, b: b, log: log}
				if err := guard.check(cmd.Context(), flags.Accept); err != nil {
					return err
				}
				s, err := supervisor.New(b, a.engine, supervisor.Config{Log: log, Watch: shown.supervision(b), Check: guard.recheck})
				if err != nil {
					return err
				}
				shown.supervisor(s)
				shown.started()
				log.Info("supervising", "engine", a.conn.resolve(a.env).where())
				if err := s.Run(cmd.Context()); err != nil {
					return guard.concern(cmd.Context(), err)
				}
				stopping, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), broker.TimeoutDefault)
				defer cancel()
				return guard.record(stopping)
			})
		},
	}
	bind(cmd.Flags(), &flags)
	return cmd
}

// waitHelp explains --wait-for-engine, in the help of every command that has it.
const waitHelp = `--wait-for-engine waits for an engine that does not answer at the start, or is not set
up yet, instead of ending with exit code 6: it warns on stderr after 2 s, then every
minute, and SIGTERM ends it with 0. It is on where systemd ($INVOCATION_ID,
$NOTIFY_SOCKET), Kubernetes ($KUBERNETES_SERVICE_HOST) or a container (process 1) has
started the command, and off on a terminal; --wait-for-engine=false turns it off.`

// waits reports whether to wait for an engine that does not answer.
func (f *serviceFlags) waits(a *app) bool {
	if f.Wait != nil {
		return *f.Wait
	}
	return supervised(a.env, os.Getpid(), a.interactive)
}

// supervised reports whether another program has started this one and keeps it running.
// A terminal in a desktop has the environment of systemd, too.
func supervised(env func(string) string, pid int, interactive bool) bool {
	return !interactive && (pid == 1 || cmp.Or(env("INVOCATION_ID"), env("NOTIFY_SOCKET"), env("KUBERNETES_SERVICE_HOST")) != "")
}

// serviceFlags are the flags of a command that runs until a signal.
type serviceFlags struct {
	Wait    *bool  `flag:"wait-for-engine" doc:"wait for an engine that does not answer (default: under a supervisor of processes)"`
	Metrics string `flag:"metrics" doc:"show figures, /healthz and /readyz at {ADDR}, such as :9090 ($HANDOFF_METRICS; default: nowhere)"`
	Verbose bool   `flag:"verbose,v" doc:"log every append as well"`
}

// opening connects and returns the rest of a command that runs until a signal.
type opening func(ctx context.Context, log *slog.Logger, shown *showing) (run func() error, done func(), err error)

// serve is serveOver the engine itself.
func (a *app) serve(ctx context.Context, f *serviceFlags, run func(*broker.Broker, *slog.Logger, *showing) error) error {
	return a.serveOver(ctx, f, func(ctx context.Context, log *slog.Logger, shown *showing) (func() error, func(), error) {
		b, done, err := a.connectWith(ctx, broker.Config{Log: log, Observer: shown.observer()})
		return func() error { return run(b, log, shown) }, done, err
	})
}

// serveOver runs a command until a signal, with figures where a flag asks for them.
func (a *app) serveOver(ctx context.Context, f *serviceFlags, open opening) error {
	a.outliveLog()
	log := a.log(f.Verbose)
	shown, err := a.show(ctx, f.Metrics, log)
	if err != nil {
		return err
	}
	defer shown.close()
	var run func() error
	var done func()
	connect := func(ctx context.Context) (err error) {
		run, done, err = open(ctx, log, shown)
		return err
	}
	if f.waits(a) {
		err = a.waitFor(ctx, log, connect)
	} else {
		err = connect(ctx)
	}
	if err != nil {
		return err
	}
	defer done()
	return run()
}

// errToldToEnd ends a command with 0: a signal came while it waited.
var errToldToEnd = errors.New("told to end")

// waitFor connects again and again until that succeeds.
func (a *app) waitFor(ctx context.Context, log *slog.Logger, connect func(context.Context) error) error {
	a.waiting = true
	defer func() { a.waiting = false }()
	err := broker.WaitForEngine(ctx, log, a.conn.resolve(a.env).where(), connect)
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", errToldToEnd, ctx.Err())
	}
	return err
}
