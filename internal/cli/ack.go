package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/protocol"
)

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
		func(ctx context.Context, s holder, lease string) (protocol.State, error) {
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
