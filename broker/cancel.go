package broker

import (
	"context"
	"errors"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// CancelChildren requests the end of the children of a handoff and of their descendants. If the
// handoff was cancelled together with its children, that includes closed children; otherwise only
// open ones.
func (b *Broker) CancelChildren(ctx context.Context, head Head, by, reason string) error {
	c := head.State.Children
	if c == nil {
		return nil
	}
	those := c.Made
	if !head.State.CancelChildren {
		those = c.Made.Without(c.Closed)
	}
	return b.cancelDescendants(ctx, childrenOf(head, those), by, reason)
}

// CancelTree cancels a handoff and all its descendants. A handoff that is already closed is no
// error: its children are cancelled all the same.
func (b *Broker) CancelTree(ctx context.Context, ticket, by, reason string) (protocol.State, error) {
	if err := protocol.CheckBy("by", by); err != nil {
		return protocol.State{}, err
	}
	head, err := b.cancelHandoff(ctx, ticket, by, reason)
	if err != nil {
		return head.State, unknownTicketError(ticket, err)
	}
	if head.State.Children == nil {
		return head.State, nil
	}
	return head.State, b.cancelDescendants(ctx, childrenOf(head, head.State.Children.Made), by, reason)
}

func (b *Broker) cancelHandoff(ctx context.Context, ticket, by, reason string) (Head, error) {
	head, err := b.Head(ctx, ticket, 0)
	if err != nil {
		return head, err
	}
	head, _, err = b.update(ctx, head, wantSourceIfReturned, func(h Head, q lifecycle.Query) (lifecycle.Step, error) {
		if h.State.Closed {
			return lifecycle.Step{}, nil
		}
		return lifecycle.Cancel(h.State, q, by, cutReason(reason), true)
	})
	return head, err
}

// child is the ticket of a handoff and its parent.
type child struct {
	ticket string
	parent Head
}

func childrenOf(parent Head, those protocol.Bits) []child {
	var all []child
	for _, n := range those.Numbers() {
		all = append(all, child{parent.State.ChildTicket(n), parent})
	}
	return all
}

// cancelDescendants cancels one generation after another. A chain has one handoff per generation,
// so memory does not grow with its length.
func (b *Broker) cancelDescendants(ctx context.Context, generation []child, by, reason string) error {
	var failed []error
	for len(generation) > 0 {
		heads := make([]Head, len(generation))
		err := forEachParallel(ctx, len(generation), func(ctx context.Context, i int) (err error) {
			heads[i], err = b.cancelChild(ctx, generation[i], by, reason)
			return err
		})
		if failed = append(failed, err); errors.Is(err, ErrUnreachable) || ctx.Err() != nil {
			break
		}
		generation = nil
		for _, head := range heads {
			if head.State.Children != nil {
				generation = append(generation, childrenOf(head, head.State.Children.Made)...)
			}
		}
	}
	return errors.Join(failed...)
}

// cancelChild cancels one child. A child that was announced and does not exist yet is submitted
// first, so that no worker can start it later.
func (b *Broker) cancelChild(ctx context.Context, c child, by, reason string) (Head, error) {
	head, err := b.cancelHandoff(ctx, c.ticket, by, reason)
	if errors.Is(err, ErrNotFound) {
		if _, err := b.EnsureChildren(ctx, c.parent); err != nil {
			return Head{}, err
		}
		head, err = b.cancelHandoff(ctx, c.ticket, by, reason)
	}
	if isAbsent(err) { // dropped by the ledger, or stuck
		return Head{}, nil
	}
	return head, err
}
