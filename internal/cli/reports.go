package cli

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
	handoffjs "github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// commandLine is the command that takes an action.
func commandLine(action explain.Action) string {
	arg := action.Args
	switch ticket := arg["ticket"]; action.Op {
	case explain.OpAnswer:
		line := "handoff answer " + ticket + " --question " + arg["question"]
		for _, name := range strings.Fields(arg["set"]) {
			line += " --set " + name + "=…"
		}
		for _, flag := range []string{"permit", "text", "deny", "let-others", "reason"} {
			if value, given := arg[flag]; given {
				line += " --" + flag
				if value == "" {
					line += " …"
				}
			}
		}
		return line
	case explain.OpRaise:
		return raiseCommand(ticket, arg["limit"])
	case explain.OpDev:
		if fsync := arg["fsync"]; fsync != "" {
			return "handoff dev --fsync " + fsync
		}
	case explain.OpRedrive:
		if _, again := arg["again"]; again {
			ticket += " --again"
		}
		return "handoff dead redrive " + ticket
	case explain.OpWork:
		line := "handoff work --agent " + cmp.Or(arg["agent"], "NAME")
		if capability := arg["capability"]; capability != "" {
			line += " --capability " + capability
		}
		return line + " -- CMD"
	}
	if form, ok := commandForms[action.Op]; ok {
		return strings.NewReplacer("TICKET", cmp.Or(arg["ticket"], "TICKET"), "AGENT", cmp.Or(arg["agent"], "AGENT")).Replace(form)
	}
	return "handoff " + action.Op
}

// commandForms are the commands of actions that are not called as their commands are, or that take an
// argument.
var commandForms = map[string]string{
	explain.OpApprove: "handoff approve TICKET", explain.OpBreaker: "handoff agents breaker AGENT",
	explain.OpClaim: "handoff claim --agent AGENT", explain.OpConnect: "--nats URL, $NATS_URL or --context NAME",
	explain.OpDead: "handoff dead show TICKET", explain.OpDeny: "handoff deny TICKET --reason …",
	explain.OpDismiss: "handoff dismiss TICKET", explain.OpHistory: "handoff history TICKET",
	explain.OpInbox: "handoff inbox --agent AGENT", explain.OpLate: "handoff result TICKET --late",
	explain.OpMend: "handoff doctor --mend TICKET", explain.OpRegister: "handoff agents put AGENT",
	explain.OpRepair: "handoff doctor --repair", explain.OpReroute: "handoff reroute TICKET --to AGENT",
	explain.OpResetBreaker: "handoff agents breaker reset AGENT", explain.OpResult: "handoff result TICKET",
	explain.OpResume: "handoff agents resume AGENT", explain.OpReturn: "handoff result TICKET --return",
	explain.OpRollback: "handoff rollback TICKET --reason …", explain.OpSubmitUnder: "handoff submit --under LEASE",
	explain.OpTake: "handoff take TICKET", explain.OpTopology: "handoff topology ensure",
	explain.OpTree: "handoff tree TICKET", explain.OpWhy: "handoff why TICKET",
}

// manyCommands is from how many commands on one ticket a phrase names their verbs alone.
const manyCommands = 3

// phrase writes a phrase with its actions as commands.
func phrase(p explain.Phrase) string {
	if len(p.Actions) == 0 {
		return p.Words
	}
	commands, verbs := make([]string, len(p.Actions)), make([]string, len(p.Actions))
	for i, action := range p.Actions {
		commands[i], verbs[i] = commandLine(action), action.Op
	}
	last := len(commands) - 1
	switch first := p.Actions[0]; {
	case first.Op == explain.OpReturn:
		command := commands[0] + " prints it"
		if p.Words == "" {
			return command
		}
		return p.Words + "; " + command
	case first.Op == explain.OpSupervise:
		return p.Words + " (" + commands[0] + "; handoff dev has one)"
	case len(commands) >= manyCommands:
		return p.Words + ": handoff " + strings.Join(verbs[:last], ", ") + " or " + verbs[last] + " " + first.Args["ticket"]
	}
	return p.Words + ": " + strings.Join(commands, ", or ")
}

func newAck(a *app) *cobra.Command {
	var ack protocol.Ack
	cmd := a.leaseCommand("ack LEASE accepted|rejected|conditional",
		"Answer an offer: accept it, refuse it, or name its conditions",
		`Ack answers an offer. Accepted, the work begins. Rejected, it goes to the suggested
alternative, to another agent that is fit, or up the chain of authority; a
refusal needs a reason. Conditional, it waits for an answer to its conditions ("handoff
answer"); with --retry-after alone it comes back after that time.

An offer that was accepted may still be refused, or made conditional, without
an attempt being charged.`,
		`  handoff ack "$LEASE" accepted --estimate 20m
  handoff ack "$LEASE" rejected --reason "this is Rust" --alternative rustacean
  handoff ack "$LEASE" conditional --needs-context "which branch?" --needs-permission "to push"
  handoff ack "$LEASE" conditional --retry-after 10m --reason "the build is red" --estimate 20m`,
		[]string{"a LEASE", "accepted, rejected or conditional"},
		func(ctx context.Context, s api.AgentOperations, lease string) (protocol.State, error) {
			return s.Acknowledge(ctx, lease, ack)
		})
	// An invalid answer is refused before the engine is asked for anything.
	cmd.PreRunE = func(_ *cobra.Command, args []string) error {
		ack.Status = protocol.AckStatus(args[1])
		return ack.Validate()
	}
	bind(cmd.Flags(), &ack)
	return cmd
}

// beatView is the answer to a heartbeat.
type beatView struct {
	Ticket string `json:"ticket"`
	broker.Signal
	Expires time.Time `json:"expires"`     // of the lease, without another heartbeat
	Trace   string    `json:"traceparent"` // of the work, or, until it is accepted, of the handoff
}

func (a *app) beat(beat api.Beat) error {
	if !a.text() {
		return a.value(beatView{beat.State.Ticket, beat.Signal, beat.Expires, a.traces.WorkContext(beat.State).Parent})
	}
	yes := map[bool]string{true: "yes"}
	cancel := "no"
	switch {
	case beat.CancelRequested && beat.Return:
		cancel = "yes, it goes back to its source: stop the work, clean up, then handoff rollback LEASE"
	case beat.CancelRequested:
		cancel = "yes: stop the work, then handoff release LEASE"
	}
	a.fields("ticket", beat.State.Ticket, "cancel", cancel, "reminder", yes[beat.Reminded],
		"limit", strings.TrimSpace(explain.Instant(beat.Limit)+" "+string(beat.LimitClock)), "deadline", explain.Instant(beat.Deadline), "lease ends", explain.Instant(beat.Expires))
	return nil
}

func newHeartbeat(a *app) *cobra.Command {
	var request api.Heartbeat
	cmd := a.leaseCommand("heartbeat LEASE",
		"Keep the lease, and read the requests and changes",
		`Heartbeat prolongs the LEASE by the --lease it was claimed with, and answers whether
the handoff is to be cancelled (stop, then "handoff release" or "handoff fail") or to
go back to its source (clean up, then "handoff rollback LEASE"), whether most of the
time is used up (reminder), when the first clock takes the handoff away and which one
that is (limit: work, return or deadline; acknowledge or queue until it is accepted),
and the deadline. With -o json it also has the span of the work (traceparent, W3C Trace
Context), for agents that trace themselves.

--extend asks for more time, as an answer to a reminder. The work may take that much
longer, but never past the clocks of those who wait for it (return, deadline). It is
granted once in an attempt; the answer has the new limit, or the reason of the refusal
(exit code 9).`,
		`  handoff heartbeat "$LEASE"
  handoff heartbeat "$LEASE" --extend 10m --reason "the tests take longer"
  handoff heartbeat "$LEASE" -o json | jq .cancel_requested`,
		[]string{"a LEASE"},
		nil)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.onHolder(cmd.Context(), args[0], func(ctx context.Context, s *source) error {
			request.Lease = args[0]
			beat, err := s.Heartbeat(ctx, request)
			if err != nil {
				return leaseRefusal(args[0], err)
			}
			return a.beat(beat)
		})
	}
	bind(cmd.Flags(), &request)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case cmd.Flags().Changed("extend"):
			return needWords("reason", request.Reason)
		case cmd.Flags().Changed("reason"):
			return usagef("--reason is for --extend")
		}
		return nil
	}
	return cmd
}

func newProgress(a *app) *cobra.Command {
	var (
		progress protocol.Progress
		details  string
		flags    usageFlags
	)
	cmd := a.leaseCommand("progress LEASE",
		"Report from within the work",
		`Progress records how far the work has come, for all that ask for the status, and
the usage of this attempt so far.`,
		`  handoff progress "$LEASE" --percent 40 --message "12 of 30 files"`,
		[]string{"a LEASE"},
		func(ctx context.Context, s api.AgentOperations, lease string) (protocol.State, error) {
			progress.Usage = flags.given()
			return s.Progress(ctx, lease, progress)
		})
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if !utf8.ValidString(details) {
			return protocol.Errorf(protocol.CodeText, "details", "holds bytes that are no UTF-8")
		}
		if details != "" {
			progress.Details = api.JSONOrText(details)
		}
		return nil
	}
	bind(cmd.Flags(), &progress)
	flags.declare(cmd.Flags())
	cmd.Flags().StringVar(&details, "details", "", "whatever else; JSON if it parses, else text")
	return cmd
}

func newSpend(a *app) *cobra.Command {
	var flags usageFlags
	cmd := a.leaseCommand("spend LEASE",
		"Report the usage of the attempt so far",
		`Spend records the tokens and the cost of the attempt so far. The figures are totals: a
report that is no more than the one before changes nothing. Where the profile of the agent
has a price and no --cost is given, the cost follows from the tokens. Progress, complete
and fail take --tokens and --cost as well.`,
		`  handoff spend "$LEASE" --tokens 1200
  handoff spend "$LEASE" --tokens-in 900 --tokens-out 300 --calls 2 --model small-1`,
		[]string{"a LEASE"},
		func(ctx context.Context, s api.AgentOperations, lease string) (protocol.State, error) {
			return s.Spend(ctx, lease, flags.usage)
		})
	flags.declareAll(cmd.Flags())
	cmd.PreRunE = func(*cobra.Command, []string) error { return flags.usage.Validate() }
	return cmd
}

func newDecide(a *app) *cobra.Command {
	var (
		decision protocol.WorkDecision
		escalate bool
	)
	cmd := a.leaseCommand("decide LEASE --what WHAT --risk RISK",
		"Record a decision that you make during the work",
		`Decide records a decision that you make yourself during the work: the history has it, and the
agents that the handoff is handed on to find it in context.decisions. The same words, or
the same --id, are recorded once.

You may decide up to the lower of two risks: max_risk in the profile of your agent, and
autonomy_budget.max_risk in the package. A higher risk is refused (autonomy_exceeded),
and not recorded; with --escalate it goes to the authority above instead, and the lease
is over.

Exit codes: 0 recorded, or escalated; 7 the lease is lost; 9 the risk is too high for you.`,
		`  handoff decide "$LEASE" --what "keep the old table" --rationale "others read it" --risk low
  handoff decide "$LEASE" --what "drop the table" --risk high --escalate`,
		[]string{"a LEASE"},
		func(ctx context.Context, s api.AgentOperations, lease string) (protocol.State, error) {
			state, err := s.Decide(ctx, lease, decision)
			if !escalate || !errors.Is(err, &protocol.Error{Code: protocol.CodeAutonomy}) {
				return state, err
			}
			why := decision.Description
			if decision.Rationale != "" {
				why += ": " + decision.Rationale
			}
			return s.Escalate(ctx, lease, "to be decided, with "+string(decision.Risk)+" risk: "+why, "")
		})
	bind(cmd.Flags(), &decision)
	cmd.Flags().BoolVar(&escalate, "escalate", false, "have the authority above decide where you may not")
	return cmd
}

func newComplete(a *app) *cobra.Command {
	var (
		flags  resultFlags
		result protocol.Result
	)
	cmd := a.leaseCommand("complete LEASE",
		"Close the handoff with a result",
		`Complete closes the handoff with a result: an object from a file (-f; see "handoff
schema result"), a text (--text) or JSON (--body), and the fields of the other flags.
One of these is required; --text "" is an empty result.

A result that breaks the package's output schema, or is too large, fails the
attempt instead (exit code 9), and the handoff is tried again while attempts remain.

A result whose LEASE is lost changes nothing (exit code 7). It is kept with the
handoff: "handoff result TICKET --late" shows it.`,
		`  handoff complete "$LEASE" -f result.json
  handoff complete "$LEASE" --text "looks good" --artifact report=report.md
  my-tool | handoff complete "$LEASE" --text -`,
		[]string{"a LEASE"},
		func(ctx context.Context, s api.AgentOperations, lease string) (protocol.State, error) {
			return s.Complete(ctx, lease, result)
		})
	flags.declare(cmd.Flags(), true)
	// Read before the engine is asked for anything: a file that cannot be read
	// is no failed attempt.
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) (err error) {
		// A forgotten -f must not close the handoff with nothing: its result
		// could no longer be submitted.
		if !slices.ContainsFunc(resultFlagNames, cmd.Flags().Changed) {
			return usagef("complete needs a result: -f FILE, --text or --body (--text \"\" for an empty one)")
		}
		result, err = flags.build(a)
		return err
	}
	return cmd
}

func newFail(a *app) *cobra.Command {
	var (
		failure   = broker.Failure{Code: "handler"}
		permanent bool
		flags     usageFlags
	)
	cmd := a.leaseCommand("fail LEASE --reason WHY",
		"End the attempt without a result",
		`Fail ends the attempt. It is tried again while attempts remain, with growing delay
and no sooner than --retry-after; with --permanent the handoff closes as failed.`,
		`  handoff fail "$LEASE" --reason "the API is down" --retry-after 5m
  handoff fail "$LEASE" --reason "there is no such repository" --permanent`,
		[]string{"a LEASE"},
		func(ctx context.Context, s api.AgentOperations, lease string) (protocol.State, error) {
			failure.Retryable, failure.Usage = !permanent, flags.given()
			return s.Fail(ctx, lease, failure)
		})
	bind(cmd.Flags(), &failure)
	cmd.Flags().BoolVar(&permanent, "permanent", false, "no other attempt would do better")
	flags.declare(cmd.Flags())
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if err := cmp.Or(needWords("reason", failure.Message), checkWords("code", failure.Code)); err != nil {
			return err
		}
		switch ms := failure.RetryAfter.Milliseconds(); {
		case permanent && ms != 0:
			return protocol.Errorf(protocol.CodeConflict, "retry_after_ms", "a permanent failure is not tried again")
		case ms < 0 || ms > protocol.RetryAfterMaxMS:
			return protocol.Errorf(protocol.CodeInvalid, "retry_after_ms", "is %d; it may be 0 to %d (%s)", ms, protocol.RetryAfterMaxMS, explain.Millis(protocol.RetryAfterMaxMS))
		}
		return nil
	}
	return cmd
}

func newRelease(a *app) *cobra.Command {
	var reason string
	cmd := a.leaseCommand("release LEASE",
		"Release a handoff to its queue without charging an attempt",
		`Release puts the handoff back into its queue: it is offered to the same agent again at
once. After a cancel it is the end of it.`,
		`  handoff release "$LEASE" --reason "shutting down"`,
		[]string{"a LEASE"},
		func(ctx context.Context, s api.AgentOperations, lease string) (protocol.State, error) {
			return s.Release(ctx, lease, reason, nil)
		})
	cmd.Flags().StringVar(&reason, "reason", "", "why")
	cmd.PreRunE = func(*cobra.Command, []string) error { return checkWords("reason", reason) }
	return cmd
}

func newRollback(a *app) *cobra.Command {
	var (
		flags   resultFlags
		reason  string
		partial *protocol.Result
	)
	cmd := &cobra.Command{
		Use:   "rollback TICKET|LEASE --reason WHY",
		Short: "Roll a handoff back to its source, undone",
		Long: `Rollback ends a handoff and returns it to its source, undone, with the reason and the
partial result, if there is one. Its outcome is rolled_back.

With a TICKET a client asks for it. If no worker holds the handoff, that is done at
once; a worker that holds it learns of it with its next heartbeat, cleans up, and
returns its partial result. With a LEASE ("handoff claim" and "take" print it, it begins
with lease_) the worker itself rolls it back, and -f, --text, --body and their like add
a partial result, as in "handoff complete".

The return goes into the source's queue if it is a registered agent, as work that
it claims and acknowledges; else it is listed in the inbox of human. In any case
"handoff result TICKET --return" prints it.

Exit codes: 0 rolled back, or the worker was asked to; 7 the LEASE is lost; 9 closed
already, or no reason given.`,
		Example: `  handoff rollback 5f0c… --reason "the specification has changed"
  handoff rollback "$LEASE" --reason "needs a human's eye" --text "done so far: parser"`,
		Args: takes("a TICKET or a LEASE"),
		PreRunE: func(cmd *cobra.Command, args []string) (err error) {
			if err := needWords("reason", reason); err != nil {
				return err
			}
			for _, name := range resultFlagNames {
				if cmd.Flags().Changed(name) && !isLease(args[0]) {
					return usagef("--%s is for a worker that rolls back its own LEASE; a TICKET comes back with the partial result of its worker", name)
				}
				if cmd.Flags().Changed(name) && partial == nil {
					partial = new(protocol.Result)
				}
			}
			if partial != nil {
				*partial, err = flags.build(a)
				partial.Status = cmp.Or(partial.Status, protocol.Partial)
			}
			return err
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if isLease(args[0]) {
				return a.onLease(func(ctx context.Context, s api.AgentOperations, lease string) (protocol.State, error) {
					return s.RollBackHeld(ctx, lease, reason, partial)
				})(cmd, args)
			}
			return a.onTicket(func(ctx context.Context, s *source, ticket string) error {
				return a.state(s.session.RollBack(ctx, ticket, reason))
			})(cmd, args)
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVar(&reason, "reason", "", "why; required")
	a.fromFlag(cmd, "who asks for it, with a TICKET")
	flags.declare(fs, false)
	return cmd
}

// isLease distinguishes a LEASE from a TICKET by its prefix.
func isLease(text string) bool { return strings.HasPrefix(text, "lease_") }

func newEscalate(a *app) *cobra.Command {
	var rationale, assessment string
	cmd := a.leaseCommand("escalate LEASE --rationale WHY",
		"Pass a handoff up the chain of authority",
		`Escalate passes the handoff up the chain of authority: to the agent that this one
escalates to (handoff agents put --escalates-to), at the third level always to a
person. The one that gets it sees the rationale, and the assessments of all levels before.
It comes back when it is answered ("handoff answer"), and counts its attempts anew.`,
		`  handoff escalate "$LEASE" --rationale "the change touches billing" --assessment "the code itself is fine"`,
		[]string{"a LEASE"},
		func(ctx context.Context, s api.AgentOperations, lease string) (protocol.State, error) {
			return s.Escalate(ctx, lease, rationale, assessment)
		})
	cmd.Flags().StringVar(&rationale, "rationale", "", "why an agent or a person above must decide; required")
	cmd.Flags().StringVar(&assessment, "assessment", "", "your findings so far")
	cmd.PreRunE = func(*cobra.Command, []string) error {
		return cmp.Or(needWords("rationale", rationale), checkWords("assessment", assessment))
	}
	return cmd
}

// metaLease is where the ledger's stream keeps the default lease of workers, in
// milliseconds: it belongs to the engine, not to the process that set it.
const metaLease = "handoff_lease_ms"

// ledgerStream is the ledger's stream, whose metadata have that.
func ledgerStream(ctx context.Context, nc *nats.Conn) (jetstream.JetStream, jetstream.Stream, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, nil, err
	}
	stream, err := js.Stream(ctx, handoffjs.LedgerStream)
	return js, stream, err
}

// setLease makes lease the default of workers on this engine; 0 leaves it.
func setLease(ctx context.Context, nc *nats.Conn, lease time.Duration) error {
	if lease == 0 {
		return nil
	}
	js, stream, err := ledgerStream(ctx, nc)
	if err != nil {
		return err
	}
	cfg, value := stream.CachedInfo().Config, strconv.FormatInt(lease.Milliseconds(), 10)
	if cfg.Metadata[metaLease] == value {
		return nil
	}
	cfg.Metadata = maps.Clone(cfg.Metadata)
	cfg.Metadata[metaLease] = value
	_, err = js.UpdateStream(ctx, cfg)
	return err
}

// defaultLease reads the value that setLease wrote. An engine without one does no harm: the worker
// has a default too.
func defaultLease(ctx context.Context, engine *handoffjs.Engine) time.Duration {
	_, stream, err := ledgerStream(ctx, engine.Conn())
	if err != nil {
		return 0
	}
	ms, err := strconv.ParseInt(stream.CachedInfo().Config.Metadata[metaLease], 10, 64)
	lease := time.Duration(ms) * time.Millisecond
	if err != nil || lease < worker.LeaseMin || lease > worker.LeaseMax {
		return 0
	}
	return lease
}
