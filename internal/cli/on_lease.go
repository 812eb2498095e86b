package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/protocol"
)

// leaseCommand is a command that reports on the handoff of a LEASE, and prints its state
// after that.
func (a *app) leaseCommand(use, short, long, example string, args []string, report func(ctx context.Context, s api.AgentOperations, lease string) (protocol.State, error)) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Example: example,
		Long: long + `

A LEASE is printed by "handoff claim". Exit code 7: another worker has the handoff by
now, or the LEASE was never issued; nothing was changed.`,
		Args: takes(args...),
		RunE: a.onLease(report),
	}
}

// onLease is the RunE of a command that reports on the handoff of a LEASE.
func (a *app) onLease(report func(ctx context.Context, s api.AgentOperations, lease string) (protocol.State, error)) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		return a.onHolder(cmd.Context(), args[0], func(ctx context.Context, s *source) error {
			state, err := report(ctx, s, args[0])
			if err != nil {
				return leaseRefusal(args[0], err)
			}
			return a.line(dossier.StateOf(state), "%s  %s\n", state.Ticket, a.phase(state))
		})
	}
}

// onHolder does something short with a LEASE, through a gateway if one was claimed through.
func (a *app) onHolder(ctx context.Context, lease string, do func(context.Context, *source) error) error {
	token, err := broker.ParseLease(lease)
	return a.on(ctx, err == nil && token.Remote, token.Agent, do)
}

// leaseRefusal explains a lost lease: the present state of its handoff.
func leaseRefusal(lease string, err error) error {
	lost := func(format string, args ...any) error {
		return protocol.Errorf(protocol.CodeLeaseLost, "lease", format, args...)
	}
	token, _ := broker.ParseLease(lease)
	ticket := token.Ticket
	var late *api.LateResultError
	switch {
	case errors.As(err, &late) && late.Unkept != nil:
		return fmt.Errorf("%w; the result could not be kept either: %w", leaseRefusal(lease, late.Lost), late.Unkept)
	case errors.As(err, &late):
		return lost("has expired: the handoff is closed or another worker has it, and is unchanged; your result was kept: handoff result %s --late", ticket)
	case errors.Is(err, broker.ErrDeadlinePassed):
		return lost("has ended: the deadline passed, and the handoff is closed or with an authority; nothing was changed")
	case broker.ClockOf(err) != "":
		return lost("has ended: %v; nothing was changed", broker.LostTo(broker.ClockOf(err)))
	case errors.Is(err, broker.ErrLeaseLost):
		return lost("has expired: the handoff is closed or another worker has it; nothing was changed")
	}
	return err
}
