package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// chainHelp explains --chain.
const chainHelp = `--chain means the end of the chain: of the handoffs that follow from this one by goto.`

func chainFlag(cmd *cobra.Command, chain *bool, what string) {
	cmd.Flags().BoolVar(chain, "chain", false, what)
}

// noteChain prints on stderr how to follow the chain of a handoff that was handed on.
func (a *app) noteChain(s protocol.State, command string) {
	if next, goesOn := lifecycle.NextInChain(s); goesOn && a.text() {
		a.notef("handoff: it continues as %s; for the whole chain: handoff %s %s --chain\n", next, command, s.Ticket)
	}
}

// openReturn is the error of a return that waits for the end of a chain. It names the handoff
// that the chain has come to.
func openReturn(ctx context.Context, s *source, state protocol.State) error {
	last, err := s.LastOfChain(ctx, state.Ticket)
	if err != nil {
		return err
	}
	return &openError{state: last, returnOf: state.Ticket}
}
