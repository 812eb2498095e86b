package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/dossier"
	natsgateway "github.com/agenthandoff/handoff/internal/gateway/nats"
	"github.com/agenthandoff/handoff/protocol"
)

// leaseCommand is a command that reports on the handoff of a LEASE, and prints its state
// after that.
func (a *app) leaseCommand(use, short, long, example string, args []string, report func(ctx context.Context, s holder, lease string) (protocol.State, error)) *cobra.Command {
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
func (a *app) onLease(report func(ctx context.Context, s holder, lease string) (protocol.State, error)) func(*cobra.Command, []string) error {
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

// holder has the operations of a holder, also those of its decisions, and of a source.
type holder interface {
	api.Holder
	api.Decider
	api.Source
	api.Sharer
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
	case broker.ClockOf(err) != "":
		return lost("is worth nothing any more: %v; nothing was changed", broker.LostTo(broker.ClockOf(err)))
	case errors.Is(err, broker.ErrLeaseLost):
		return lost("is worth nothing any more: the handoff is closed, or another holder's by now; nothing was changed")
	}
	return err
}
