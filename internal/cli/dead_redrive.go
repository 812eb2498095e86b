package cli

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// redriveOptions are the flags of dead redrive.
type redriveOptions struct {
	deadFilter
	to, from        string
	all, yes, again bool
}

func newDeadRedrive(a *app) *cobra.Command {
	var o redriveOptions
	cmd := &cobra.Command{
		Use:   "redrive TICKET… | --all --yes",
		Short: "Submit them again, as new handoffs that name their origin",
		Long: `Redrive submits the package of a handoff that closed without success again. It gets a
ticket of its own, which is printed beside the old one, and names its origin; its worker
sees the trail. It leaves the inbox and the list of dead letters. What was
redriven already is refused.

A group is redriven whole, all of its members; a member of one alone. The agents that
refused it are left out, unless --again is given, or --to names them.

--all means every dead letter that the filters of "handoff dead list" leave, but for
the members of groups that are among them. It needs --yes; without that they are
listed, and nothing is done. Each is printed when it is done; one that cannot be
redriven does not keep the others from it.

Exit codes: 0 all were redriven; 9 one was refused, and the message says which.`,
		Example: `  handoff dead redrive 5f0c…
  handoff dead redrive 5f0c… --to expert
  handoff dead redrive --all --agent reviewer --since 2h --yes`,
		Args: o.args,
		PreRunE: func(*cobra.Command, []string) error {
			if o.to != "" {
				if err := protocol.CheckAgent("to", o.to); err != nil {
					return err
				}
			}
			return o.check(time.Now())
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			tickets, err := a.parseTickets(cmd.Context(), args)
			if err != nil {
				return err
			}
			return a.onLedger(cmd.Context(), func(ctx context.Context, b *broker.Broker) error {
				if o.all {
					if tickets, err = a.toRedrive(ctx, b, &o); err != nil {
						return err
					}
				}
				return a.redrive(ctx, a.session(b, o.from), tickets, o.to, o.again)
			})
		},
	}
	o.declare(a, cmd)
	cmd.Flags().BoolVar(&o.all, "all", false, "redrive every dead letter that the filters leave")
	cmd.Flags().BoolVar(&o.yes, "yes", false, "with --all: do it")
	cmd.Flags().StringVar(&o.to, "to", "", "send them to this `AGENT` instead")
	cmd.Flags().BoolVar(&o.again, "again", false, "offer them to the agents that refused them, too")
	fromFlag(cmd, &o.from, "who redrives")
	a.agentFlags(cmd, "to", "from")
	return cmd
}

func (o *redriveOptions) args(cmd *cobra.Command, args []string) error {
	switch {
	case o.all && len(args) > 0:
		return usagef("redrive takes TICKETs or --all, not both")
	case !o.all && len(args) == 0:
		return usagef("redrive needs a TICKET, or --all; see %s --help", cmd.CommandPath())
	case !o.all && slices.ContainsFunc(deadFilterFlags, cmd.Flags().Changed):
		return usagef("--agent, --source, --outcome, --since and --limit go with --all")
	}
	return nil
}

// toRedrive are the dead letters that the filters leave. Without --yes it lists them instead.
func (a *app) toRedrive(ctx context.Context, b *broker.Broker, o *redriveOptions) ([]string, error) {
	states, err := a.session(b, "").DeadLetters(ctx, o.query())
	if err != nil {
		return nil, err
	}
	states = withoutMembers(states)
	switch {
	case len(states) == 0:
		a.notef("handoff: no dead letters\n")
	case !o.yes:
		return nil, errors.Join(a.deadLetters(states), usagef("these %d would be redriven; say so with --yes", len(states)))
	}
	tickets := make([]string, len(states))
	for i, s := range states {
		tickets[i] = s.Ticket
	}
	return tickets, nil
}

// withoutMembers leaves out the members of groups that are redriven whole: else
// each would be submitted twice.
func withoutMembers(states []protocol.State) []protocol.State {
	groups := map[string]bool{}
	for _, s := range states {
		groups[s.Ticket] = s.Aggregate != nil
	}
	return slices.DeleteFunc(states, func(s protocol.State) bool { return groups[s.Group] })
}
