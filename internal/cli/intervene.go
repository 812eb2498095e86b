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
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usagef("%s needs a TICKET; see %s --help", cmd.CommandPath(), cmd.CommandPath())
		}
		return nil
	}
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
	var (
		reason   string
		children bool
	)
	cmd := a.act(&cobra.Command{
		Use:   "cancel TICKET",
		Short: "Ask for the end of a handoff",
		Long: `Cancel ends a handoff at once where no worker holds it. A worker that holds it is told
with its next beat and given time to stop (policy cancel_grace_ms, 30s by default);
"handoff wait TICKET" sees the end.

--children cancels everything that it has handed off as well, and what that has
handed off: the members of a group, for one. It does so where the handoff itself
is closed already, too.

Exit codes: 0 cancelled, or the worker was asked to stop; 9 it was closed already.`,
		Example: `  handoff cancel 5f0c… --reason "no longer needed"
  handoff cancel 5f0c… && handoff wait 5f0c… --timeout 1m
  handoff cancel 5f0c… --children`,
		PreRunE: func(*cobra.Command, []string) error { return checkWords("reason", reason) },
	}, func(ctx context.Context, s *api.Session, ticket string) (protocol.State, error) {
		return s.Cancel(ctx, api.Cancel{Ticket: ticket, Reason: reason})
	})
	alone := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !children {
			return alone(cmd, args)
		}
		ticket, err := a.ticket(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return a.onLedger(cmd.Context(), func(ctx context.Context, s *source) error { // a group may have a thousand
			return a.state(s.Cancel(ctx, api.Cancel{Ticket: ticket, Reason: reason, Children: true}))
		})
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why")
	cmd.Flags().BoolVar(&children, "children", false, "cancel what it has handed off, too")
	a.fromFlag(cmd, "who asks")
	return cmd
}

func newReroute(a *app) *cobra.Command {
	var (
		to, reason, deadline string
		until                time.Time
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
			if to == "" {
				return usagef("reroute needs --to AGENT")
			}
			if err := protocol.CheckAgent("to", to); err != nil {
				return err
			}
			if deadline != "" {
				var err error
				if until, _, err = parseInstant(deadline, time.Now()); err != nil {
					return usagef("--deadline: %v", err)
				}
			}
			return checkWords("reason", reason)
		},
	}, func(ctx context.Context, s *api.Session, ticket string) (protocol.State, error) {
		return s.Reroute(ctx, api.Reroute{Ticket: ticket, To: to, Reason: reason, Deadline: until})
	})
	cmd.Flags().StringVar(&deadline, "deadline", "", "a new deadline: `WHEN`, as a duration from now (2h, 3d) or an instant")
	cmd.Flags().StringVar(&to, "to", "", "the `AGENT` that gets it; required")
	cmd.Flags().StringVar(&reason, "reason", "", "why")
	a.fromFlag(cmd, "who reroutes")
	a.agentFlags(cmd, "to", "from")
	return cmd
}

func newTake(a *app) *cobra.Command {
	var (
		agent, reason string
		lease         time.Duration
	)
	cmd := &cobra.Command{
		Use:   "take TICKET",
		Short: "Take an open handoff into your own hands",
		Long: `Take puts one particular handoff into your hands, whichever agent has it now, and
prints what "handoff claim" prints: a LEASE, and the package. It is accepted with that; go on
with heartbeat, progress, complete, fail, release or rollback. A worker that had it
finds its lease lost.

"handoff claim" takes the next one from a queue instead, and only what is offered. An agent
takes none for which it lacks the autonomy, the capabilities or the context; a person takes all.

Exit codes: 0 it is yours; 9 it is closed, a group, not for that agent, or no such agent.`,
		Example: `  handoff take 5f0c… > taken
  LEASE=$(sed -n 's/^LEASE //p' taken)
  handoff complete "$LEASE" --text "done by hand"`,
		Args:    takes("a TICKET"),
		PreRunE: func(*cobra.Command, []string) error { return checkWords("reason", reason) },
		RunE: func(cmd *cobra.Command, args []string) error {
			agent = cmp.Or(agent, a.me())
			if err := protocol.CheckAgent("agent", agent); err != nil {
				return err
			}
			if err := api.CheckLease(lease); err != nil {
				return err
			}
			return a.onTicket(func(ctx context.Context, s *source, ticket string) error {
				return a.held(s.session.Take(ctx, api.Take{Ticket: ticket, Agent: agent, Lease: lease, Reason: reason, Host: hostname()}))
			})(cmd, args)
		},
	}
	cmd.Flags().StringVar(&agent, "agent", "", "the `AGENT` that takes it (default $HANDOFF_AGENT, else human)")
	durationVar(cmd.Flags(), &lease, "lease", claimLease, "how long it stays yours without a heartbeat")
	cmd.Flags().StringVar(&reason, "reason", "", "why")
	a.agentFlags(cmd, "agent")
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
		Long: `Raise adds to the limits of an open handoff that has such limits: handoffs, agents, tokens
or cost. A handoff that waits for its budget (on_exhausted: ask) goes on then. Limits are never
lowered. What is added stays with this handoff: the limits of those above it are as they were.

Exit codes: 0 added; 3 no such ticket; 9 it is closed, or has no such limit.`,
		Example: `  handoff raise 5f0c… --tokens 50000
  handoff raise 5f0c… --handoffs 2 --cost 0.50`,
		PreRunE: func(*cobra.Command, []string) error {
			if more.IsZero() {
				return usagef("say what is added: --handoffs, --agents, --tokens or --cost")
			}
			return nil
		},
	}, func(ctx context.Context, s *api.Session, ticket string) (protocol.State, error) {
		return s.Raise(ctx, ticket, more)
	})
	fs := cmd.Flags()
	fs.Int64Var(&more.Handoffs, "handoffs", 0, "`N` handoffs more below it")
	fs.Int64Var(&more.Agents, "agents", 0, "`N` agents more")
	fs.Int64Var(&more.Tokens, "tokens", 0, "`N` tokens more")
	fs.Var((*costValue)(&more.CostMicros), "cost", "as much more cost, as 0.50")
	a.fromFlag(cmd, "who allows it")
	return cmd
}
