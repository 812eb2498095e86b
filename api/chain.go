package api

import (
	"cmp"
	"context"
	"errors"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// A caller that sees a handoff may follow its chain, and gets the state and the result of the
// handoff that the chain has come to.

// LastOfChain implements Source.
func (c *Session) LastOfChain(ctx context.Context, ticket string) (protocol.State, error) {
	ticket, err := c.locate(ctx, "LastOfChain", ticket)
	if err != nil {
		return protocol.State{}, err
	}
	head, err := c.s.b.LastOfChain(ctx, ticket)
	return head.State, err
}

// ChainResult implements Source.
func (c *Session) ChainResult(ctx context.Context, ticket string) (protocol.Result, protocol.State, error) {
	ticket, err := c.locate(ctx, "ChainResult", ticket)
	if err != nil {
		return protocol.Result{}, protocol.State{}, err
	}
	last, err := c.s.b.LastOfChain(ctx, ticket)
	if err != nil {
		return protocol.Result{}, last.State, err
	}
	return c.s.b.Result(ctx, last.Ticket)
}

// WaitChain implements Source.
func (c *Session) WaitChain(ctx context.Context, ticket string, until Until) (protocol.State, error) {
	if err := until.check(); err != nil {
		return protocol.State{}, err
	}
	state, err := c.find(ctx, "WaitChain", ticket)
	if err != nil {
		return state, cmp.Or(ctx.Err(), err)
	}
	for {
		state, err = c.awaitState(ctx, state, until)
		if err != nil || !lifecycle.GoesOn(state) {
			return state, err
		}
		next, err := c.awaitNext(ctx, state)
		if err != nil {
			return state, err
		}
		state = next
	}
}

// awaitNext waits until the handoff is there that a chain goes on with. It was promised by the
// append that closed the one before, and the writer of that, or a supervisor, submits it.
func (c *Session) awaitNext(ctx context.Context, before protocol.State) (protocol.State, error) {
	ticket, _ := lifecycle.NextInChain(before)
	var hints <-chan uint64
	for {
		head, err := c.s.b.Head(ctx, ticket, 0)
		switch {
		case err == nil:
			return head.State, nil
		case ctx.Err() != nil:
			return protocol.State{}, ctx.Err()
		case errors.Is(err, broker.ErrClosed):
			return protocol.State{}, err
		case !errors.Is(err, broker.ErrNotFound) && !errors.Is(err, broker.ErrUnreachable) && !broker.Unreadable(err):
			return protocol.State{}, err
		}
		if hints == nil { // and read again: it may have come in between
			feed, stop, err := c.s.b.Feed(ctx, ticket)
			if err != nil {
				return protocol.State{}, cmp.Or(ctx.Err(), err)
			}
			defer stop()
			hints = feed
			continue
		}
		if err := c.s.pause(ctx, hints); err != nil {
			return protocol.State{}, err
		}
	}
}
