package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
)

// waitOptions are the flags of wait.
type waitOptions struct {
	timeout time.Duration
	until   string
	cancel  bool
	gateway bool
	chain   bool
	tree    bool

	limit time.Duration // negative is to wait without end
}

// check refuses flags that do not go together.
func (o *waitOptions) check(changed func(flag string) bool) error {
	switch {
	case !slices.Contains(untilWords, o.until):
		return usagef("--until %s: wait until %s", o.until, strings.Join(untilWords, ", "))
	case o.chain && o.until == untilReturned:
		return usagef("--until %s and --chain do not go together: the return of a handoff is that of its chain", o.until)
	}
	if o.tree {
		switch {
		case o.chain:
			return usagef("--tree and --chain are two things; choose one: --tree waits for the chain, too")
		case o.until != string(api.UntilClosed):
			return usagef("--tree waits until all is closed; leave out --until")
		case o.cancel:
			return usagef("--cancel-on-timeout is about one handoff or its chain; handoff cancel --children ends a tree")
		}
	}
	o.limit = -1
	if changed("timeout") {
		o.limit = o.timeout
	}
	return nil
}

// cancelLate asks for the end of what a wait has timed out for. last is the handoff that its
// chain has come to, if that is waited for.
func cancelLate(ctx context.Context, s *source, ticket string, last protocol.State, chain bool) (protocol.State, error) {
	state, err := s.Cancel(ctx, api.Cancel{Ticket: last.Ticket, Reason: "not done when the wait for it timed out", Children: chain})
	if err == nil && chain {
		state, err = s.LastOfChain(ctx, ticket)
	}
	if err == nil {
		err = failed(state)
	}
	return state, err
}
