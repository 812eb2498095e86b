// Package cli is the command line of Handoff. It holds wiring, flags and output only:
// internal/lifecycle decides the next step, and package broker writes the ledger.
package cli

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/telemetry"
)

// app is shared by all commands: the streams, the environment, the global flags. One app runs one
// command line.
type app struct {
	in       io.Reader
	out, err io.Writer
	env      func(string) string
	dir      string // where relative file names begin; empty is the process's directory
	terminal bool   // stdout is one: colour is welcome, and raw control characters are not
	width    int    // its columns; 0 if it is none
	speaks   bool   // stderr is a terminal: a wait prints each change of its handoff there
	people   bool   // a wait goes on if only a person can help
	wide     bool   // whole tickets and all columns, however wide it is
	// hasIndex reports whether an index answers, which finds short tickets; nil without an engine.
	hasIndex func() bool

	remarked string // the last remark about columns that a table had no room for

	clock func() time.Time // of tests; nil is the clock

	completing  bool          // the shell asks for completions
	interactive bool          // a terminal is where it reads or writes
	waiting     bool          // for an engine, and already reported
	ends        atomic.Int64  // see endWithin
	hurry       atomic.Value  // func(): releases its handoffs, at a second signal
	hurried     atomic.Bool   // it was called
	broken      chan struct{} // closed when the command can't go on; nil where the process is not ours

	format  string
	conn    connection
	secrets redactFlags
	command string // which one it is
	traces  *telemetry.Traces
	engine  *jetstream.Engine // of the broker that connect returned; nil before
	through bool              // it goes through a gateway; see throughGateway
	from    string            // for whom the command acts, if a flag names one
	slip    string            // a name that selects handoffs, and that no agent has
}

func (a *app) now() time.Time {
	if a.clock != nil {
		return a.clock()
	}
	return time.Now()
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
	if ctx.Err() == nil && errors.As(err, &ran) { // the command printed its own error
		return ran.code
	}
	if ctx.Err() != nil && !errors.Is(err, errInterrupted) { // whatever the error, it is the consequence of Ctrl-C
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

// The help follows the order of commands. One setting of cobra does it for all.
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
for the last one that you submitted. On a terminal a ticket has 8 characters if an index
finds it by these. Times are in UTC.`,
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
			return cmp.Or(a.checkActorFlag(cmd), a.conn.checkTimeout(a.env, cmd.InheritedFlags().Changed("timeout")))
		},
	}
	root.SetFlagErrorFunc(flagError)
	root.PersistentFlags().StringVarP(&a.format, "output", "o", formatText, "how to print: text, json (one document) or jsonl (one line each)")
	a.conn.flags(root.PersistentFlags())
	a.secrets.declare(root.PersistentFlags())
	root.PersistentFlags().BoolVar(&a.wide, "wide", false, "on a terminal: whole tickets and all columns, however wide it is")
	a.words(root, "output", formats...)
	root.Flags().SortFlags, root.PersistentFlags().SortFlags = false, false
	a.groupFlags(root)
	commands(a, root)
	a.completeFlags(root)
	return root
}

// commands adds every command, in the order of the help.
func commands(a *app, root *cobra.Command) {
	for _, group := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Hand off work and follow it:", []*cobra.Command{newSubmit(a), newStatus(a), newWait(a), newResult(a), newHistory(a),
			newWhy(a), newShow(a), newTree(a), newTail(a), newCancel(a), newSchedule(a), newSignal(a), newLimits(a)}},
		{"Step in, as a person or an agent in charge:", []*cobra.Command{newInbox(a), newApprove(a), newDeny(a), newAnswer(a), newTake(a), newReroute(a),
			newRaise(a), newRollback(a), newDismiss(a), newDead(a)}},
		{"Ask about many of them:", []*cobra.Command{newList(a), newConversation(a), newStats(a), newAudit(a)}},
		{"Share within a workflow:", []*cobra.Command{newWorkflow(a)}},
		{"Be an agent:", []*cobra.Command{newWork(a), newExample(a), newClient(a), newMCP(a), newSkill(a), newAgents(a)}},
		{"Be an agent that polls:", []*cobra.Command{newClaim(a), newAck(a), newBid(a), newHeartbeat(a), newProgress(a), newSpend(a), newDecide(a), newComplete(a),
			newFail(a), newRelease(a), newEscalate(a), newAwait(a)}},
		{"Run the engine:", []*cobra.Command{newDev(a), newTopology(a), newFleet(a), newBackup(a), newRestore(a), newSupervise(a),
			newIndex(a), newGateway(a), newServe(a), newToken(a), newNotify(a), newTop(a), newDoctor(a), newBench(a)}},
		{"Write packages and results:", []*cobra.Command{newSchema(a), newValidate(a)}},
	} {
		root.AddGroup(&cobra.Group{ID: group.title, Title: group.title})
		for _, cmd := range group.commands {
			cmd.GroupID = group.title
			root.AddCommand(cmd)
		}
	}
	root.AddCommand(newDemo(a), newDemoTether(a), newDemoAgent(a), newVersion(a), newExitCodes())
}

// group is a command that only has subcommands.
func group(cmd *cobra.Command, subs ...*cobra.Command) *cobra.Command {
	cmd.Args, cmd.RunE = cobra.ArbitraryArgs, refuseUnknown
	cmd.AddCommand(subs...)
	return cmd
}

// refuseUnknown is the RunE of a group.
func refuseUnknown(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	// The engine's own tools have "stream ls"; one word wrong is usually a slip.
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		return usagef("%s has no command %q; did you mean %s?", cmd.CommandPath(), args[0], strings.Join(near, ", "))
	}
	return usagef("%s has no command %q; see %s --help", cmd.CommandPath(), args[0], cmd.CommandPath())
}

// takes checks the number of arguments; names are for the message.
func takes(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return usagef("%s needs %s; see %s --help", cmd.CommandPath(), names[len(args)], cmd.CommandPath())
		case len(args) > len(names):
			return usagef("%s does not take %q; see %s --help", cmd.CommandPath(), args[len(names)], cmd.CommandPath())
		}
		return nil
	}
}

// takesMore checks that there are at least these arguments.
func takesMore(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < len(names) {
			return takes(names...)(cmd, args)
		}
		return nil
	}
}

// Main runs this process's command line and ends the process with its exit code. Commands end in
// order at the first SIGINT, SIGTERM or SIGHUP, and at the second as soon as their handoffs are
// released. A SIGHUP that is ignored, as under nohup, stays so.
func Main() {
	if code, is := asInit(os.Args[1:]); is {
		os.Exit(code)
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(signals, syscall.SIGHUP)
	}
	ctx, cancel := context.WithCancel(context.Background())
	a := &app{
		in: os.Stdin, out: os.Stdout, err: os.Stderr, env: os.Getenv,
		terminal: term.IsTerminal(int(os.Stdout.Fd())), broken: make(chan struct{}),
	}
	if columns, _, err := term.GetSize(int(os.Stdout.Fd())); err == nil {
		a.width = columns
	}
	a.speaks = term.IsTerminal(int(os.Stderr.Fd()))
	for _, file := range []*os.File{os.Stdin, os.Stdout, os.Stderr} {
		a.interactive = a.interactive || term.IsTerminal(int(file.Fd()))
	}
	go a.endOn(signals, nil, cancel, os.Exit)
	code := a.run(ctx, os.Args[1:])
	if a.hurried.Load() {
		code = exitInterrupted
	}
	os.Exit(code)
}

// outliveLog keeps this process alive when the reader of its log is gone: Go ends a process whose
// standard output or error is closed at the other end. It is notified rather than ignored, since
// the programs that a worker starts inherit an ignored signal.
func (a *app) outliveLog() {
	if a.broken != nil { // the process is ours
		signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	}
}

// Run executes one command line within this process and returns its exit code.
// args has no program name. Many goroutines may call Run at once: file names are
// relative to env's PWD, and variables come from env alone. Run blocks until the
// command has ended; a command that serves ends with ctx. Commands that start this
// program again (demo, bench) and traces (OTEL_EXPORTER_…) need a process of their own.
func Run(ctx context.Context, args []string, in io.Reader, out, err io.Writer, env func(string) string) int {
	a := &app{in: in, out: out, err: err, env: env, dir: env("PWD")}
	return a.run(ctx, args)
}
