package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// waitForever is what --wait means without a value.
const waitForever = "forever"

// submitOptions are the flags of submit.
type submitOptions struct {
	packageFlags
	child   childFlags
	lines   linesFlags
	orRun   orRun
	dryRun  bool
	wait    string
	gateway bool

	limit   *time.Duration // of the wait: nil is not to wait, negative is to wait without end
	changed func(flag string) bool
	env     func(string) string
}

func newSubmit(a *app) *cobra.Command {
	o := submitOptions{env: a.env}
	cmd := &cobra.Command{
		Use:     "submit [-f FILE|-] --to AGENT --reason WHY --task WHAT",
		Short:   "Hand a package to an agent, or to several; prints the ticket",
		Long:    submitHelp,
		Example: submitExamples,
		Args:    o.noArgs,
		PreRunE: o.check,
		RunE:    func(cmd *cobra.Command, args []string) error { return a.runSubmit(cmd, &o, args) },
	}
	o.flags(a, cmd)
	return cmd
}

func (o *submitOptions) flags(a *app, cmd *cobra.Command) {
	fs := cmd.Flags()
	o.declare(fs)
	o.child.declare(fs)
	fs.BoolVar(&o.lines.lines, "lines", false, "the file has a package on each line, whatever its name (.jsonl and .ndjson always have)")
	fs.BoolVar(&o.lines.keepGoing, "keep-going", false, "with a package on each line: submit the good lines where others are not in order")
	fs.BoolVar(&o.dryRun, "dry-run", false, "check everything, write nothing, print the package as it would be stored")
	fs.Bool("no-lease", false, "inside a worker: submit beside the handoff being worked on, and not under its lease ($"+worker.EnvLease+")")
	gatewayFlag(cmd, &o.gateway)
	fs.StringVar(&o.wait, "wait", "", "wait for the end of the chain, at most `DURATION`, and print its result; it is written with =, as in --wait=30s")
	fs.Lookup("wait").NoOptDefVal = waitForever
	fs.BoolVar(&o.orRun.given, "or-run", false, "where the package is refused, or the engine not reached: run the command behind --, with the package on its standard input")
	a.agentFlags(cmd, "to", "from", "count-from")
	a.words(cmd, "type", asWords(protocol.Types)...)
	a.words(cmd, "priority", asWords(protocol.Priorities)...)
	a.words(cmd, "trigger", asWords(protocol.Triggers)...)
	a.words(cmd, "risk", asWords(protocol.Risks)...)
	a.words(cmd, "on-timeout", asWords(protocol.OnTimeouts)...)
	a.words(cmd, "complexity", append([]string{complexityAuto}, protocol.Complexities...)...)
	a.words(cmd, "on-exhausted", asWords(protocol.BudgetActions)...)
	a.words(cmd, "transfer", asWords(protocol.TransferModes)...)
	a.words(cmd, "return-of", asWords(protocol.ReturnScopes)...)
	a.words(cmd, "on-return-timeout", asWords(protocol.OnTimeouts)...)
	a.words(cmd, "await", protocol.Waits...)
	a.words(cmd, "aggregate", asWords(protocol.Aggregations)...)
	a.words(cmd, "late-result", asWords(protocol.LateResults)...)
}

func (o *submitOptions) noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 || o.orRun.given && cmd.ArgsLenAtDash() == 0 {
		return nil
	}
	if _, err := parseDuration(args[0]); err == nil && o.wait == waitForever {
		return usagef("--wait takes its value after an equals sign: write --wait=%s", args[0])
	}
	return usagef("submit does not take %q; what to do goes into --task", args[0])
}

// check refuses flags that do not go together.
func (o *submitOptions) check(cmd *cobra.Command, _ []string) (err error) {
	o.changed = cmd.Flags().Changed
	if o.limit, err = waitLimit(o.wait); err != nil {
		return err
	}
	if err := o.child.check(o.changed, o.await, o.awaits(o.env)); err != nil {
		return err
	}
	if err := o.checkFor(); err != nil {
		return err
	}
	return o.lines.check(o.changed, o.packageFlags)
}

// runSubmit submits one package, or those of a file of lines, in the way that the flags say.
func (a *app) runSubmit(cmd *cobra.Command, o *submitOptions, args []string) error {
	if err := o.orRun.check(cmd, args, a.dir); err != nil {
		return err
	}
	if o.awaits(a.env) {
		return a.runSubmitAwaited(cmd.Context(), o)
	}
	through, err := a.throughGateway(cmd, o.gateway, "for", "under", "await", "lines", "keep-going", "dry-run")
	if err == nil && o.changed("parent") && o.parent != "" {
		o.parent, err = a.throughTicket(cmd.Context(), through, o.parent)
		err = inField(err, "parent", "")
	}
	switch {
	case err != nil:
		return err
	case o.lines.of(o.file) && (through || o.orRun.given):
		return usagef("a file of lines does not go through a gateway, nor with --or-run: submit its packages one by one")
	case o.lines.of(o.file):
		return a.submitLines(cmd.Context(), o)
	}
	err = a.submitPackage(cmd.Context(), o, through)
	if o.orRun.takes(err) {
		return o.orRun.instead(cmd.Context(), a, err)
	}
	return err
}

// submitPackage submits one package.
func (a *app) submitPackage(ctx context.Context, o *submitOptions, through bool) error {
	pkg, err := o.buildFor(ctx, a)
	if err == nil {
		err = o.orRun.keep(ctx, a, pkg)
	}
	if err != nil {
		return err
	}
	a.warnArtifacts(o.artifacts)
	switch {
	case through:
		err = a.submitThroughGateway(ctx, pkg, o)
	case o.child.lease != "":
		return a.handOff(ctx, pkg, o)
	default:
		if lease := o.leaseOf(pkg); lease != "" {
			err = a.handOffAtOnce(ctx, lease, pkg, o)
		} else {
			err = a.submit(ctx, pkg, o)
		}
	}
	return o.hint(err)
}
