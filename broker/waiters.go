package broker

import (
	"context"
	"errors"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// WaitersOf reads the handoffs that may wait for the end of one, directly or not: its group, the first
// of its chain, its parent, and theirs. keepsSlot reports whether one keeps its slot meanwhile: whatever
// waits by its result does not. read is Broker.Head.
func WaitersOf(ctx context.Context, read func(ctx context.Context, ticket string, min uint64) (Head, error), s protocol.State) (waiters []protocol.State, keepsSlot bool, err error) {
	for {
		ticket, waited := lifecycle.WaitedBy(s)
		if !waited {
			return waiters, keepsSlot, nil
		}
		next, err := read(ctx, ticket, 0)
		switch {
		case errors.Is(err, ErrNotFound) || Unreadable(err):
			return waiters, keepsSlot, nil
		case err != nil:
			return nil, false, err
		}
		keepsSlot = keepsSlot || lifecycle.KeepsSlotFor(next.State, s)
		waiters, s = append(waiters, next.State), next.State
	}
}
