package cli

import (
	"cmp"
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
)

// Actions of a person, or of an agent in charge, on a handoff that another agent has: each works on
// every open handoff, whichever agent has it now.

// act is a command that does something with a ticket, and prints the state after it.
func (a *app) act(cmd *cobra.Command, do func(ctx context.Context, s *api.Session, ticket string) (protocol.State, error)) *cobra.Command {
	cmd.Args = takes("a TICKET")
	cmd.RunE = a.onTicket(func(ctx context.Context, s *source, ticket string) error {
		return a.state(do(ctx, s.session, ticket))
	})
	return cmd
}

// actOnEach is a command that does something short with each of its tickets.
func (a *app) actOnEach(cmd *cobra.Command, do func(ctx context.Context, s *api.Session, ticket string) error) *cobra.Command {
	cmd.Args = takesMore("a TICKET")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		tickets, err := a.parseTickets(cmd.Context(), args)
		if err != nil {
			return err
		}
		return a.onEngine(cmd.Context(), func(ctx context.Context, s *source) error {
			for _, ticket := range tickets {
				if err := do(ctx, s.session, ticket); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return cmd
}

// fromFlag names the actor, if not the one of the environment.
func (a *app) fromFlag(cmd *cobra.Command, who string) {
	cmd.Flags().StringVar(&a.from, "from", "", who+" (default $HANDOFF_AGENT, else human)")
}

func newCancel(a *app) *cobra.Command {
	var request api.Cancel
	cmd := a.act(&cobra.Command{
		Use:   "cancel TICKET",
		Short: "Ask for the end of a handoff",
		Long: `Cancel ends a handoff at once where no worker holds it. A worker that holds it learns of it
with its next beat and given time to stop (policy cancel_grace_ms, 30s by default);
"handoff wait TICKET" sees the end.

--children also cancels all handoffs below it, such as the members of a group, even if
the handoff itself is closed already.

Exit codes: 0 cancelled, or the worker was asked to stop; 9 it was closed already.`,
		Example: `  handoff cancel 5f0c… --reason "no longer needed"
  handoff cancel 5f0c… && handoff wait 5f0c… --timeout 1m
  handoff cancel 5f0c… --children`,
		PreRunE: func(*cobra.Command, []string) error { return checkWords("reason", request.Reason) },
	}, func(ctx context.Context, s *api.Session, ticket string) (protocol.State, error) {
		request.Ticket = ticket
		return s.Cancel(ctx, request)
	})
	alone := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !request.Children {
			return alone(cmd, args)
		}
		ticket, err := a.ticket(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		request.Ticket = ticket
		return a.onLedger(cmd.Context(), func(ctx context.Context, s *source) error { // a group may have a thousand
			return a.state(s.Cancel(ctx, request))
		})
	}
	bind(cmd.Flags(), &request)
	a.fromFlag(cmd, "who asks")
	return cmd
}

func newReroute(a *app) *cobra.Command {
	var (
		request  api.Reroute
		deadline string
	)
	cmd := a.act(&cobra.Command{
		Use:   "reroute TICKET --to AGENT",
		Short: "Send an open handoff to another agent",
		Long: `Reroute offers a handoff to the agent that you name, whichever agent has it now: it
is taken out of a queue, or from a worker, which finds its lease lost. Attempts are counted
anew there. It does not count as one of the reroutes that the policy allows, and a
refusal by that agent is forgotten. An overdue handoff stays so, and ends with the time
to intervene, unless --deadline gives it a new deadline: at most 90 days after its
submission. An agent reroutes to none that lacks the autonomy, the capabilities or the
context that the handoff needs; a person may, and history and why name the override.

Exit codes: 0 it is offered there; 9 no such agent, it is not fit, or the handoff is closed.`,
		Example: `  handoff reroute 5f0c… --to tester --reason "the reviewer is on leave"
  handoff reroute 5f0c… --to bob --deadline 2h`,
		PreRunE: func(*cobra.Command, []string) error {
			if request.To == "" {
				return usagef("reroute needs --to AGENT")
			}
			if err := protocol.CheckAgent("to", request.To); err != nil {
				return err
			}
			if deadline != "" {
				var err error
				if request.Deadline, _, err = parseInstant(deadline, time.Now()); err != nil {
					return usagef("--deadline: %v", err)
				}
			}
			return checkWords("reason", request.Reason)
		},
	}, func(ctx context.Context, s *api.Session, ticket string) (protocol.State, error) {
		request.Ticket = ticket
		return s.Reroute(ctx, request)
	})
	bind(cmd.Flags(), &request)
	cmd.Flags().StringVar(&deadline, "deadline", "", "a new deadline: `WHEN`, as a duration from now (2h, 3d) or an instant")
	a.fromFlag(cmd, "who reroutes")
	return cmd
}

func newTake(a *app) *cobra.Command {
	request := api.Take{Lease: claimLease, Host: hostname()}
	cmd := &cobra.Command{
		Use:   "take TICKET",
		Short: "Take an open handoff into your own hands",
		Long: `Take puts one particular handoff into your hands, whichever agent has it now, and prints
a LEASE and the package, as "handoff claim" does. It is accepted with that; go on with
heartbeat, progress, complete, fail, release or rollback. A worker that had it finds its
lease lost.

"handoff claim" takes the next offer from a queue instead. An agent takes none for which
it lacks the autonomy, the capabilities or the context; a person takes all.

Exit codes: 0 it is yours; 9 it is closed, a group, not for that agent, or no such agent.`,
		Example: `  handoff take 5f0c… > taken
  LEASE=$(sed -n 's/^LEASE //p' taken)
  handoff complete "$LEASE" --text "done by hand"`,
		Args:    takes("a TICKET"),
		PreRunE: func(*cobra.Command, []string) error { return checkWords("reason", request.Reason) },
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Agent = cmp.Or(request.Agent, a.me())
			if err := cmp.Or(protocol.CheckAgent("agent", request.Agent), api.CheckLease(request.Lease)); err != nil {
				return err
			}
			return a.onTicket(func(ctx context.Context, s *source, ticket string) error {
				request.Ticket = ticket
				return a.held(s.session.Take(ctx, request))
			})(cmd, args)
		},
	}
	bind(cmd.Flags(), &request)
	return cmd
}

// raiseCommand is the command that raises a limit of a handoff.
func raiseCommand(ticket, limit string) string {
	switch limit {
	case "max_tokens":
		return "handoff raise " + ticket + " --tokens N"
	case "max_cost_micros":
		return "handoff raise " + ticket + " --cost AMOUNT"
	}
	return "handoff raise " + ticket
}

func newRaise(a *app) *cobra.Command {
	var more protocol.Amounts
	cmd := a.act(&cobra.Command{
		Use:   "raise TICKET",
		Short: "Add to the limits of an open handoff",
		Long: `Raise adds to the limits of an open handoff that has such limits: handoffs, agents,
tokens or cost. A handoff that waits for its budget (on_exhausted: ask) goes on then.
Limits are never lowered. The addition stays with this handoff: the limits of those
above it do not change.

Exit codes: 0 added; 3 no such ticket; 9 it is closed, or has no such limit.`,
		Example: `  handoff raise 5f0c… --tokens 50000
  handoff raise 5f0c… --handoffs 2 --cost 0.50`,
		PreRunE: func(*cobra.Command, []string) error {
			if more.IsZero() {
				return usagef("give an amount: --handoffs, --agents, --tokens or --cost")
			}
			return nil
		},
	}, func(ctx context.Context, s *api.Session, ticket string) (protocol.State, error) {
		return s.Raise(ctx, ticket, more)
	})
	bind(cmd.Flags(), &more)
	a.fromFlag(cmd, "who allows it")
	return cmd
}
