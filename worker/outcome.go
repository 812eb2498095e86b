package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// Errors that a handler may return in place of a result, in addition to a failure and a Refuse.

// decision is an error of a handler that decides on the handoff, and is no failure: it counts
// though the worker shuts down. report appends it.
type decision interface {
	error
	report(r *run, c contexts, h Handoff)
}

// awaitError is a handler's wish to be run again when children have closed.
type awaitError struct{ tickets []string }

func (await *awaitError) Error() string {
	if len(await.tickets) == 0 {
		return "waits for all that it has handed off"
	}
	return "waits for " + strings.Join(await.tickets, ", ")
}

// Await is an error for Handle to return: it waits for handoffs that it has handed off
// (Handoff.HandOff): all of these, or all that this run has handed off if none is
// named. It holds no slot meanwhile, no clock but the deadline's and its own
// return's runs, and no attempt is charged. When they have closed, however they
// ended, the handoff is offered to this agent again as the same attempt: Handle
// runs from its beginning, maybe in another process, makes the same calls of
// HandOff, and finds the ends in Handoff.Returns.
//
// It must not wait for a child that begins later, such as a sequential handoff, which begins with
// the result, nor for one whose return it has: that
// is a failed attempt, with the code await.
func Await(tickets ...string) error { return &awaitError{tickets: tickets} }

// escalateError is a handler's wish that its authority decides.
type escalateError struct{ rationale, assessment string }

func (escalated *escalateError) Error() string { return "escalated: " + escalated.rationale }

func (escalated *escalateError) check() error {
	if strings.TrimSpace(escalated.rationale) == "" {
		return protocol.Errorf(protocol.CodeInvalid, "rationale", "is missing or empty")
	}
	return nil
}

// Escalate is an error for Handle to return: it passes the handoff up the chain of authority,
// to the agent that this one escalates to, a person at last. The rationale is the reason
// and must not be empty; the assessment has the findings so far. The
// authority answers (AnswerEscalation, handoff answer), and the handoff comes
// back here with the answer; or it does the work itself. Without an authority
// the handoff fails for good, with the code escalation_exhausted.
func Escalate(rationale, assessment string) error {
	return &escalateError{rationale: rationale, assessment: assessment}
}

// answerError is an authority's answer.
type answerError struct{ answer protocol.Answer }

func (answered *answerError) Error() string {
	if answered.answer.Deny {
		return "denied: " + answered.answer.DenyReason
	}
	return "answered: " + answered.answer.Text
}

// AnswerEscalation is an error for the Handle of an authority to return on a handoff that
// was escalated to it: the handoff goes back to the agent that escalated it, with
// the answer among its Answers. Denied, it counts as refused by this agent. By is
// filled in. Trail and State().Chain name the agents that escalated, and their reasons. Of a handoff that
// was not escalated it is a failed attempt, with the code answer.
func AnswerEscalation(answer protocol.Answer) error { return &answerError{answer: answer} }

// rollBackError is a handler's wish to roll the work back to its source.
type rollBackError struct {
	reason  string
	partial *protocol.Result
}

func (rolledBack *rollBackError) Error() string { return "rolled back: " + rolledBack.reason }

// Is makes a rollback match ErrReturned.
func (rolledBack *rollBackError) Is(target error) bool { return target == ErrReturned }

// RollBack is an error for Handle to return: the handoff closes as rolled
// back, and its source gets the reason and the partial result. partial may
// be nil: then it is made of the last Progress. One that breaks the rules is left
// out, and logged. A Cleaner is called first.
func RollBack(reason string, partial *protocol.Result) error {
	return &rollBackError{reason: reason, partial: partial}
}

// report lets go of the handoff until children have closed.
func (await *awaitError) report(r *run, c contexts, h Handoff) {
	fail := func(err error) { r.fail(c, h, &Failure{Code: "await", Err: err}) }
	tickets, err := awaited(r.lastState(), await.tickets)
	if err != nil {
		fail(err)
		return
	}
	err = r.send(c, "suspend", func(ctx context.Context) error { return last(r.w.session.Await(ctx, r.held.Lease, tickets)) })
	if isRefused(err) {
		fail(err)
		return
	}
	r.finishReport(c, h, "suspended", "suspend", await, err)
}

// awaited checks the tickets that a handler waits for; a child that begins with the result has an
// explanation of its own.
func awaited(s *protocol.State, tickets []string) ([]string, error) {
	canonical := make([]string, len(tickets))
	for i, ticket := range tickets {
		canonical[i] = ticket
		if parsed, err := protocol.ParseTicket(ticket); err == nil {
			canonical[i] = parsed
		}
		if beginsAfter(s, canonical[i]) {
			return nil, beginsAfterError(ticket)
		}
	}
	return canonical, nil
}

// report passes the handoff up.
func (escalated *escalateError) report(r *run, c contexts, h Handoff) {
	if invalid := escalated.check(); invalid != nil {
		r.fail(c, h, &Failure{Code: "invalid_escalation", Permanent: true, Err: invalid})
		return
	}
	err := r.send(c, "escalate", func(ctx context.Context) error {
		return last(r.w.session.Escalate(ctx, r.held.Lease, escalated.rationale, escalated.assessment))
	})
	switch {
	case isRefused(err) && r.endRequested(c):
		r.reportCancelled(c, h, protocol.Result{}, escalated)
	case isRefused(err):
		r.fail(c, h, &Failure{Code: "escalation_exhausted", Permanent: true, Err: fmt.Errorf("%w; %s", err, escalated)})
	default:
		r.finishReport(c, h, "escalated", "escalate", escalated, err)
	}
}

// report sends the handoff back to the agent that escalated it.
func (answered *answerError) report(r *run, c contexts, h Handoff) {
	err := r.send(c, "answer", func(ctx context.Context) error {
		return last(r.w.session.AnswerHeld(ctx, r.held.Lease, answered.answer))
	})
	switch {
	case isRefused(err) && r.endRequested(c):
		r.reportCancelled(c, h, protocol.Result{}, answered)
	case isRefused(err):
		r.fail(c, h, &Failure{Code: "answer", Err: err})
	default:
		r.finishReport(c, h, "answered", "answer", answered, err)
	}
}

// isRefused reports whether a report is one that the core or the broker will not
// take, however often it is sent.
func isRefused(err error) bool {
	return err != nil && isFinal(err) && !errors.Is(err, broker.ErrLeaseLost)
}

// endRequested asks the ledger whether the end of the handoff was asked for, which is
// why it refuses all that would prolong it.
func (r *run) endRequested(c contexts) bool {
	err := r.send(c, "beat", func(ctx context.Context) error {
		signal, err := r.beatClaim(ctx)
		r.applySignal(signal)
		return err
	})
	return err == nil && r.ctx.Err() != nil
}

// Causes of a cancelled handler context, beside broker.ErrLeaseLost. See
// context.Cause.
var (
	// ErrCancelled: the end of the handoff was asked for. A handler that
	// returns an error then gives the handoff up, and it closes as cancelled; a result
	// beside the error is kept as a late result. One that returns a result
	// without an error has completed it.
	ErrCancelled = errors.New("cancel requested")
	// ErrReturned: the handoff is to go back to its source (handoff rollback). A
	// handler that returns an error then gives it up, and it closes as rolled back:
	// with the reason and the partial result of a RollBack, else with the result that it
	// returned with the error, else with the partial result of its last Progress. One that returns
	// a result without an error has completed it.
	ErrReturned = errors.New("return to the source requested")
	// ErrShutdown: the worker drains and its DrainTimeout is over. The handoff
	// is released without charging an attempt. A result that it returns with an error is kept
	// as a late result.
	ErrShutdown = errors.New("worker shuts down")
)

// errNotAcknowledged ends the context of an Acknowledger whose time is over.
var errNotAcknowledged = errors.New("the time to acknowledge is over")

// errUnconfirmed is the local form of a lost lease: for a whole lease the engine has not
// confirmed that the handoff is still this worker's.
var errUnconfirmed = fmt.Errorf("no beat was confirmed for a whole lease: %w", broker.ErrLeaseLost)

// Failure is an error with the details of a failed attempt.
type Failure struct {
	Err        error
	Code       string          // a short word to count by; default "handler"
	Permanent  bool            // no further attempt is worth its while
	RetryAfter time.Duration   // a floor of the delay before the next attempt
	LimitKey   string          // a limit whose provider throttles: its key is paused for RetryAfter
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

// Refuse is an error for Handle to return: it takes the acceptance back. ack is a rejection
// or a conditional. No attempt is charged. An ack that breaks the rules, or
// accepts, is a failed attempt.
func Refuse(ack protocol.Ack) error { return &refuseError{ack: ack} }

// Reject is a Refuse with a reason; alternative names an agent that fits
// better, or is empty.
func Reject(reason, alternative string) error {
	return Refuse(protocol.Ack{Status: protocol.AckRejected, Reason: reason, SuggestedAlternative: alternative})
}

// NeedContext is a Refuse that asks the source for missing context. The handoff
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

// stopError reports that the worker itself is unfit.
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

const (
	// tryTimeout bounds one request that is safe to repeat. Appends have none:
	// the engine repeats them itself, and giving one up leaves its fate unknown.
	tryTimeout = 10 * time.Second
	// fetchTimeout bounds one try at a large package.
	fetchTimeout = time.Minute
	// triesMax bounds the tries of a request that fails while the engine answers.
	triesMax = 5
	// unlimited is no bound: for a report that may have been applied, and whose fate must be known.
	unlimited = 0
	// lateReportTimeout bounds the report of a handler that outlived the drain.
	lateReportTimeout = 5 * time.Second
)

func newBackOff() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(backoff.WithInitialInterval(100*time.Millisecond),
		backoff.WithMaxInterval(5*time.Second), backoff.WithMaxElapsedTime(0))
}

// retry repeats try until it succeeds, fails for good, or ctx ends. An engine
// that is away is waited for.
func (w *Worker) retry(ctx context.Context, what string, try func(context.Context) error) error {
	return w.retryUpTo(ctx, triesMax, what, try)
}

// retryUpTo is retry with a bound of its own.
func (w *Worker) retryUpTo(ctx context.Context, triesMax int, what string, try func(context.Context) error) error {
	var backOff *backoff.ExponentialBackOff // most tries succeed
	for tries := 1; ; tries++ {
		err := try(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return err
		case isUnreachable(err):
			tries--
		case isFinal(err) || tries == triesMax:
			return err
		}
		if backOff == nil {
			backOff = newBackOff()
		}
		pause := backOff.NextBackOff()
		w.log.Warn("engine request failed; retrying", "what", what, "in", pause, "err", err)
		if !sleep(ctx, pause) {
			return err
		}
	}
}

// withTimeout bounds each try.
func withTimeout(limit time.Duration, try func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return try(ctx)
	}
}

// isUnreachable reports whether the engine gave no answer at all.
func isUnreachable(err error) bool {
	return errors.Is(err, broker.ErrUnreachable) || errors.Is(err, context.DeadlineExceeded)
}

// isFinal reports whether asking again cannot help: the ledger or the input is against it.
func isFinal(err error) bool {
	var refused *protocol.Error
	return errors.As(err, &refused) || errors.Is(err, broker.ErrLeaseLost) || errors.Is(err, broker.ErrOfferGone) ||
		errors.Is(err, broker.ErrNotFound) || errors.Is(err, lifecycle.ErrStale) || errors.Is(err, lifecycle.ErrIllegal)
}

// sleep waits for d; false is that ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
