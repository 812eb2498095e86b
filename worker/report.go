package worker

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// reportContext is how long a report may take: for as long as this worker
// lives. While it is there the ledger takes the handoff for held, so that a
// report given up would leave it to the work timeout. The fence makes a late
// one harmless.
func (w *Worker) reportContext() (context.Context, context.CancelFunc) {
	if w.reports.Err() != nil {
		return context.WithTimeout(w.life, lastReport)
	}
	return w.reports, func() {}
}

// report appends what came of the attempt. It appends facts: what follows from
// them is the core's decision. again says that the handler is to be run again.
func (r *run) report(h Handoff, claim Claim, result protocol.Result, err error) (again bool) {
	cause := context.Cause(r.ctx)
	shutdown := errors.Is(cause, ErrShutdown)
	var (
		stop   *stopError
		refuse *refusal
		waits  *awaiting
		up     *escalation
		answer *verdict
		back   *rollback
	)
	switch {
	case err == nil: // whatever ended its context: the fence says whether it counts
		r.complete(h, claim, result)
	case cause != nil && !shutdown:
		r.giveUp(h, claim, err)
	case shutdown && !says(err):
		r.release(h, claim, "its worker shuts down")
	case errors.As(err, &stop):
		r.w.stop(stop) // first: it must not pull what it gives back
		r.release(h, claim, "its worker is unfit: "+err.Error())
	case errors.As(err, &refuse):
		r.refuse(h, claim, refuse.ack)
	case errors.As(err, &waits):
		return r.suspend(h, claim, waits)
	case errors.As(err, &up):
		r.escalate(h, claim, up)
	case errors.As(err, &answer):
		r.answer(h, claim, answer)
	case errors.As(err, &back):
		r.handBack(h, claim, back)
	default:
		r.fail(h, claim, err)
	}
	return false
}

// send repeats a report until the ledger has answered.
func (r *run) send(what string, report func(context.Context) error) error {
	ctx, cancel := r.w.reportContext()
	defer cancel()
	return r.w.persistFor(ctx, forEver, what, report)
}

func (r *run) complete(h Handoff, claim Claim, result protocol.Result) {
	err := r.send("complete", func(ctx context.Context) error { return claim.Complete(ctx, result, h.on.children()...) })
	var refused *protocol.Error
	switch {
	case err == nil:
		r.ended("completed", nil)
	case errors.Is(err, broker.ErrLeaseLost):
		r.ended("lost", err)
	case errors.As(err, &refused): // and the attempt failed with it
		r.ended("failed", err)
	default:
		r.unreported("complete", err)
	}
}

func (r *run) fail(h Handoff, claim Claim, cause error) {
	failure := broker.Failure{Code: "handler", Message: cause.Error(), Retryable: true}
	var f *Failure
	if errors.As(cause, &f) {
		failure.Code = cmp.Or(f.Code, failure.Code)
		failure.Retryable, failure.RetryAfter = !f.Permanent, min(max(f.RetryAfter, 0), retryAfterMax)
	}
	err := r.send("fail", func(ctx context.Context) error { return claim.Fail(ctx, failure) })
	r.settled(h, "failed", "fail", cause, err)
}

const retryAfterMax = time.Duration(protocol.RetryAfterMaxMS) * time.Millisecond

// refuse takes the acceptance back.
func (r *run) refuse(h Handoff, claim Claim, ack protocol.Ack) {
	invalid := ack.Validate()
	if ack.Status == protocol.AckAccepted {
		invalid = errors.New("an acceptance cannot take an acceptance back")
	}
	if invalid != nil {
		r.fail(h, claim, &Failure{Code: "invalid_ack", Err: invalid})
		return
	}
	err := r.send("refuse", func(ctx context.Context) error { return claim.Acknowledge(ctx, ack, false) })
	r.settled(h, "refused", "refuse", &refusal{ack}, err)
}

// release gives the handoff back without charge. One that is to be cancelled
// closes with it.
func (r *run) release(h Handoff, claim Claim, reason string) {
	err := r.send("release", func(ctx context.Context) error {
		return claim.Release(ctx, protocol.CutText(reason, protocol.FailureBytesMax))
	})
	r.settled(h, "released", "release", errors.New(reason), err)
}

func (r *run) settled(h Handoff, outcome, what string, cause, err error) {
	switch {
	case err == nil:
		r.ended(outcome, cause)
	case errors.Is(err, broker.ErrLeaseLost):
		_ = r.cleanup(h, err) // which has logged it
		r.ended("lost", err)
	default:
		r.unreported(what, err)
	}
}

// unreported is the end of a report that the ledger never took. The core makes
// up for it: by the lease if this worker ends, by the work timeout otherwise.
func (r *run) unreported(what string, err error) {
	r.w.counts.lost.Add(1)
	r.log.Error("handoff ended, and the ledger does not know", "report", what, "err", err)
}

// ended counts and logs the end of an attempt.
func (r *run) ended(outcome string, cause error) {
	c := &r.w.counts
	switch outcome {
	case "completed":
		c.completed.Add(1)
	case "failed":
		c.failed.Add(1)
	case "refused":
		c.refused.Add(1)
	case "released":
		c.released.Add(1)
	case "lost":
		c.lost.Add(1)
	case "suspended":
		c.suspended.Add(1)
	case "escalated":
		c.escalated.Add(1)
	case "answered":
		c.answered.Add(1)
	case "handed back":
		c.handedBack.Add(1)
	}
	if !r.log.Enabled(r.ctx, slog.LevelInfo) {
		return
	}
	attrs := []any{"attempt", r.last().Attempt, "after", time.Since(r.began).Round(time.Millisecond)}
	if cause != nil {
		attrs = append(attrs, "why", protocol.Printable(protocol.CutText(cause.Error(), 512)))
	}
	r.log.Info("handoff "+outcome, attrs...)
}
