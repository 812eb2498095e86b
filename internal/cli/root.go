package cli

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker/jetstream"
	"github.com/agenthandoff/handoff/internal/telemetry"
)

// app is what all commands share: the streams, the environment, the global
// flags. One app runs one command line.
type app struct {
	in       io.Reader
	out, err io.Writer
	env      func(string) string
	dir      string // where relative file names begin; empty is the process's directory
	terminal bool   // stdout is one: colour is welcome, and raw control characters are not
	width    int    // its columns; 0 where it is none

	completing  bool          // the shell asks for completions
	interactive bool          // a terminal is where it reads or writes
	waiting     bool          // for an engine, and that is said already
	ends        atomic.Int64  // see endWithin
	hurry       atomic.Value  // func(): gives back what is held, at a second signal
	hurried     atomic.Bool   // it was called
	broken      chan struct{} // closed when the command can't go on; nil where the process is not ours

	format  string
	conn    connection
	secrets redactFlags
	command string // which one it is
	traces  *telemetry.Traces
	engine  *jetstream.Engine // of the broker that connect returned; nil before
}

// run executes a command line and returns its exit code.
func (a *app) run(ctx context.Context, args []string) int {
	a.conn.dir = a.dir
	a.completing = len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd)
	root := newRoot(a)
	root.SetArgs(args)
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	err := root.ExecuteContext(ctx)
	if err == nil || errors.Is(err, errToldToEnd) {
		return exitDone
	}
	var ran *ranError
	if ctx.Err() == nil && errors.As(err, &ran) { // it has said itself what there is to say
		return ran.code
	}
	if ctx.Err() != nil && !errors.Is(err, errInterrupted) { // whatever the error says, it is the consequence of Ctrl-C
		err = errInterrupted
	}
	if is[*usageError](err) {
		a.format = formatOf(args, a.format)
	}
	return a.report(a.suggestAgent(ctx, err))
}

// formatOf finds -o in a command line that did not parse: the error about it
// has a format too.
func formatOf(args []string, format string) string {
	for i, arg := range args {
		value, found := strings.CutPrefix(arg, "--output=")
		if !found {
			value, found = strings.CutPrefix(arg, "-o")
			value = strings.TrimPrefix(value, "=")
		}
		if (arg == "-o" || arg == "--output") && i+1 < len(args) {
			value, found = args[i+1], true
		}
		if found && slices.Contains(formats, value) {
			format = value
		}
	}
	return format
}

// The help follows the order of commands. It is said once: cobra has it for all.
func init() { cobra.EnableCommandSorting = false }

func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "handoff",
		Short: "Hand work from one agent to another, durably",
		Long: `Handoff moves work between agents and never loses it.

An agent submits a package to another and gets a ticket. A worker of the target
claims it, acknowledges it and completes it. A supervisor retries, reroutes,
escalates and fires timeouts. Anybody polls by ticket.

A TICKET is the UUID that a submission prints, its first 6 characters or more, or -
for the last one that you submitted.`,
		Example: `  handoff dev                                  # an engine and a supervisor, here
  handoff example > agent.sh && chmod +x agent.sh
  handoff work --agent reviewer -- ./agent.sh  # in another terminal
  handoff submit --to reviewer --reason "code is ready" --task "review main.go" --wait`,
		SilenceErrors: true, // report prints them, in the format asked for
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs, // an unknown command is RunE's to refuse, as a usage error
		RunE:          refuseUnknown,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			a.command = commandName(cmd)
			a.endWithin(endFor(a.command))
			if !slices.Contains(formats, a.format) {
				return usagef("-o %s: the formats are %s", a.format, strings.Join(formats, ", "))
			}
			if err := a.checkActorFlag(cmd); err != nil {
				return err
			}
			return a.conn.checkTimeout(a.env, cmd.InheritedFlags().Changed("timeout"))
		},
	}
	root.SetFlagErrorFunc(flagError)
	root.PersistentFlags().StringVarP(&a.format, "output", "o", formatText, "how to print: text, json (one document) or jsonl (one line each)")
	a.conn.flags(root.PersistentFlags())
	a.secrets.declare(root.PersistentFlags())
	a.words(root, "output", formats...)
	root.Flags().SortFlags, root.PersistentFlags().SortFlags = false, false
	groupFlags(root)
	commands(a, root)
	return root
}
