package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/dossier"
	"github.com/agenthandoff/handoff/explain"
	natsgateway "github.com/agenthandoff/handoff/gateway/nats"
	"github.com/agenthandoff/handoff/protocol"
)

// leaseCommand is a command that reports on the handoff of a LEASE, and prints its state
// after that.
func (a *app) leaseCommand(use, short, long, example string, args []string, report func(ctx context.Context, s api.Holder, lease string) (protocol.State, error)) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Example: example,
		Long: long + `

A LEASE is what "handoff claim" prints. Exit code 7: the handoff is another holder's
by now, or the LEASE was never given out; nothing about it was changed.`,
		Args: takes(args...),
		RunE: a.onLease(report),
	}
}

// onLease is the RunE of a command that reports on the handoff of a LEASE.
func (a *app) onLease(report func(ctx context.Context, s api.Holder, lease string) (protocol.State, error)) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		return a.onHolder(cmd.Context(), args[0], func(ctx context.Context, s holder) error {
			state, err := report(ctx, s, args[0])
			if err != nil {
				return leaseRefusal(args[0], err)
			}
			return a.line(dossier.StateOf(state), "%s  %s\n", state.Ticket, a.phase(state))
		})
	}
}

// holder has the operations of a holder, and of a source.
type holder interface {
	api.Holder
	api.Source
}

// onHolder does something short with a LEASE, through a gateway if one was claimed through.
func (a *app) onHolder(ctx context.Context, lease string, do func(context.Context, holder) error) error {
	agent, gateway := natsgateway.LeaseAgent(lease)
	if !gateway {
		return a.onEngine(ctx, func(ctx context.Context, b *broker.Broker) error { return do(ctx, a.session(b, "")) })
	}
	return a.ask(ctx, func(ctx context.Context) error {
		client, done, err := a.dialGateway(ctx, agent)
		if err != nil {
			return err
		}
		defer done()
		return do(ctx, client)
	})
}

// leaseRefusal says of a lost lease what became of the handoff.
func leaseRefusal(lease string, err error) error {
	lost := func(format string, args ...any) error {
		return protocol.Errorf(protocol.CodeLeaseLost, "lease", format, args...)
	}
	lease, _, _ = strings.Cut(lease, ".") // behind it is what a gateway's has
	ticket, _ := broker.LeaseTicket(lease)
	var late *api.LateResultError
	switch {
	case errors.As(err, &late) && late.Unkept != nil:
		return fmt.Errorf("%w; the result could not be kept either: %w", leaseRefusal(lease, late.Lost), late.Unkept)
	case errors.As(err, &late):
		return lost("is lost: the handoff is closed, or another holder's by now, and stays as it is; the result was kept: handoff result %s --late", ticket)
	case errors.Is(err, broker.ErrDeadlinePassed):
		return lost("is worth nothing any more: the deadline passed, and the handoff is closed, or an authority's; nothing was changed")
	case errors.Is(err, broker.ErrLeaseLost):
		return lost("is worth nothing any more: the handoff is closed, or another holder's by now; nothing was changed")
	}
	return err
}

func newAck(a *app) *cobra.Command {
	var (
		ack             protocol.Ack
		retry, estimate time.Duration
	)
	cmd := a.leaseCommand("ack LEASE accepted|rejected|conditional",
		"Answer an offer: accept it, refuse it, or say what it needs first",
		`Ack answers an offer. Accepted, the work begins. Rejected, it goes to the suggested
alternative, to another agent that is fit, or up the chain of authority; a
refusal needs a reason. Conditional, it waits for what it needs ("handoff
answer"); with --retry-after alone it merely comes back later, and says why.

An offer that was accepted may still be refused, or made conditional, without
an attempt being charged.`,
		`  handoff ack "$LEASE" accepted --estimate 20m
  handoff ack "$LEASE" rejected --reason "this is Rust" --alternative rustacean
  handoff ack "$LEASE" conditional --needs-context "which branch?" --needs-permission "to push"
  handoff ack "$LEASE" conditional --retry-after 10m --reason "the build is red" --estimate 20m`,
		[]string{"a LEASE", "accepted, rejected or conditional"},
		func(ctx context.Context, s api.Holder, lease string) (protocol.State, error) {
			return s.Acknowledge(ctx, lease, ack)
		})
	// What makes no answer is refused before the engine is asked for anything.
	cmd.PreRunE = func(_ *cobra.Command, args []string) error {
		ack.Status = protocol.AckStatus(args[1])
		ack.RetryAfterMS, ack.EstimatedCompletionMS = retry.Milliseconds(), estimate.Milliseconds()
		return ack.Validate()
	}
	fs := cmd.Flags()
	fs.StringVar(&ack.Reason, "reason", "", "why; required for rejected")
	fs.StringVar(&ack.ReasonCode, "reason-code", "", "the reason as a word to count by, such as capability_mismatch")
	fs.StringVar(&ack.SuggestedAlternative, "alternative", "", "rejected: the agent that fits better")
	fs.StringArrayVar(&ack.NeedsContext, "needs-context", nil, "conditional: `WHAT` must be known first (repeatable)")
	fs.StringArrayVar(&ack.NeedsPermission, "needs-permission", nil, "conditional: `WHAT` must be allowed first (repeatable)")
	fieldVar(fs, &retry, "retry-after", "conditional: offer it again after this")
	fieldVar(fs, &estimate, "estimate", "how long the work takes; conditional: once it has what it needs")
	return cmd
}

// beatView is what a heartbeat answers.
type beatView struct {
	Ticket string `json:"ticket"`
	broker.Signal
	Expires time.Time `json:"expires"`     // of the lease, without another heartbeat
	Trace   string    `json:"traceparent"` // of the work, or, until it is accepted, of the handoff
}

func (a *app) beat(beat api.Beat) error {
	if !a.text() {
		return a.value(beatView{beat.State.Ticket, beat.Signal, beat.Expires, a.traces.Work(beat.State).Parent})
	}
	yes := map[bool]string{true: "yes"}
	cancel := "no"
	switch {
	case beat.CancelRequested && beat.Return:
		cancel = "yes, it goes back to its source: stop the work, clean up, then handoff rollback LEASE"
	case beat.CancelRequested:
		cancel = "yes: stop the work, then handoff release LEASE"
	}
	return a.fields("ticket", beat.State.Ticket, "cancel", cancel, "reminder", yes[beat.Reminded],
		"limit", strings.TrimSpace(explain.Instant(beat.Limit)+" "+string(beat.LimitClock)), "deadline", explain.Instant(beat.Deadline), "lease ends", explain.Instant(beat.Expires))
}

func newHeartbeat(a *app) *cobra.Command {
	var (
		extend time.Duration
		reason string
	)
	cmd := a.leaseCommand("heartbeat LEASE",
		"Say that you are still at it, and hear what has changed",
		`Heartbeat prolongs the LEASE by the --lease it was claimed with, and answers whether
the handoff is to be cancelled (stop, then "handoff release" or "handoff fail") or to
go back to its source (clean up, then "handoff rollback LEASE"), whether most of the
time is used up (reminder), when the first clock takes the handoff away and which one
that is (limit: work, return or deadline; acknowledge or queue until it is accepted),
and the deadline. With -o json it also says which span of a trace the work is (traceparent, as W3C Trace Context has it), for agents that
trace what they do.

--extend asks for more time, as an answer to a reminder. The work may take that much
longer, but never past the clocks of those who wait for it (return, deadline). It is
granted once in an attempt; the answer says until when, or why not (exit code 9).`,
		`  handoff heartbeat "$LEASE"
  handoff heartbeat "$LEASE" --extend 10m --reason "the tests take longer"
  handoff heartbeat "$LEASE" -o json | jq .cancel_requested`,
		[]string{"a LEASE"},
		nil)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.onHolder(cmd.Context(), args[0], func(ctx context.Context, s holder) error {
			beat, err := s.Heartbeat(ctx, api.Heartbeat{Lease: args[0], Extend: extend, Reason: reason})
			if err != nil {
				return leaseRefusal(args[0], err)
			}
			return a.beat(beat)
		})
	}
	fieldVar(cmd.Flags(), &extend, "extend", "the work takes this much longer; granted once, up to the return's clock and the deadline")
	cmd.Flags().StringVar(&reason, "reason", "", "why it takes longer; required with --extend")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case cmd.Flags().Changed("extend"):
			return needWords("reason", reason)
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
	)
	cmd := a.leaseCommand("progress LEASE",
		"Report from within the work",
		`Progress records how far the work has come, for all that ask for the status.`,
		`  handoff progress "$LEASE" --percent 40 --message "12 of 30 files"`,
		[]string{"a LEASE"},
		func(ctx context.Context, s api.Holder, lease string) (protocol.State, error) {
			return s.Progress(ctx, lease, progress)
		})
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if !utf8.ValidString(details) {
			return protocol.Errorf(protocol.CodeText, "details", "holds bytes that are no UTF-8")
		}
		if details != "" {
			progress.Details = jsonOrText(details)
		}
		return nil
	}
	cmd.Flags().Float64Var(&progress.Percent, "percent", 0, "how much is done, 0 to 100")
	cmd.Flags().StringVar(&progress.Message, "message", "", "in words")
	cmd.Flags().StringVar(&details, "details", "", "whatever else; JSON if it parses, else text")
	return cmd
}

func newFail(a *app) *cobra.Command {
	var (
		failure   broker.Failure
		permanent bool
	)
	cmd := a.leaseCommand("fail LEASE --reason WHY",
		"End the attempt without a result",
		`Fail ends the attempt. It is tried again while attempts remain, with growing delay
and no sooner than --retry-after; with --permanent the handoff closes as failed.`,
		`  handoff fail "$LEASE" --reason "the API is down" --retry-after 5m
  handoff fail "$LEASE" --reason "there is no such repository" --permanent`,
		[]string{"a LEASE"},
		func(ctx context.Context, s api.Holder, lease string) (protocol.State, error) {
			failure.Retryable = !permanent
			return s.Fail(ctx, lease, failure)
		})
	cmd.Flags().StringVar(&failure.Message, "reason", "", "why")
	cmd.Flags().StringVar(&failure.Code, "code", "handler", "the reason as a word to count by")
	cmd.Flags().BoolVar(&permanent, "permanent", false, "no other attempt would do better")
	fieldVar(cmd.Flags(), &failure.RetryAfter, "retry-after", "the next attempt comes no sooner")
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if err := needWords("reason", failure.Message); err != nil {
			return err
		}
		if err := checkWords("code", failure.Code); err != nil {
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
		func(ctx context.Context, s api.Holder, lease string) (protocol.State, error) {
			return s.Release(ctx, lease, reason)
		})
	cmd.Flags().StringVar(&reason, "reason", "", "why")
	cmd.PreRunE = func(*cobra.Command, []string) error { return checkWords("reason", reason) }
	return cmd
}

func newEscalate(a *app) *cobra.Command {
	var rationale, assessment string
	cmd := a.leaseCommand("escalate LEASE --rationale WHY",
		"Pass a handoff up to whom its agent escalates to",
		`Escalate passes the handoff up the chain of authority: to the agent that this one
escalates to (handoff agents put --escalates-to), at the third level always to a
person. The one that gets it sees the rationale, and the assessments of all levels before.
It comes back when it is answered ("handoff answer"), and counts its attempts anew.`,
		`  handoff escalate "$LEASE" --rationale "the change touches billing" --assessment "the code itself is fine"`,
		[]string{"a LEASE"},
		func(ctx context.Context, s api.Holder, lease string) (protocol.State, error) {
			return s.Escalate(ctx, lease, rationale, assessment)
		})
	cmd.Flags().StringVar(&rationale, "rationale", "", "why an agent or a person above must decide; required")
	cmd.Flags().StringVar(&assessment, "assessment", "", "what you have found out so far")
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if err := needWords("rationale", rationale); err != nil {
			return err
		}
		return checkWords("assessment", assessment)
	}
	return cmd
}
