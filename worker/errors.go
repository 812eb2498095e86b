package worker

import (
	"errors"
	"fmt"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// Causes of a cancelled handler context, beside broker.ErrLeaseLost. See
// context.Cause.
var (
	// ErrCancelled: the end of the handoff was asked for. A handler that
	// returns an error then gives the handoff up, and it closes as cancelled; what it
	// returns beside the error is kept as a late result. One that returns a result
	// without an error has completed it.
	ErrCancelled = errors.New("cancel requested")
	// ErrReturned: the handoff is to go back to its source (handoff rollback). A
	// handler that returns an error then gives it up, and it closes as rolled back:
	// with the reason and the partial result of a RollBack, else with the result that it
	// returned beside the error, else with what its last Progress said. One that returns
	// a result without an error has completed it.
	ErrReturned = errors.New("return to the source requested")
	// ErrShutdown: the worker drains and its DrainTimeout is over. The handoff
	// is released without charging an attempt. What it returns beside an error is kept
	// as a late result.
	ErrShutdown = errors.New("worker shuts down")
)

// errNotAcknowledged ends the context of an Acknowledger whose time is over.
var errNotAcknowledged = errors.New("the time to acknowledge is over")

// errUnconfirmed is the local form of a lost lease: for a whole lease the engine has not
// confirmed that the handoff is still this worker's.
var errUnconfirmed = fmt.Errorf("no beat was confirmed for a whole lease: %w", broker.ErrLeaseLost)

// Failure is an error that says more about a failed attempt.
type Failure struct {
	Err        error
	Code       string          // a short word to count by; default "handler"
	Permanent  bool            // no further attempt is worth its while
	RetryAfter time.Duration   // a floor of the delay before the next attempt
	Usage      *protocol.Usage // of the attempt, where it is known
}

// Error is the error's own text.
func (f *Failure) Error() string { return f.Err.Error() }

// Unwrap returns the error that the handler met.
func (f *Failure) Unwrap() error { return f.Err }

// Permanent marks a failure that no retry will mend: the handoff fails for good.
// Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &Failure{Err: err, Permanent: true}
}

// RetryAfter marks a failure that is worth a retry, but not before d has
// passed (at most a day). RetryAfter(nil, d) is nil.
func RetryAfter(err error, d time.Duration) error {
	if err == nil {
		return nil
	}
	return &Failure{Err: err, RetryAfter: d}
}

// refuseError is an answer to the offer that came only in the middle of the work.
type refuseError struct{ ack protocol.Ack }

func (refused *refuseError) Error() string {
	return fmt.Sprintf("%s: %s", refused.ack.Status, refused.ack.Reason)
}

// Refuse is what Handle returns to take the acceptance back: ack is a rejection
// or a conditional. No attempt is charged. An ack that breaks the rules, or
// accepts, is a failed attempt.
func Refuse(ack protocol.Ack) error { return &refuseError{ack: ack} }

// Reject is a Refuse with a reason; alternative names an agent that fits
// better, or is empty.
func Reject(reason, alternative string) error {
	return Refuse(protocol.Ack{Status: protocol.AckRejected, Reason: reason, SuggestedAlternative: alternative})
}

// NeedContext is a Refuse that asks the source for what is missing. The handoff
// comes back with the answers.
func NeedContext(needs ...string) error {
	return Refuse(protocol.Ack{Status: protocol.AckConditional, NeedsContext: needs})
}

// NeedPermission is a Refuse that asks for permissions.
func NeedPermission(needs ...string) error {
	return Refuse(protocol.Ack{Status: protocol.AckConditional, NeedsPermission: needs})
}

// Defer is a Refuse that asks to be offered the handoff again after d, without an
// answer. The reason must not be empty. The core bounds how often.
func Defer(reason string, d time.Duration) error {
	return Refuse(protocol.Ack{Status: protocol.AckConditional, Reason: reason, RetryAfterMS: d.Milliseconds()})
}

// stopError says that the worker itself is unfit.
type stopError struct{ err error }

func (s *stopError) Error() string { return s.err.Error() }
func (s *stopError) Unwrap() error { return s.err }

// Stop makes the error of a handler whose worker is at fault, not the handoff. Every further
// handoff would fail too: a program or a key is missing. The handoff is released without
// charging an attempt, the worker drains, and Run returns the error.
func Stop(err error) error {
	if err == nil {
		return nil
	}
	return &stopError{err: err}
}
