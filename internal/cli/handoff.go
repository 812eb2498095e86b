package cli

import (
	"context"
	"errors"
	"slices"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// notChild are the flags that make no sense for a handoff from a LEASE: its source, its parent and
// its ticket follow from the lease.
var notChild = []string{"from", "parent", "wait", "dry-run"}

// checkChild refuses flags that do not go with a handoff from a LEASE.
func (o *submitOptions) checkChild(inProgram bool) error {
	with := "--under"
	switch {
	case inProgram:
		with = "--await block"
	case o.Under == "" && o.awaits(): // no worker would be woken
		return usagef("--await block is for a program that handoff work runs, and for hand-offs from a LEASE (--under); to wait here, write --wait")
	case o.Under == "":
		return nil
	}
	for _, name := range notChild {
		if o.changed(name) {
			return usagef("--%s does not go with %s; see handoff submit --help", name, with)
		}
	}
	return nil
}

// handOff hands off under a lease: that of --under, or that of the handoff which this program works
// on. Of the second, a sequential handoff begins at once, too.
func (a *app) handOff(ctx context.Context, s *source, lease string, pkg protocol.Package, o *submitOptions) error {
	own := o.Under == ""
	var made api.Child
	err := a.ask(ctx, func(ctx context.Context) (err error) {
		made, err = s.HandOff(ctx, api.HandOff{Lease: lease, Package: pkg, AtOnce: own, Waits: o.limit != nil})
		return err
	})
	if err != nil && !is[*protocol.Error](err) {
		err = &unknownError{err}
	}
	switch {
	case own && errors.Is(err, &protocol.Error{Code: protocol.CodeLeaseInvalid}):
		return inField(err, worker.EnvLease, "; unset it, or give --no-lease")
	case err != nil:
		return leaseRefusal(lease, err)
	}
	o.OrRun.placed = true
	if !own && a.text() {
		a.printf("%s\n", made.Ticket)
		if all := made.Parent.Children; all != nil && slices.Contains(explain.ChildTickets(made.Parent, all.After), made.Ticket) {
			a.notef("handoff: %s begins when this handoff completes; an attempt that ends without a result drops it\n", made.Ticket)
		}
		return nil
	}
	var state protocol.State
	err = a.ask(ctx, func(ctx context.Context) (err error) {
		state, err = s.Status(ctx, made.Ticket)
		return err
	})
	switch {
	case err != nil:
		return err
	case own:
		return a.submitted(ctx, s, state, o.limit)
	}
	return a.valueWithMembers(ctx, s, state)
}

func newAwait(a *app) *cobra.Command {
	cmd := a.leaseCommand("await LEASE [TICKET…]",
		"Let go of a handoff until those that it handed off have ended",
		`Await lets go of the handoff until others that it has handed off (submit --under) have
closed, however they ended: those named, or all that this attempt has handed off or found
again. No attempt is charged, and
no slot is held. Then it is offered to the same agent again, as the same
attempt: claim it, and their ends are there as RETURN lines.`,
		`  LEASE=$(handoff claim --agent lead --accept | sed -n 's/^LEASE //p')
  handoff submit --under "$LEASE" --type delegation --await block --return-timeout 1h --to coder --reason r --task t
  handoff await "$LEASE"
  handoff claim --agent lead --accept --wait 1h`,
		nil, nil)
	cmd.Args = takesMore("a LEASE")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		tickets, err := a.parseTickets(cmd.Context(), args[1:])
		if err != nil {
			return err
		}
		return a.onLease(func(ctx context.Context, s api.AgentOperations, lease string) (protocol.State, error) {
			state, err := s.Await(ctx, lease, tickets)
			err = advise(err, protocol.CodeIllegal, "children", explain.OpSubmitUnder)
			return state, advise(err, protocol.CodeConflict, "ticket", explain.OpReturn)
		})(cmd, args)
	}
	return cmd
}
