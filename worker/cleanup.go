package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// Cleaner is what a Handler may also be, to put away what its work has left
// lying about when the handoff leaves this worker without a result. Cleanup is
// called after Handle has returned an error, once at most, in these cases:
//
//   - the handoff goes back to its source: Handle returned HandBack, or its
//     context had ended with ErrReturned. why is ErrReturned (errors.Is).
//   - its end was asked for: the context had ended with ErrCancelled.
//   - the lease is lost: the context had ended with broker.ErrLeaseLost, or the
//     ledger refused the report of the failure with it. Somebody else may be at
//     work on the same by then.
//
// It is not called where Handle has returned a result, not even if that came too
// late and does not count; nor after a failure, a Refuse, an Await, an Escalate or
// a shutdown: the work goes on then, here or elsewhere.
//
// But for a lost lease the handoff stays this worker's while Cleanup runs, and
// beats go on: nobody begins anew what is being put away. ctx ends after
// Config.CleanupTimeout. Then the worker reports without waiting any longer, and
// only the slot stays taken until Cleanup has returned. A supervisor that forces
// an end which was asked for does so after the package's cancel_grace_ms (30 s by
// default), so that Handle and Cleanup together should need less. An error, or a
// panic, is logged, and the source of what is handed back reads it.
type Cleaner interface {
	Cleanup(ctx context.Context, h Handoff, why error) error
}

// cleanup lets the user's code put away its things, if it has begun at all.
func (r *run) cleanup(h Handoff, why error) error {
	if r.w.cleaner == nil || !r.handled || r.cleaned {
		return nil
	}
	r.cleaned = true
	ctx, cancel := context.WithTimeout(r.w.life, r.w.cfg.CleanupTimeout)
	done := make(chan error, 1)
	r.cleaning.Go(func() {
		defer cancel()
		err := errors.New("it ended its goroutine instead of returning")
		defer func() { done <- err }() // deferred, for runtime.Goexit
		_, err = guard(r.log, func() (struct{}, error) { return struct{}{}, r.w.cleaner.Cleanup(ctx, h, why) })
	})
	timer := time.NewTimer(r.w.cfg.CleanupTimeout + cleanupGrace)
	defer timer.Stop()
	var err error
	select {
	case err = <-done:
	case <-timer.C:
		err = fmt.Errorf("it goes on after %v", r.w.cfg.CleanupTimeout)
	}
	if err != nil {
		r.log.Error("cleanup failed", "why", why, "err", protocol.CutText(err.Error(), stackBytesMax))
	}
	return err
}

// cleanupGrace is the time that a Cleanup has to return once its context has ended.
const cleanupGrace = time.Second

// giveUp is the end of a handoff whose end was asked for, or whose lease is
// lost: r.ctx has ended, and its cause says which. err is what Handle returned.
func (r *run) giveUp(h Handoff, claim Claim, err error) {
	cause := context.Cause(r.ctx)
	switch {
	case errors.Is(cause, ErrReturned):
		var back *rollback
		if !errors.As(err, &back) {
			back = &rollback{reason: cmp.Or(r.see(claim).CancelReason, "asked to give it back")}
		}
		r.handBack(h, claim, back)
	case errors.Is(cause, ErrCancelled):
		r.release(h, claim, noted("cancel requested", r.cleanup(h, cause)))
	case errors.Is(cause, errLapsed):
		r.release(h, claim, noted("its worker was cut off from the engine for a lease", r.cleanup(h, cause)))
	default:
		_ = r.cleanup(h, cause) // which has logged it
		r.ended("lost", cause)
	}
}

// noted adds to a reason what went wrong in the cleanup.
func noted(reason string, failed error) string {
	if failed == nil {
		return reason
	}
	return reason + "; cleanup failed: " + protocol.CutText(failed.Error(), stackBytesMax)
}

// handBack returns the handoff to its source.
func (r *run) handBack(h Handoff, claim Claim, back *rollback) {
	reason := back.reason
	if reason == "" {
		reason = "its worker gave no reason"
	}
	reason = noted(reason, r.cleanup(h, back))
	partial := back.partial
	if partial == nil {
		partial = resultOf(r.progressed.Load())
	}
	send := func(partial *protocol.Result) error {
		return r.send("hand back", func(ctx context.Context) error {
			if partial != nil { // it is completed on the way
				own := *partial
				own.Status = cmp.Or(own.Status, protocol.Partial)
				return claim.HandBack(ctx, reason, &own)
			}
			return claim.HandBack(ctx, reason, nil)
		})
	}
	err := send(partial)
	if partial != nil && refused(err) {
		r.log.Warn("partial result left out", "err", err)
		err = send(nil)
	}
	r.settled(h, "handed back", "hand back", errors.New(reason), err)
}

// resultOf is what a report from within the work leaves of a result.
func resultOf(p *protocol.Progress) *protocol.Result {
	if p == nil {
		return nil
	}
	result := &protocol.Result{Status: protocol.Partial, Body: p.Details, Summary: p.Message}
	if p.Percent > 0 {
		result.Notes = fmt.Sprintf("%g %% done", p.Percent)
	}
	return result
}
