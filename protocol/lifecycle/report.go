package lifecycle

import (
	"errors"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// What a holder reports beside its result, and what a supervisor reports of itself.

// Failure is how an attempt ended without a result.
type Failure struct {
	Code       string // handler, panic, exit_3, …; a word to count by
	Message    string
	Retryable  bool
	RetryAfter time.Duration // a floor of the delay before the next attempt
	Usage      *p.Usage      // of the attempt, where it is known
}

// Validate checks what the failure says that it has used.
func (f Failure) Validate() error {
	if f.Usage == nil || f.Usage.IsZero() {
		return nil
	}
	return f.Usage.Validate()
}

// UnusableResult returns the failure of an attempt whose result is refused, and the
// refusal. Another attempt may do better, unless the output schema itself is unusable.
func UnusableResult(err error) (Failure, *p.Error) {
	var refusal *p.Error
	if !errors.As(err, &refusal) {
		refusal = p.Errorf(p.CodeMalformed, "result", "%v", err)
	}
	schemaUnusable := refusal.Code == p.CodeOutputSchema && refusal.Field == p.FieldOutputSchema
	return Failure{Code: string(refusal.Code), Message: refusal.Error(), Retryable: !schemaUnusable && !Bars(refusal.Code)}, refusal
}

// MalformedResult ends the attempt of a holder whose result is malformed. body keeps what it
// handed in, or says where that lies. Another attempt follows where the policy says so: the
// work was done, and to repeat it costs as much again.
func MalformedResult(s p.State, holder, why string, body p.Failed, now time.Time) (Step, error) {
	body.Meta, body.Fence, body.Attempt = p.Meta{At: now, By: holder}, s.Fence, s.Attempt
	body.Code, body.Message = string(p.CodeBadResult), p.CutText(why, p.FailureBytesMax)
	body.Retryable = s.Policy.OnMalformed == p.MalformedRetry
	return StepOf(s, &body)
}

// UnreadablePackage returns the answer to an offer whose package cannot be read.
func UnreadablePackage(err error) p.Ack {
	return p.Ack{Status: p.AckRejected, ReasonCode: p.ReasonUnreadable, Reason: p.CutText(err.Error(), p.FailureBytesMax)}
}

// ClaimOnly claims an offer for a holder that polls: it acknowledges it later, within
// ackWithinMS; 0 is the handoff's own time.
func ClaimOnly(s p.State, c Claimant, ackWithinMS int64, now time.Time) (Step, error) {
	return StepOf(s, &p.Claimed{Meta: p.Meta{At: now, By: c.Holder}, Offer: c.Offer, Agent: c.Agent, Holder: c.Holder,
		LeaseMS: c.LeaseMS, AckWithinMS: ackWithinMS})
}

// Progress records a report of progress.
func Progress(s p.State, holder string, progress p.Progress, now time.Time) (Step, error) {
	return reported(s, &p.Progressed{Meta: p.Meta{At: now, By: holder}, Fence: s.Fence, Progress: progress})
}

// Fail ends the attempt of a holder without a result.
func Fail(s p.State, holder string, f Failure, now time.Time) (Step, error) {
	return StepOf(s, &p.Failed{Meta: p.Meta{At: now, By: holder}, Fence: s.Fence, Attempt: s.Attempt,
		Code: p.CutText(f.Code, p.NameBytesMax), Message: p.CutText(f.Message, p.FailureBytesMax),
		Retryable: f.Retryable, RetryAfterMS: f.RetryAfter.Milliseconds(), Usage: f.Usage})
}

// RecordStuck records that supervisors cannot deal with a handoff; the step is empty for
// one that is closed.
func RecordStuck(s p.State, cause error, now time.Time) (Step, error) {
	if s.Closed {
		return Step{}, nil
	}
	return StepOf(s, &p.Stuck{Meta: p.Meta{At: now, By: By}, Reason: cause.Error()})
}

// SettleReturn records that the return of a closed handoff has arrived, or never will. The
// step is empty where that is recorded.
func SettleReturn(s p.State, delivered bool, reason string, now time.Time) (Step, error) {
	if !s.ReturnedAt.IsZero() {
		return Step{}, nil
	}
	return StepOf(s, &p.Returned{Meta: p.Meta{At: now, By: By}, Delivered: delivered, Reason: reason})
}
