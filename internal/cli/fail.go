package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

func newFail(a *app) *cobra.Command {
	var (
		failure   broker.Failure
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
		func(ctx context.Context, s holder, lease string) (protocol.State, error) {
			failure.Retryable, failure.Usage = !permanent, flags.given()
			return s.Fail(ctx, lease, failure)
		})
	cmd.Flags().StringVar(&failure.Message, "reason", "", "why")
	cmd.Flags().StringVar(&failure.Code, "code", "handler", "the reason as a word to count by")
	cmd.Flags().BoolVar(&permanent, "permanent", false, "no other attempt would do better")
	flags.declare(cmd.Flags())
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
