package cli

import (
	"context"
	"os"
	"os/exec"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/bench"
)

// benchWorkerCommand is the hidden command that is one worker process.
const benchWorkerCommand = "bench-worker"

// spawnBenchWorker makes the command of a worker process. url is the engine's, or "" for
// the one that our own flags name.
func (a *app) spawnBenchWorker(ctx context.Context, url string) *exec.Cmd {
	args := []string{benchWorkerCommand}
	conn := a.conn
	if url != "" {
		conn = connection{url: url, timeout: conn.timeout}
	}
	for _, flag := range []struct{ name, value string }{{"--nats", conn.url}, {"--context", conn.context}, {"--creds", conn.creds}, {"--tlsca", conn.tlsCA}, {"--timeout", a.timeout().String()}} {
		if flag.value != "" {
			args = append(args, flag.name, flag.value)
		}
	}
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Cancel = func() error { return nil } // the end of its standard input ends it
	cmd.WaitDelay = benchWorkerGrace
	cmd.Stderr = a.err
	return cmd
}

// benchWorkerGrace is how long a worker process may take to drain.
const benchWorkerGrace = 10 * time.Second

// newBenchWorker is one worker process of bench.
func newBenchWorker(a *app) *cobra.Command {
	return &cobra.Command{
		Use:    benchWorkerCommand,
		Short:  "Be a worker process of handoff bench",
		Hidden: true,
		Args:   takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			engine, done, err := a.conn.resolve(a.env).open(cmd.Context(), broker.Config{})
			if err != nil {
				return err
			}
			defer done()
			return bench.ServeProcess(cmd.Context(), engine, a.in, a.out)
		},
	}
}
