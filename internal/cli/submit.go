package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/dossier"
	"github.com/agenthandoff/handoff/explain"
	"github.com/agenthandoff/handoff/protocol"
)

// waitForever is what --wait means without a value.
const waitForever = "forever"

func newSubmit(a *app) *cobra.Command {
	var (
		flags   packageFlags
		child   childFlags
		lines   linesFlags
		dryRun  bool
		wait    string
		gateway bool
	)
	cmd := &cobra.Command{
		Use:   "submit [-f FILE|-] --to AGENT --reason WHY --task WHAT",
		Short: "Hand a package to an agent, or to several; prints the ticket",
		Long: `Submit hands a package to an agent, or to whichever agent has a capability, and
prints the ticket, alone. By the ticket anybody follows the handoff: status,
wait, result, history.

  sequential   (default) the work is the target's from then on
  delegation   the source waits for it, up to --return-timeout; the end comes back
               into the source's queue, as a handoff that it takes in
  broadcast    several --to get the same package, each as a handoff of its own
  escalation   up the chain of authority: without --to, to whom the source
               escalates to; --rationale says why

A broadcast, or a --group of different packages, has one ticket, which is polled like
any other. It succeeds when all members have (--aggregate: any, or more than half of
them), and closes as soon as that is certain; --cancel-rest ends the others then. A
group file is a list of members: each has a target, and may have a reason, priority,
task, variables and artifacts of its own, laid over what the package says:

  [{"target": {"agent": "coder"}, "task": {"description": "fix it"}},
   {"target": {"capability": "review"}, "variables": {"strict": true}}]

The package is built from flags, read from a file (-f), or both: then flags that
are given replace what the file says. "handoff schema package" describes the file.
The source (--from) is $HANDOFF_AGENT where that is set, else human. Any other name
will do, but stderr says so where no agent has it: what is asked of it, and what it gets
back, waits for people then. Inside a worker started by "handoff work" the new handoff follows from the one being
worked on: its parent is $HANDOFF_TICKET. What has a parent takes over from it what
it does not say itself: conversation, workflow, user, intent, correlation and trace
ids, priority, and the deadline, than which its own is never later. The trace that it is in is that of
$TRACEPARENT and $TRACESTATE, unless the package names one.

An agent that polls hands on with --under: the new handoff is recorded with the one it
holds, so that a crash neither loses nor doubles it, and "handoff await" lets go until
its end is there. A sequential one begins when the handoff of the LEASE completes: until
then it is awaiting_source, and it is dropped where that attempt ends without a result.

With --key, submitting again is the same handoff: the ticket is made from source
and key, and the same package with the same key changes nothing.

A file of lines (-f packages.jsonl, or --lines) has a package on each line, and is
submitted many at a time; flags replace fields of every line. First all lines are
checked: what is wrong is said by line, and nothing is written then (--keep-going
submits the others, and begins at once). The output has one line for each, in their
order: a ticket, or - where the engine refused it (an agent that is not there, say).
With a key in every line the file may safely be submitted again, after an interruption
or with lines added: what is there already is not doubled.

Before anything is written, what looks like a secret (a key, a token, a password) is
taken out of the package; stderr says how many. $HANDOFF_REDACT names a file with
more patterns, one regular expression a line; --redact adds one.

What is wrong with a package is said by field, and nothing is written (exit code
9). Should the connection break in the middle, the message names the ticket, and
"handoff status TICKET" tells whether it was submitted.

` + gatewayHelp + ` The source is that agent; the parent must be one of its handoffs.

Exit codes: 0 submitted (with --wait: and closed with success), 4 submitted and
still open when --wait ended, 5 closed without success, 9 refused.`,
		Example: `  handoff submit --to reviewer --reason "code is ready" --task "review main.go"
  handoff submit --capability translate --reason r --task "to French" --var text="good day" --wait
  handoff submit -f package.json --priority high --wait=30s -o json
  handoff submit --type delegation --return-timeout 10m --to tester --reason r --task "run the tests"
  handoff submit --to alice --to bob --to carol --aggregate majority --reason r --task "approve the plan" --wait
  handoff submit --type escalation --from worker --rationale "the budget is exceeded" --reason r --task "may we go on?"
  handoff submit -f packages.jsonl > tickets
  T=$(handoff submit --key nightly-2026-01-31 -f package.json) && handoff wait "$T"`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			if _, err := parseDuration(args[0]); err == nil && wait == waitForever {
				return usagef("--wait takes its value after an equals sign: write --wait=%s", args[0])
			}
			return usagef("submit does not take %q; what to do goes into --task", args[0])
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			limit, err := waitLimit(wait)
			if err != nil {
				return err
			}
			if err := child.check(cmd.Flags().Changed, flags.returns.wait); err != nil {
				return err
			}
			if err := lines.check(cmd.Flags().Changed, flags); err != nil {
				return err
			}
			through, err := a.throughGateway(cmd, gateway, "under", "await", "lines", "keep-going", "dry-run")
			if err != nil {
				return err
			}
			if through {
				return a.submitThroughGateway(cmd, flags, lines, limit)
			}
			if lines.of(flags.file) {
				return a.submitLines(cmd.Context(), flags, lines, cmd.Flags().Changed, dryRun)
			}
			pkg, err := flags.build(cmd.Flags().Changed, a, time.Now())
			if err != nil {
				return err
			}
			if child.lease != "" {
				return a.handOff(cmd.Context(), pkg, child, flags)
			}
			prepared, err := a.prepare(cmd.Context(), pkg)
			if err != nil {
				return flags.hint(err)
			}
			return a.submit(cmd.Context(), pkg, prepared, flags, dryRun, limit)
		},
	}
	flags.declare(cmd.Flags())
	child.declare(cmd.Flags())
	cmd.Flags().BoolVar(&lines.lines, "lines", false, "the file has a package on each line, whatever its name (.jsonl and .ndjson always have)")
	cmd.Flags().BoolVar(&lines.keepGoing, "keep-going", false, "with a package on each line: submit the good lines where others are not in order")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "check everything, write nothing, print the package as it would be stored")
	gatewayFlag(cmd, &gateway)
	cmd.Flags().StringVar(&wait, "wait", "", "wait until the handoff is closed, at most `DURATION`; it is written with =, as in --wait=30s")
	cmd.Flags().Lookup("wait").NoOptDefVal = waitForever
	a.agentFlags(cmd, "to", "from", "count-from")
	a.words(cmd, "type", "sequential", "delegation", "broadcast", "escalation")
	a.words(cmd, "priority", "critical", "high", "normal", "low")
	a.words(cmd, "trigger", "task_completion", "capability_mismatch", "escalation", "timeout", "explicit_request")
	a.words(cmd, "risk", "low", "medium", "high")
	a.words(cmd, "on-timeout", "retry", "escalate", "fail")
	a.words(cmd, "on-return-timeout", "retry", "escalate", "fail")
	a.words(cmd, "await", protocol.WaitBlock, protocol.WaitContinue)
	a.words(cmd, "aggregate", "all", "any", "majority")
	a.words(cmd, "late-result", "ignore", "use")
	return cmd
}

// waitLimit reads --wait: nil is not to wait, negative is to wait without end.
func waitLimit(text string) (*time.Duration, error) {
	limit := time.Duration(-1)
	switch text {
	case "":
		return nil, nil
	case waitForever:
		return &limit, nil
	}
	limit, err := parseDuration(text)
	if err != nil {
		return nil, usagef("--wait: %v", err)
	}
	if limit < 0 {
		return nil, usagef("--wait: %q is negative", text)
	}
	return &limit, nil
}

// prepare checks a package as Submit would, without an engine: what is wrong
// with the input is said even where nobody listens.
func (a *app) prepare(ctx context.Context, pkg protocol.Package) (broker.Prepared, error) {
	redactor, err := a.redactor()
	if err != nil {
		return broker.Prepared{}, err
	}
	offline, err := broker.New(nil, broker.Config{Redactor: redactor})
	if err != nil {
		return broker.Prepared{}, err
	}
	return offline.Prepare(ctx, pkg)
}

func (a *app) submit(ctx context.Context, pkg protocol.Package, prepared broker.Prepared, flags packageFlags, dryRun bool, limit *time.Duration) error {
	b, done, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer done()
	if pkg.Parent != "" {
		if prepared, err = a.inherited(ctx, b, pkg); err != nil {
			return flags.hint(err)
		}
	}
	if prepared.Redacted > 0 {
		a.notef("handoff: secrets taken out of the package before anything is written: %d\n", prepared.Redacted)
	}
	if dryRun {
		if err := a.dryRun(ctx, b, prepared, flags); err != nil {
			return err
		}
		a.warnSource(ctx, b, prepared.Package.Source)
		return nil
	}
	head, err := a.submitOnce(ctx, b, prepared)
	if err != nil {
		return flags.hint(err)
	}
	if a.text() {
		a.printf("%s\n", prepared.Ticket)
	}
	a.warnSource(ctx, b, prepared.Package.Source)
	if limit == nil {
		if a.text() {
			return nil
		}
		return a.valueWithMembers(ctx, b, head.State)
	}
	state, err := waitFor(ctx, a.direct(b), prepared.Ticket, *limit, string(api.UntilClosed))
	if state.Ticket == "" { // interrupted before the first read
		state = head.State
	}
	if !a.text() {
		return errors.Join(a.valueWithMembers(ctx, b, state), err)
	}
	if err == nil {
		a.notef("%s: %s\n", prepared.Ticket, explain.Ending(state))
	}
	return err
}

// inherited is prepare for a package with a parent, from which it takes over what
// it does not say itself.
func (a *app) inherited(ctx context.Context, b *broker.Broker, pkg protocol.Package) (broker.Prepared, error) {
	err := a.ask(ctx, func(ctx context.Context) (err error) {
		pkg, err = b.Inherit(ctx, pkg)
		return err
	})
	if err != nil {
		return broker.Prepared{}, fmt.Errorf("read the parent; nothing was submitted: %w", err)
	}
	return a.prepare(ctx, pkg)
}

// submitOnce submits, and says what to do where nobody knows whether it happened.
func (a *app) submitOnce(ctx context.Context, b *broker.Broker, prepared broker.Prepared) (head broker.Head, err error) {
	err = a.ask(ctx, func(ctx context.Context) (err error) {
		head, err = b.Submit(ctx, prepared)
		return err
	})
	if err != nil && !is[*protocol.Error](err) {
		err = fmt.Errorf("whether it was submitted is not known; ask with: handoff status %s: %w", prepared.Ticket, err)
	}
	return head, err
}

// sourceWithin is how long a submission waits to learn whether its source is registered.
const sourceWithin = 2 * time.Second

// warnSource says for people what follows when the source is not registered. A
// directory that cannot be read is passed over: the handoff stands without it.
func (a *app) warnSource(ctx context.Context, b *broker.Broker, source string) {
	if !a.text() || source == "" || source == protocol.Human {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, sourceWithin)
	defer cancel()
	if _, err := b.Profile(ctx, source); !errors.Is(err, broker.ErrNotFound) {
		return
	}
	a.notef("handoff: %s is no agent of the directory: what is asked of it, or given back to it, goes to the inbox of people "+
		"(handoff inbox), and its other returns are read by ticket (handoff result TICKET --return); to register it: handoff agents put %s\n", source, source)
}

// dryRun says what would be written, and who would get it.
func (a *app) dryRun(ctx context.Context, b *broker.Broker, prepared broker.Prepared, flags packageFlags) error {
	agent, err := b.CheckTarget(ctx, prepared)
	if err != nil {
		return flags.hint(err)
	}
	members, err := dossier.PromisedMembers(prepared.Ticket, &prepared.Package)
	if err != nil {
		return err
	}
	if !a.text() {
		return a.value(struct {
			Ticket  string                `json:"ticket"`
			Agent   string                `json:"agent"` // empty for a group
			DryRun  bool                  `json:"dry_run"`
			Members []dossier.MemberState `json:"members,omitempty"`
			Package json.RawMessage       `json:"package"`
		}{prepared.Ticket, agent, true, members, prepared.Body})
	}
	if len(members) > 0 {
		agent = fmt.Sprintf("a group of %d", len(members))
	}
	a.notef("handoff: nothing was written; %s would get this:\n", agent)
	return a.document(prepared.Body)
}
