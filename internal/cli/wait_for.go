package cli

import (
	"context"
	"errors"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
)

// waitFor waits up to limit (negative: without end) and says what the exit code
// shall say. What it returns as the state is the last one read, if any.
func waitFor(ctx context.Context, s *source, ticket string, limit time.Duration, until string) (protocol.State, error) {
	wait := func(ctx context.Context) (protocol.State, error) { return s.Wait(ctx, ticket, api.Until(until)) }
	ready := func(state protocol.State) bool { ready, _ := api.Until(until).Ready(state); return ready }
	if until == untilReturned {
		ready = s.b.Returned(ctx)
		wait = func(ctx context.Context) (protocol.State, error) { return s.b.Wait(ctx, ticket, ready) }
	}
	switch {
	case limit == 0: // one look needs its time too: that of the engine
		state, err := s.Status(ctx, ticket)
		if err == nil && !ready(state) {
			err = &openError{state}
		}
		return finish(state, err)
	case limit > 0:
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, errWaited)
		defer cancel()
	}
	state, err := wait(ctx)
	switch {
	case err != nil && context.Cause(ctx) == errWaited && state.Ticket != "":
		err = &openError{state}
	case err != nil && errors.Is(ctx.Err(), context.Canceled) && !state.Closed:
		err = waitInterrupted(ticket)
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
