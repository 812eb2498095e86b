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
	"github.com/agenthandoff/handoff/telemetry"
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

	completing  bool         // the shell asks for completions
	interactive bool         // a terminal is where it reads or writes
	waiting     bool         // for an engine, and that is said already
	ends        atomic.Int64 // see endWithin

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
	if ctx.Err() != nil { // whatever the error says, it is the consequence of Ctrl-C
		err = errInterrupted
	}
	if is[*usageError](err) {
		a.format = formatOf(args, a.format)
	}
	return a.report(err)
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

// commands adds every command, in the order of the help.
func commands(a *app, root *cobra.Command) {
	for _, group := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Hand off work and follow it:", []*cobra.Command{newSubmit(a), newStatus(a), newWait(a), newResult(a), newHistory(a),
			newWhy(a), newShow(a), newTree(a), newTail(a), newCancel(a)}},
		{"Step in, as a person or an agent in charge:", []*cobra.Command{newInbox(a), newAnswer(a), newTake(a), newReroute(a),
			newRollback(a), newDismiss(a), newDead(a)}},
		{"Ask about many of them:", []*cobra.Command{newList(a), newConversation(a), newStats(a), newAudit(a)}},
		{"Be an agent:", []*cobra.Command{newWork(a), newExample(a), newAgents(a)}},
		{"Be an agent that polls:", []*cobra.Command{newClaim(a), newAck(a), newHeartbeat(a), newProgress(a), newComplete(a),
			newFail(a), newRelease(a), newEscalate(a), newAwait(a)}},
		{"Run the engine:", []*cobra.Command{newDev(a), newTopology(a), newBackup(a), newRestore(a), newSupervise(a),
			newIndex(a), newGateway(a), newTop(a), newDoctor(a), newBench(a)}},
		{"Write packages and results:", []*cobra.Command{newSchema(a), newValidate(a)}},
	} {
		root.AddGroup(&cobra.Group{ID: group.title, Title: group.title})
		for _, cmd := range group.commands {
			cmd.GroupID = group.title
			root.AddCommand(cmd)
		}
	}
	root.AddCommand(newDemo(a), newDemoTether(a), newDemoAgent(a), newBenchWorker(a), newVersion(a), newExitCodes())
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
escalates and fires timeouts. Anybody polls by ticket.`,
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
			return a.conn.checkTimeout(a.env, cmd.InheritedFlags().Changed("timeout"))
		},
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%v; see %s --help", err, cmd.CommandPath())
	})
	root.PersistentFlags().StringVarP(&a.format, "output", "o", formatText, "how to print: text, json (one document) or jsonl (one line each)")
	a.conn.flags(root.PersistentFlags())
	a.secrets.declare(root.PersistentFlags())
	a.words(root, "output", formats...)
	commands(a, root)
	return root
}

// refuseUnknown is the RunE of a command that only has subcommands.
func refuseUnknown(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	// The engine's own tools say "stream ls"; one word wrong is usually a slip.
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
