package cli

import (
	"cmp"
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

func newRollback(a *app) *cobra.Command {
	var (
		flags        resultFlags
		reason, from string
		partial      *protocol.Result
	)
	cmd := &cobra.Command{
		Use:   "rollback TICKET|LEASE --reason WHY",
		Short: "Roll a handoff back to its source, undone",
		Long: `Rollback ends a handoff and returns it to its source, undone, with the reason and with
what there is of a result. Its outcome is rolled_back.

With a TICKET a client asks for it. Where no worker holds the handoff, that is done at
once; a worker that holds it is told with its next beat, cleans up, and returns what
it has. With a LEASE (what "handoff claim" and "take" print, it begins with lease_)
the holder itself rolls it back, and -f, --text, --body and their like add the part
of the result that is there, as in "handoff complete".

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
					return usagef("--%s is for a holder that rolls back its own LEASE; a TICKET comes back with what its worker has", name)
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
				return a.onLease(func(ctx context.Context, s holder, lease string) (protocol.State, error) {
					return s.RollBackHeld(ctx, lease, reason, partial)
				})(cmd, args)
			}
			return a.onTicket(func(ctx context.Context, b *broker.Broker, ticket string) error {
				return a.state(a.session(b, from).RollBack(ctx, ticket, reason))
			})(cmd, args)
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVar(&reason, "reason", "", "why; required")
	fromFlag(cmd, &from, "who asks for it, with a TICKET")
	flags.declare(fs, false)
	return cmd
}

// isLease tells a LEASE from a TICKET by how it begins.
func isLease(text string) bool { return strings.HasPrefix(text, "lease_") }
