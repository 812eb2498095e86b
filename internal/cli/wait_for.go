package cli

import (
	"context"
	"errors"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// waitFor waits up to limit (negative: without end) and says what the exit code
// shall say. What it returns as the state is the last one read, if any.
func waitFor(ctx context.Context, s *source, ticket string, limit time.Duration, until string) (protocol.State, error) {
	w := waiting{
		look:  func(ctx context.Context) (protocol.State, error) { return s.Status(ctx, ticket) },
		wait:  func(ctx context.Context) (protocol.State, error) { return s.Wait(ctx, ticket, api.Until(until)) },
		ready: func(state protocol.State) bool { ready, _ := api.Until(until).Ready(state); return ready },
		again: ticket, cancel: ticket,
	}
	if until == untilReturned {
		w.ready = s.b.Returned(ctx)
		w.wait = func(ctx context.Context) (protocol.State, error) { return s.b.Wait(ctx, ticket, w.ready) }
	}
	return w.run(ctx, limit)
}

// waiting is what a wait waits for.
type waiting struct {
	look, wait func(ctx context.Context) (protocol.State, error)
	ready      func(protocol.State) bool
	chain      bool // a handoff that was handed on is not the end
	// again and cancel are the arguments of the commands that wait again, and that end it.
	again, cancel string
}

func (w waiting) run(ctx context.Context, limit time.Duration) (protocol.State, error) {
	whole := ctx
	switch {
	case limit == 0: // one look needs its time too: that of the engine
		state, err := w.look(ctx)
		if err == nil && !w.ready(state) {
			err = &openError{state: state}
		}
		return finish(state, err)
	case limit > 0:
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, errWaited)
		defer cancel()
	}
	state, err := w.wait(ctx)
	switch {
	case err != nil && context.Cause(ctx) == errWaited && state.Ticket == "": // too short for one look
		return w.run(whole, 0)
	case err != nil && context.Cause(ctx) == errWaited:
		err = &openError{state: state}
	case err != nil && errors.Is(ctx.Err(), context.Canceled) && (!state.Closed || w.chain && lifecycle.GoesOn(state)):
		err = waitInterrupted(w.again, w.cancel)
	}
	return finish(state, err)
}

// errWaited tells our own timeout from the engine's.
var errWaited = errors.New("the wait is over")

// finish turns what was waited for into an exit code: accepted is success
// enough for who waits for that, closed without success is none.
func finish(s protocol.State, err error) (protocol.State, error) {
	if err == nil && s.Closed {
		err = failed(s)
	}
	return s, err
}
