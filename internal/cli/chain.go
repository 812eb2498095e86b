package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// chainHelp explains --chain.
const chainHelp = `--chain means the end of the chain: of the handoffs that follow from this one by goto.`

func chainFlag(cmd *cobra.Command, chain *bool, what string) {
	cmd.Flags().BoolVar(chain, "chain", false, what)
}

// waitForChain is waitFor for the end of the chain that a handoff begins.
func waitForChain(ctx context.Context, s *source, ticket string, limit time.Duration, until string) (protocol.State, error) {
	return waiting{
		look: func(ctx context.Context) (protocol.State, error) { return s.LastOfChain(ctx, ticket) },
		wait: func(ctx context.Context) (protocol.State, error) {
			return s.follow(ctx, ticket, api.Until(until), true)
		},
		ready: func(state protocol.State) bool {
			ready, _ := api.Until(until).Ready(state)
			return ready && !lifecycle.GoesOn(state)
		},
		chain: true,
		again: ticket + " --chain", cancel: ticket + " --children",
	}.run(ctx, limit)
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
