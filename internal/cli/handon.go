package cli

import (
	"context"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/explain"
	"github.com/agenthandoff/handoff/protocol"
)

// childFlags make of a submission a handoff that the holder of another hands off.
type childFlags struct {
	lease string
	n     int
}

func (f *childFlags) declare(fs *pflag.FlagSet) {
	fs.StringVar(&f.lease, "under", "", "hand it off from the work that this `LEASE` stands for, which keeps track of it (handoff await)")
	fs.IntVar(&f.n, "child", 0, "with --under: its number among what was handed off, from 1 (default: the next). The same number is handed off once")
}

// notChild are the flags that make no sense for what is handed off from a LEASE:
// its source, its parent and its ticket follow from that.
var notChild = []string{"from", "parent", "key", "wait", "dry-run"}

func (f *childFlags) check(changed func(string) bool, await string) error {
	switch {
	case f.lease == "" && changed("child"):
		return usagef("--child goes with --under")
	case f.lease == "" && await == protocol.WaitBlock: // nobody would be woken
		return usagef("--await block is for what is handed off from a LEASE (--under); to wait here, write --wait")
	case f.lease == "":
		return nil
	case changed("child") && (f.n < 1 || f.n > protocol.ChildrenMax):
		return usagef("--child %d: number them from 1 to %d", f.n, protocol.ChildrenMax)
	}
	for _, name := range notChild {
		if changed(name) {
			return usagef("--%s does not go with --under; see handoff submit --help", name)
		}
	}
	return nil
}

// handOff records a handoff under the fence of whoever hands it off, and submits it.
func (a *app) handOff(ctx context.Context, pkg protocol.Package, child childFlags, flags packageFlags) error {
	return a.onLease(ctx, child.lease, func(ctx context.Context, b *broker.Broker, claim *broker.Claim) error {
		n := child.n - 1
		if made := claim.State().Children; n < 0 {
			if n = 0; made != nil {
				n = made.Count
			}
		}
		// A retry of what may have been done needs the number as it needs a key.
		ticket, err := claim.HandOff(ctx, broker.Child{N: n, Package: pkg})
		if err != nil {
			return flags.hint(err)
		}
		if a.text() {
			a.printf("%s\n", ticket)
			if made := claim.State().Children; made != nil && slices.Contains(explain.ChildTickets(claim.Ticket, made.After), ticket) {
				a.notef("handoff: %s begins when this handoff completes; an attempt that ends without a result drops it\n", ticket)
			}
			return nil
		}
		state, err := b.Status(ctx, ticket)
		if err != nil {
			return err
		}
		return a.valueWithMembers(ctx, b, state)
	})
}

func newAwait(a *app) *cobra.Command {
	cmd := a.leaseCommand("await LEASE [TICKET…]",
		"Let go until what was handed off has ended",
		`Await lets go of the handoff until others that it has handed off (submit --under) have
closed, however they ended: those named, or all of them. No attempt is charged, and
nobody's slot is held. Then it is offered to the same agent again, as the same
attempt: claim it, and their ends are there as RETURN lines.`,
		`  LEASE=$(handoff claim --agent lead --accept | sed -n 's/^LEASE //p')
  handoff submit --under "$LEASE" --type delegation --await block --return-timeout 1h --to coder --reason r --task t
  handoff await "$LEASE"
  handoff claim --agent lead --accept --wait 1h`,
		nil, nil)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usagef("await needs a LEASE; see %s --help", cmd.CommandPath())
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		tickets, err := parseTickets(args[1:])
		if err != nil {
			return err
		}
		return a.onLease(cmd.Context(), args[0], func(ctx context.Context, b *broker.Broker, claim *broker.Claim) error {
			children, err := awaitedChildren(claim.State(), tickets)
			if err != nil {
				return err
			}
			suspended, err := claim.Suspend(ctx, children...)
			if err != nil {
				return err
			}
			if !suspended {
				return protocol.Errorf(protocol.CodeConflict, "ticket", "what it would wait for has ended already; the LEASE is yours still: handoff result TICKET --return")
			}
			return a.reported(ctx, b, claim)
		})
	}
	return cmd
}

// awaitedChildren are the ordinals of children by their tickets; without any,
// those of all.
func awaitedChildren(s protocol.State, tickets []string) ([]int, error) {
	var made []int
	if s.Children != nil {
		made = s.Children.Made.Without(s.Children.After).Numbers()
	}
	if len(made) == 0 {
		return nil, protocol.Errorf(protocol.CodeIllegal, "lease", "%s has handed off nothing; hand it off with: handoff submit --under LEASE", s.Ticket)
	}
	if len(tickets) == 0 {
		return made, nil
	}
	byTicket := map[string]int{}
	for _, n := range made {
		byTicket[protocol.ChildTicketN(s.Ticket, n)] = n
	}
	var children []int
	for _, ticket := range tickets {
		n, ok := byTicket[ticket]
		if !ok {
			return nil, protocol.Errorf(protocol.CodeIllegal, "ticket", "%s was not handed off from %s", ticket, s.Ticket)
		}
		children = append(children, n)
	}
	return children, nil
}
