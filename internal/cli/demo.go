package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/demo"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/protocol"
)

func newDemo(a *app) *cobra.Command {
	var (
		cfg          demo.Config
		asJSON, page bool
	)
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Watch agents hand a review of a directory to each other",
		Long: `Demo starts an engine, a supervisor and a handful of agents, and has them review a
directory, the current one unless --dir names another: one surveys the files, one reads
the git history, one looks for code that needs care, one writes a report. Each hands off
to the next. Nothing in the directory is changed.

On the way a worker is killed with SIGKILL, an agent refuses and names a better one,
one asks for context and gets it, one stays silent until its handoff escalates to a
person, and an attempt fails and is tried again. At the end the ledger is read from
its first message and held against the tickets that the agents were given.

It takes about 10 seconds, never more than a minute, and leaves nothing but the
report behind; with --keep, the ledger as well.

--page prints a link to the page of this engine, and plays the show slowly: each step
takes --pace, and you may press the buttons. A question, an approval and an escalation
wait for you for four times as long, before the demo decides. The page stays until
Ctrl-C.

Exit codes: 0 everything was handed off, done and closed exactly once; 1 not so.`,
		Example: `  handoff demo
  handoff demo --page
  handoff demo --dir ~/src/project --report review.md
  handoff demo --json | jq .lost
  handoff demo --keep`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			asJSON = asJSON || !a.text()
			cfg.Dir, cfg.Report = a.path(cfg.Dir), a.path(cfg.Report)
			cfg.Screen, cfg.Start = a.screen(asJSON), a.demoEngine(page)
			if cfg.Pace < 0 || cfg.Pace > time.Minute {
				return usagef("--pace %v: must be 0 to 1m", cfg.Pace)
			}
			sums, err := demo.Run(cmd.Context(), cfg)
			if asJSON && sums.Submitted > 0 {
				line, encodeErr := encode(sums, false)
				if encodeErr != nil {
					return encodeErr
				}
				_, writeErr := a.out.Write(line)
				err = errors.Join(err, writeErr)
			}
			return err
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&cfg.Dir, "dir", ".", "directory to review")
	fs.StringVar(&cfg.Report, "report", "", "write the report to this file (default: a temporary one, whose path is printed)")
	fs.BoolVar(&asJSON, "json", false, "print one line of JSON at the end, and everything else on stderr")
	fs.BoolVar(&page, "page", false, "play it slowly, on the page of the demo's engine")
	fs.DurationVar(&cfg.Pace, "pace", 4*time.Second, "how long each step takes with --page, at most 1m")
	fs.BoolVar(&cfg.Keep, "keep", false, "leave the ledger behind, and print how to look at it")
	return cmd
}

// screen is where the demo shows itself: on stderr where stdout is for a program.
func (a *app) screen(asJSON bool) demo.Screen {
	if asJSON {
		return demo.Screen{Out: a.err}
	}
	return demo.Screen{Out: a.out, Colour: a.colours()}
}

// demoEngine starts a node in this process, as dev does, on any free port, and with page an index and a
// gateway for people.
func (a *app) demoEngine(page bool) func(ctx context.Context, dir string) (demo.Engine, error) {
	return func(ctx context.Context, dir string) (demo.Engine, error) {
		started, engine, err := startEngine(ctx, dir)
		if err != nil || !page {
			return started, err
		}
		web, err := a.listenDev(ctx, &devConfig{dataFlag: dataFlag{dir}})
		if err != nil {
			return started, errors.Join(err, started.Stop())
		}
		log, stopNode := slog.New(slog.DiscardHandler), started.Stop
		beside, end := context.WithCancel(context.WithoutCancel(ctx))
		waitIndex := indexBeside(beside, engine, filepath.Join(dir, indexFile), hidden(), log)
		waitWeb := web.serve(beside, started.Broker, hidden(), log)
		started.Stop = func() error {
			end()
			waitWeb()
			waitIndex()
			web.close()
			return stopNode()
		}
		if started.Page, err = signInLink(filepath.Join(dir, tokensFile), protocol.Human, web.url()); err != nil {
			err = errors.Join(err, started.Stop())
		}
		return started, err
	}
}

func startEngine(ctx context.Context, dir string) (demo.Engine, broker.Engine, error) {
	log := slog.New(slog.DiscardHandler)
	cfg := devConfig{Fsync: embedded.FsyncAlways}
	node, err := embedded.Start(ctx, embedded.Config{Dir: dir, Log: log,
		Prepare: func(ctx context.Context, nc *nats.Conn, unclean bool) error {
			return prepare(ctx, nc, cfg, nil, unclean, log)
		}})
	if err != nil {
		return demo.Engine{}, nil, err
	}
	nc, err := node.Conn()
	if err != nil {
		return demo.Engine{}, nil, errors.Join(err, node.Stop())
	}
	b, engine, done, err := openNode(ctx, nc, broker.Config{Log: log})
	if err != nil {
		nc.Close()
		return demo.Engine{}, nil, errors.Join(err, node.Stop())
	}
	return demo.Engine{Broker: b, Supervised: engine, URL: node.ClientURL(), Stop: func() error {
		done()
		nc.Close()
		return node.Stop()
	}}, engine, nil
}

// newDemoAgent is one agent of the demo.
func newDemoAgent(a *app) *cobra.Command {
	return &cobra.Command{
		Use:    demo.AgentCommand + " NAME",
		Short:  "Serve one agent of the demo",
		Hidden: true,
		Args:   takes("a NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			where := a.conn.resolve(a.env).where()
			if err := demo.Agent(cmd.Context(), args[0], where, a.log(false)); err != nil {
				return fmt.Errorf("agent %s: %w", args[0], err)
			}
			return nil
		},
	}
}

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
