package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/internal/filelock"
	"github.com/agenthandoff/handoff/protocol"
)

// Cleaner is a Handler that cleans up when a handoff leaves its worker without a result.
// Cleanup is called after Handle has returned an error, once at most, in these cases:
//
//   - the handoff goes back to its source: Handle returned RollBack, or its
//     context had ended with ErrReturned. why is ErrReturned (errors.Is).
//   - its end was asked for: the context had ended with ErrCancelled.
//   - the lease is lost: the context had ended with broker.ErrLeaseLost, or the
//     ledger refused the report of the failure with it. Another worker may be at
//     work on the same by then.
//
// It is not called where Handle has returned a result, not even if that came too
// late and does not count; nor after a failure, a Refuse, an Await, an Escalate or
// a shutdown: the work goes on then, here or elsewhere.
//
// But for a lost lease the handoff stays this worker's while Cleanup runs, and
// beats go on: no other worker begins it meanwhile. ctx ends after
// Config.CleanupTimeout. Then the worker reports without waiting any longer, and
// only the slot stays taken until Cleanup has returned. A supervisor that forces
// an end which was asked for does so after the package's cancel_grace_ms (30 s by
// default), so that Handle and Cleanup together should need less. An error, or a
// panic, is logged, and the source of a handoff that is rolled back reads it.
type Cleaner interface {
	Cleanup(ctx context.Context, h Handoff, why error) error
}

// cleanup lets the user's code put away its things, if it has begun at all.
func (r *run) cleanup(c contexts, h Handoff, why error) error {
	if r.w.cleaner == nil || !r.handlerCalled || r.cleanupCalled {
		return nil
	}
	r.cleanupCalled = true
	ctx, cancel := context.WithTimeout(c.running, r.w.cfg.CleanupTimeout)
	done := make(chan error, 1)
	r.cleaning.Go(func() {
		defer cancel()
		err := errors.New("it ended its goroutine instead of returning")
		defer func() { done <- err }() // deferred, for runtime.Goexit
		_, err = recoverPanic(r.log, func() (struct{}, error) { return struct{}{}, r.w.cleaner.Cleanup(ctx, h, why) })
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

// reportCancelled reports the end of a handoff whose end was asked for, or whose lease is
// lost: the cause of r.ctx, which has ended, is one of these. Handle returned result and err.
func (r *run) reportCancelled(c contexts, h Handoff, result protocol.Result, err error) {
	cause, partial := context.Cause(r.ctx), partialOf(result)
	switch {
	case errors.Is(cause, ErrReturned):
		var rolledBack *rollBackError
		if !errors.As(err, &rolledBack) {
			rolledBack = &rollBackError{reason: cmp.Or(r.lastState().CancelReason, "asked to roll it back"), partial: partial}
		}
		r.rollBack(c, h, rolledBack)
	case errors.Is(cause, ErrCancelled):
		r.release(c, h, withCleanupError("cancel requested", r.cleanup(c, h, cause)), partial)
	case errors.Is(cause, errUnconfirmed):
		r.release(c, h, withCleanupError("its worker was cut off from the engine for a lease", r.cleanup(c, h, cause)), partial)
	default:
		_ = r.cleanup(c, h, cause) // which has logged it
		if partial != nil {        // it is kept, and nothing is released that is another's
			_ = r.sendPartial(c, "keep a late result", partial, func(ctx context.Context, partial *protocol.Result) error {
				return last(r.w.session.Release(ctx, r.held.Lease, "", partial))
			})
		}
		r.recordOutcome("lost", cause)
	}
}

// withCleanupError adds the error of the cleanup to a reason.
func withCleanupError(reason string, failed error) string {
	if failed == nil {
		return reason
	}
	return reason + "; cleanup failed: " + protocol.CutText(failed.Error(), stackBytesMax)
}

func (rolledBack *rollBackError) report(r *run, c contexts, h Handoff) {
	r.rollBack(c, h, rolledBack)
}

// rollBack returns the handoff to its source.
func (r *run) rollBack(c contexts, h Handoff, rolledBack *rollBackError) {
	reason := rolledBack.reason
	reason = cmp.Or(reason, "its worker gave no reason")
	reason = withCleanupError(reason, r.cleanup(c, h, rolledBack))
	partial := rolledBack.partial
	if partial == nil {
		partial = resultOf(r.progressed.Load())
	}
	err := r.sendPartial(c, "roll back", partial, func(ctx context.Context, partial *protocol.Result) error {
		return last(r.w.session.RollBackHeld(ctx, r.held.Lease, reason, partial))
	})
	r.finishReport(c, h, "rolled back", "roll back", errors.New(reason), err)
}

// resultOf makes a partial result of a report of progress; nil of none.
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

// scratch is the directory below TMPDIR for the files of the programs of this process. It exists while
// programs run, with a lock that ends with the process, however that ends. The directory of a killed
// worker is known by its free lock.
var scratch struct {
	sync.Mutex
	dir  string
	lock *filelock.Lock
	used int // directories in it
}

const (
	scratchPattern = "handoff-*"
	scratchLock    = "lock"
	// scratchTries bounds the tries to make a directory. Another worker that looks before the lock is
	// taken removes it as a left one.
	scratchTries = 3
)

// newScratch makes a directory for the files of one program, and TMPDIR if it has vanished. The
// caller calls done.
func newScratch() (dir string, done func(), err error) {
	scratch.Lock()
	defer scratch.Unlock()
	for range scratchTries { // another worker may take a directory that is new for a left one
		if _, err := os.Stat(scratch.dir); scratch.dir == "" || err != nil {
			if err := openScratch(); err != nil {
				return "", nil, err
			}
		}
		if dir, err = os.MkdirTemp(scratch.dir, ""); !errors.Is(err, os.ErrNotExist) {
			break
		}
	}
	if err != nil {
		return "", nil, err
	}
	scratch.used++
	return dir, func() { freeScratch(dir) }, nil
}

// openScratch makes the directory of this process.
func openScratch() (err error) {
	if scratch.lock != nil { // the one before has vanished
		_ = scratch.lock.Close()
		scratch.lock, scratch.dir = nil, ""
	}
	base := os.TempDir()
	if _, err := os.Stat(base); errors.Is(err, os.ErrNotExist) {
		if err := os.MkdirAll(base, 0o700); err != nil {
			return err
		}
	}
	for range scratchTries {
		dir, made := os.MkdirTemp(base, scratchPattern)
		if made != nil {
			return made
		}
		var lock *filelock.Lock
		if lock, err = filelock.Take(filepath.Join(dir, scratchLock)); err == nil {
			scratch.dir, scratch.lock = dir, lock
			return nil
		}
	}
	return err
}

// freeScratch removes the directory of a program, and that of the process with the last of them.
func freeScratch(dir string) {
	_ = os.RemoveAll(dir)
	scratch.Lock()
	defer scratch.Unlock()
	scratch.used--
	if scratch.used > 0 || scratch.lock == nil {
		return
	}
	_ = os.RemoveAll(scratch.dir)
	_ = scratch.lock.Close()
	scratch.dir, scratch.lock = "", nil
}

// sweepScratch removes the directories that killed workers of this user have left below TMPDIR.
func sweepScratch() {
	left, err := filepath.Glob(filepath.Join(os.TempDir(), scratchPattern))
	if err != nil {
		return
	}
	for _, dir := range left {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() || !isOurs(info) {
			continue
		}
		path := filepath.Join(dir, scratchLock)
		if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
			continue
		}
		lock, err := filelock.Take(path)
		if err != nil { // its process runs
			continue
		}
		_ = os.RemoveAll(dir)
		_ = lock.Close()
	}
}
