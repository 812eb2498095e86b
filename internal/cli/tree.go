package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/dossier"
)

func newTree(a *app) *cobra.Command {
	var long bool
	cmd := &cobra.Command{
		Use:     "tree TICKET",
		Aliases: []string{"family"},
		Short:   "Draw the chain or tree of handoffs that one belongs to",
		Long: `Tree draws all handoffs that belong together with one, from the first of them on:
what was handed off, the members of groups, returns, redrives. The one you asked for
is marked. Each line has its ticket, what it is to the one above it, from whom to
whom it goes, where it stands, how long it took or has taken, and its task. "handed on"
is a link of a chain, by goto, and "(end)" its last one: "(open end)" while that is open.

It is read from the ledger. Handoffs that merely name one of these as their parent
are found through the index (handoff index; handoff dev has one); where none
answers, a remark says that they may be missing. It shows at most 1,001: the
largest group, and all of its members.

Exit codes: 0 the handoff exists; 3 no such ticket.`,
		Example: `  handoff tree 5f0c…
  handoff tree 5f0c… --long                          # whole tickets
  handoff tree 5f0c… -o json | jq -r '.. | .ticket? // empty'`,
		Args: takes("a TICKET"),
		RunE: a.onTicket(func(ctx context.Context, b *broker.Broker, ticket string) error {
			v, err := dossier.TreeOf(ctx, a.reader(b), ticket)
			return printed(a, v, err, func(v dossier.Tree) error { return a.tree(v, long) })
		}),
	}
	cmd.Flags().BoolVar(&long, "long", false, "print whole tickets")
	return cmd
}
