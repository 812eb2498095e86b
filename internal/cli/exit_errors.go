package cli

import (
	"errors"
	"fmt"

	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

var errInterrupted = errors.New("interrupted")

// waitInterrupted is errInterrupted for a wait, which has changed nothing.
func waitInterrupted(again, cancel string) error {
	return fmt.Errorf("%w; the handoff goes on: handoff wait %s waits again, handoff cancel %s ends it", errInterrupted, again, cancel)
}

// usageError is a command line that makes no sense, before anything was done.
type usageError struct{ message string }

func (e *usageError) Error() string { return e.message }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// openError says that the handoff is open, and what it waits for.
type openError struct {
	state protocol.State
	// returnOf, if not empty, is the handoff whose return waits for the end of this one.
	returnOf string
}

func (e *openError) Error() string {
	if e.returnOf != "" {
		return fmt.Sprintf("the return of %s is still open: it is the end of its chain, and %v", e.returnOf, &openError{state: e.state})
	}
	if next, goesOn := lifecycle.NextInChain(e.state); goesOn && e.state.ChainEnd == nil {
		return fmt.Sprintf("%s was handed on, as %s, and its chain is still open", e.state.Ticket, next)
	}
	if e.state.Closed { // a wait for its return goes on
		return fmt.Sprintf("%s is closed, and %s has not taken its return in yet", e.state.Ticket, e.state.Source)
	}
	return fmt.Sprintf("%s is still open: waits for %s", e.state.Ticket, phrase(explain.WaitingFor(e.state)))
}

// noResultError: there is nothing of what was asked for, so far.
type noResultError struct{ message string }

func (e *noResultError) Error() string { return e.message }

// behindError says that an answer lacks something, and --stale was not given.
type behindError struct{ message string }

func (e *behindError) Error() string { return e.message }

// outcomeError: the handoff closed, and not the way its source had hoped.
type outcomeError struct{ state protocol.State }

func (e *outcomeError) Error() string {
	return fmt.Sprintf("%s closed without success: %s", e.state.Ticket, explain.Ending(e.state))
}

// failed says of a state what its exit code shall say: nil, still open, or
// closed without success.
func failed(s protocol.State) error {
	switch {
	case !s.Closed:
		return &openError{state: s}
	case s.Outcome != protocol.OutcomeSuccess && s.Outcome != protocol.OutcomePartial:
		return &outcomeError{s}
	}
	return nil
}
