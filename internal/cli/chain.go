package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// chainHelp says what --chain means.
const chainHelp = `--chain means the end of the chain: the handoffs that follow from this one by goto. It does not go
through a gateway.`

func chainFlag(cmd *cobra.Command, chain *bool, what string) {
	cmd.Flags().BoolVar(chain, "chain", false, what)
}

// chainPollInterval is how often a handoff is looked for that a chain goes on with, and that its
// writer or a supervisor is yet to submit.
const chainPollInterval = 200 * time.Millisecond

// waitForChain is waitFor for the end of the chain that a handoff began.
func waitForChain(ctx context.Context, s *source, ticket string, limit time.Duration, until string) (protocol.State, error) {
	by := time.Now().Add(limit)
	for {
		last, err := s.b.LastOfChain(ctx, ticket)
		if err != nil {
			return last.State, err
		}
		left := limit
		if limit > 0 {
			left = max(time.Until(by), 0)
		}
		if !lifecycle.GoesOn(last.State) {
			state, err := waitFor(ctx, s, last.Ticket, left, until)
			if err != nil || !lifecycle.GoesOn(state) {
				return state, err
			}
			continue
		}
		if left == 0 {
			return last.State, &openError{last.State}
		}
		select {
		case <-ctx.Done():
			return last.State, waitInterrupted(last.Ticket)
		case <-time.After(chainPollInterval):
		}
	}
}

// chainResult prints the result of the last handoff of a chain.
func (a *app) chainResult(ctx context.Context, s *source, ticket string) error {
	last, err := s.b.LastOfChain(ctx, ticket)
	if err != nil {
		return err
	}
	return a.resultOf(ctx, s, last.Ticket)
}
