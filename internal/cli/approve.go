package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

// verdictFlags are the flags of approve and deny.
type verdictFlags struct {
	verdict api.Verdict
	from    string
}

func newApprove(a *app) *cobra.Command {
	var f verdictFlags
	cmd := a.verdictCommand(&cobra.Command{
		Use:   "approve TICKET…",
		Short: "Let an agent have a handoff that waits for an approval",
		Long: `Approve says that the agent which a handoff waits for may have it: it is offered to
that agent. "handoff inbox" lists what waits for you, and "handoff why TICKET" says who
is asked, and why.

An approval holds for this handoff and this agent. Should the agent refuse it, the next
one is asked for anew; a retry is not. --any approves every agent. --agent names the one
that you were asked about: where it is another one by now, nothing is approved.

The approver may approve it, an agent above the approver, and a person; never its source
or the agent that gets it, unless that is a person.

Exit codes: 0 approved; 9 it waits for no approval (any more), or not for yours.`,
		Example: `  handoff approve 5f0c…
  handoff approve 5f0c… --agent deployer --comment "after the freeze"
  handoff inbox -o jsonl | jq -r 'select(.why == "approval") | .ticket' | xargs handoff approve`,
	}, &f, "approved", (*api.Session).Approve)
	cmd.Flags().BoolVar(&f.verdict.Any, "any", false, "approve every agent that gets it")
	cmd.Flags().StringVar(&f.verdict.Reason, "comment", "", "what there is to say about it")
	return cmd
}

func newDeny(a *app) *cobra.Command {
	var f verdictFlags
	cmd := a.verdictCommand(&cobra.Command{
		Use:   "deny TICKET…",
		Short: "End a handoff that waits for an approval",
		Long: `Deny says that the agent which a handoff waits for may not have it: the handoff closes
as rejected (approval_denied), and its source gets that as its return, if it expects one.
To have another agent do it, hand it off again to that one.

The approver may deny it, an agent above the approver, and a person; never its source or
the agent that would get it, unless that is a person.

What an agent asks for during its work is denied by "handoff answer TICKET --deny".

Exit codes: 0 denied; 9 it waits for no approval (any more), or not for yours.`,
		Example: `  handoff deny 5f0c… --reason "not before the release"`,
	}, &f, "denied", (*api.Session).Deny)
	cmd.Flags().StringVar(&f.verdict.Reason, "reason", "", "why; required")
	return cmd
}

// verdictCommand gives a verdict on each ticket.
func (a *app) verdictCommand(cmd *cobra.Command, f *verdictFlags, done string,
	decide func(*api.Session, context.Context, api.Verdict) (protocol.State, error)) *cobra.Command {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usagef("%s needs a TICKET; see %s --help", cmd.CommandPath(), cmd.CommandPath())
		}
		return nil
	}
	cmd.PreRunE = func(*cobra.Command, []string) error { return checkWords("reason", f.verdict.Reason) }
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		tickets, err := a.parseTickets(cmd.Context(), args)
		if err != nil {
			return err
		}
		return a.onEngine(cmd.Context(), func(ctx context.Context, b *broker.Broker) error {
			for _, ticket := range tickets {
				f.verdict.Ticket = ticket
				state, err := decide(a.session(b, f.from), ctx, f.verdict)
				if err != nil {
					return adviseRaise(err, ticket)
				}
				now := "it waits for " + explain.WaitingFor(state).Words
				if state.Closed {
					now = "it is closed"
				}
				if err := a.line(dossier.StateOf(state), "%s  %s; %s\n", state.Ticket, done, now); err != nil {
					return err
				}
			}
			return nil
		})
	}
	cmd.Flags().StringVar(&f.verdict.Agent, "agent", "", "the `AGENT` that you were asked about (default: the one that is asked about now)")
	a.agentFlags(cmd, "agent")
	fromFlag(cmd, &f.from, "who decides")
	return cmd
}
