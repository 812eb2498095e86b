package worker

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// forReport bounds a report: it may take as long as the worker runs. The ledger takes
// the handoff for held meanwhile, so that a report given up would leave it to the work
// timeout. The fence makes a late report harmless.
func (c contexts) forReport() (context.Context, context.CancelFunc) {
	if c.reporting.Err() != nil {
		return context.WithTimeout(c.running, lateReportTimeout)
	}
	return c.reporting, func() {}
}

// report appends the outcome of the attempt. It appends facts: their consequences
// are the core's decision.
func (r *run) report(c contexts, h Handoff, result protocol.Result, err error) {
	cause := context.Cause(r.ctx)
	shutdown := errors.Is(cause, ErrShutdown)
	decided, decides := errors.AsType[decision](err)
	stop, stops := errors.AsType[*stopError](err)
	switch {
	case err == nil: // whatever ended its context: the fence decides whether it counts
		r.complete(c, result)
	case cause != nil && !shutdown:
		r.reportCancelled(c, h, result, err)
	case shutdown && !decides:
		r.release(c, h, "its worker shuts down", partialOf(result))
	case stops:
		r.w.stop(stop) // first: it must not pull the released handoff again
		r.release(c, h, "its worker is unfit: "+err.Error(), nil)
	case decides:
		decided.report(r, c, h)
	default:
		r.fail(c, h, err)
	}
}

// send repeats a report until the ledger has answered.
func (r *run) send(c contexts, what string, report func(context.Context) error) error {
	ctx, cancel := c.forReport()
	defer cancel()
	return r.w.retryUpTo(ctx, unlimited, what, report)
}

func (r *run) complete(c contexts, result protocol.Result) {
	err := r.send(c, "complete", func(ctx context.Context) error { return last(r.w.session.Complete(ctx, r.held.Lease, result)) })
	_, refused := errors.AsType[*protocol.Error](err)
	switch {
	case err == nil && result.Awaits():
		r.recordOutcome("suspended", nil)
	case err == nil:
		r.recordOutcome("completed", nil)
	case errors.Is(err, broker.ErrLeaseLost):
		r.recordOutcome("lost", err)
	case refused: // and the attempt failed with it
		r.recordOutcome("failed", err)
	default:
		r.countUnreported("complete", err)
	}
}

func (r *run) fail(c contexts, h Handoff, cause error) {
	failure := broker.Failure{Code: "handler", Message: cause.Error(), Retryable: true}
	var f *Failure
	if errors.As(cause, &f) {
		failure.Code = cmp.Or(f.Code, failure.Code)
		failure.Usage = f.Usage
		failure.Retryable, failure.RetryAfter = !f.Permanent, min(max(f.RetryAfter, 0), retryAfterMax)
		failure.LimitKey = r.placeKey(f.LimitKey)
	}
	err := r.send(c, "fail", func(ctx context.Context) error { return last(r.w.session.Fail(ctx, r.held.Lease, failure)) })
	r.finishReport(c, h, "failed", "fail", cause, err)
}

// placeKey returns a key under which the handoff has a place; empty for any other. A failure with another
// key is refused, and the attempt would only end with its lease.
func (r *run) placeKey(key string) string {
	if keys := r.lastState().LimitKeys; key != "" && !slices.Contains(keys, key) {
		r.log.Warn("failure reported without its limit_key: the handoff has no place under it", "limit_key", protocol.CutText(key, protocol.LimitKeyBytesMax), "has", keys)
		return ""
	}
	return key
}

const retryAfterMax = time.Duration(protocol.RetryAfterMaxMS) * time.Millisecond

// report takes the acceptance back.
func (refused *refuseError) report(r *run, c contexts, h Handoff) {
	invalid := refused.ack.Validate()
	if refused.ack.Status == protocol.AckAccepted {
		invalid = errors.New("an acceptance cannot take an acceptance back")
	}
	if invalid != nil {
		r.fail(c, h, &Failure{Code: "invalid_ack", Permanent: true, Err: invalid})
		return
	}
	err := r.send(c, "refuse", func(ctx context.Context) error { return last(r.w.session.Acknowledge(ctx, r.held.Lease, refused.ack)) })
	r.finishReport(c, h, "refused", "refuse", refused, err)
}

// release releases the handoff without charge. One that is to be cancelled
// closes with it. partial is kept as a late result.
func (r *run) release(c contexts, h Handoff, reason string, partial *protocol.Result) {
	err := r.sendPartial(c, "release", partial, func(ctx context.Context, partial *protocol.Result) error {
		return last(r.w.session.Release(ctx, r.held.Lease, protocol.CutText(reason, protocol.FailureBytesMax), partial))
	})
	r.finishReport(c, h, "released", "release", errors.New(reason), err)
}

// sendPartial sends a report with the partial result, and without it if that is refused.
func (r *run) sendPartial(c contexts, what string, partial *protocol.Result, report func(context.Context, *protocol.Result) error) error {
	send := func(partial *protocol.Result) error {
		return r.send(c, what, func(ctx context.Context) error {
			if partial == nil {
				return report(ctx, nil)
			}
			own := *partial // it is completed on the way
			own.Status = cmp.Or(own.Status, protocol.Partial)
			return report(ctx, &own)
		})
	}
	err := send(partial)
	if partial != nil && isRefused(err) {
		r.log.Warn("partial result left out", "err", err)
		err = send(nil)
	}
	return err
}

// partialOf returns the result that a handler returned with its error, once its context had ended; nil is none.
func partialOf(result protocol.Result) *protocol.Result {
	if !result.SaysMore() {
		return nil
	}
	result.Status, result.Malformed = protocol.Partial, ""
	return &result
}

func (r *run) finishReport(c contexts, h Handoff, outcome, what string, cause, err error) {
	switch {
	case err == nil:
		r.recordOutcome(outcome, cause)
	case errors.Is(err, broker.ErrLeaseLost):
		_ = r.cleanup(c, h, err) // which has logged it
		r.recordOutcome("lost", err)
	default:
		r.countUnreported(what, err)
	}
}

// countUnreported counts a report that never reached the ledger. The core decides without it: when the
// lease ends, if this worker ends, or else at the work timeout.
func (r *run) countUnreported(what string, err error) {
	r.w.counts.of("lost").Add(1)
	r.log.Error("report not recorded", "report", what, "err", err)
}

// recordOutcome counts and logs the end of an attempt.
func (r *run) recordOutcome(outcome string, cause error) {
	r.recorded = true
	r.w.counts.of(outcome).Add(1)
	if !r.log.Enabled(r.ctx, slog.LevelInfo) {
		return
	}
	attrs := []any{"attempt", r.lastState().Attempt, "after", time.Since(r.claimedAt).Round(time.Millisecond)}
	if cause != nil {
		attrs = append(attrs, "why", protocol.Printable(protocol.CutText(cause.Error(), 512)))
	}
	if errors.Is(cause, broker.ErrWorkTimeout) || errors.Is(cause, broker.ErrProgressTimeout) || errors.Is(cause, broker.ErrDeadlinePassed) {
		outcome = "timed out" // it is counted as lost
	}
	r.log.Info("handoff "+outcome, attrs...)
}
