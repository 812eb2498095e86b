package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// run is one handoff in this worker's hands, from the claim to the report.
type run struct {
	w         *Worker
	held      *api.Held
	log       *slog.Logger
	ctx       context.Context // the handler's
	cancel    context.CancelCauseFunc
	claimedAt time.Time
	beating   atomic.Bool
	accepted  atomic.Bool
	seenState atomic.Pointer[protocol.State] // as of the last answer
	reminder  reminder
	calls     childCalls

	progressed atomic.Pointer[protocol.Progress] // the last report of this worker
	cleaning   sync.WaitGroup                    // of the user's Cleanup, which may outlast the report

	// Of the goroutine that serves alone.
	acceptedAt    time.Time // by our clock
	handlerCalled bool      // Handle was called
	cleanupCalled bool      // Cleanup was
	recorded      bool      // the end is in the ledger
}

func newRun(ctx context.Context, w *Worker, held *api.Held) *run {
	r := &run{w: w, held: held, claimedAt: time.Now()}
	r.seenState.Store(held.State)
	r.log = w.log.With("ticket", held.State.Ticket)
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	return r
}

// lastState returns the state itself, not a copy: large, and not to be changed.
func (r *run) lastState() *protocol.State { return r.seenState.Load() }

// serve takes the handoff from the claim to the report.
func (r *run) serve(c contexts) {
	defer r.w.wg.Done()
	defer func() {
		r.w.runs.remove(r)
		r.reminder.stop()
		r.cancel(nil)
		r.cleaning.Wait()
		r.w.freeSlots(1)
	}()
	if r.lastState().Fence != 0 {
		r.begin()
	}
	h := Handoff{Ticket: r.lastState().Ticket, Agent: r.w.cfg.Agent, Log: r.log, Raw: r.held.Package,
		Answers: r.held.Answers, Trail: r.held.Trail, r: r}
	var err error
	if h.Package, err = decode(h.Raw, h.Answers); err != nil { // another worker, of a newer version, may be able to
		r.refuse(c, h, lifecycle.UnreadablePackage(err))
		return
	}
	var failed error
	if !r.accepted.Load() {
		var ok bool
		if failed, ok = r.acknowledge(c, h); !ok {
			return
		}
	}
	s := r.lastState()
	h.Attempt, h.Fence = s.Attempt, s.Fence
	h.Trace = r.w.cfg.Trace(*s)
	h.Log = r.log.With("attempt", h.Attempt)
	r.attempt(c, h, failed)
}

// begin notes that the handoff is accepted.
func (r *run) begin() {
	r.acceptedAt = time.Now()
	r.accepted.Store(true)
	r.w.counts.of("claimed").Add(1)
}

// attempt runs the user's code on a handoff, unless that has failed already, and
// reports.
func (r *run) attempt(c contexts, h Handoff, failed error) {
	if failed == nil {
		failed = r.readReturns(&h)
	}
	if failed != nil {
		r.report(c, h, protocol.Result{}, failed)
		return
	}
	var result protocol.Result
	err := errors.New("the handler ended its goroutine instead of returning")
	defer func() { r.report(c, h, result, err) }() // deferred, for runtime.Goexit
	result, err = r.callHandler(h)
	if err == nil && r.handlerCalled {
		r.w.worked.add(time.Since(r.acceptedAt))
	}
}

// acknowledge lets the user's code answer the offer. failed is an error of that code: the attempt
// is begun, and fails with it. ok is false if the handoff is not this worker's to work on.
func (r *run) acknowledge(c contexts, h Handoff) (failed error, ok bool) {
	ack := protocol.Ack{Status: protocol.AckAccepted}
	if r.lastState().CallOf == "" {
		answered, timedOut, err := r.callAcknowledger(c.accepting, h)
		switch {
		case timedOut:
			r.log.Warn("offer not acknowledged in time; released", "after", lifecycle.ClaimTimeout(h.State()))
			r.putBack(c, "not acknowledged in time")
			return nil, false
		case c.accepting.Err() != nil:
			r.putBack(c, "its worker shuts down")
			return nil, false
		}
		ack, failed = answered, err
	}
	if ack.Status != protocol.AckAccepted {
		r.refuse(c, h, ack)
		return nil, false
	}
	if err := r.answer(c, ack); err != nil {
		r.log.Debug("offer gone", "err", err)
		return nil, false
	}
	r.begin()
	return failed, true
}

// answer sends the answer to an offer.
func (r *run) answer(c contexts, ack protocol.Ack) error {
	return r.send(c, "acknowledge", func(ctx context.Context) error {
		return r.seen(r.w.session.Acknowledge(ctx, r.held.Lease, ack))
	})
}

// refuse answers an offer with another answer than to accept it.
func (r *run) refuse(c contexts, h Handoff, ack protocol.Ack) {
	if r.accepted.Load() {
		(&refuseError{ack}).report(r, c, h)
		return
	}
	if err := r.answer(c, ack); err != nil {
		r.log.Debug("offer gone", "err", err)
		return
	}
	r.w.counts.of("declined").Add(1)
	r.log.Info("handoff declined", "as", ack.Status, "reason", ack.Reason)
}

// putBack releases a handoff that nothing was done for.
func (r *run) putBack(c contexts, reason string) {
	err := r.send(c, "release", func(ctx context.Context) error { return last(r.w.session.Release(ctx, r.held.Lease, reason, nil)) })
	if err != nil {
		r.log.Debug("offer gone", "err", err)
	}
}

// callAcknowledger lets the user's code answer the offer. timedOut reports that it did not in time,
// which is charged to no attempt: the offer goes to another.
func (r *run) callAcknowledger(accepting context.Context, h Handoff) (ack protocol.Ack, timedOut bool, err error) {
	ctx, cancel := context.WithTimeoutCause(r.ctx, lifecycle.ClaimTimeout(h.State()), errNotAcknowledged)
	defer cancel()
	// A drain ends the run: its offer is released, whatever the answer is.
	defer context.AfterFunc(accepting, func() { r.cancel(ErrShutdown) })()
	ack, err = recoverPanic(r.log, func() (protocol.Ack, error) { return r.w.acks.Acknowledge(ctx, h) })
	if context.Cause(ctx) == errNotAcknowledged {
		return ack, true, nil
	}
	if err == nil {
		if err = ack.Validate(); err == nil {
			return ack, false, nil
		}
		err = &Failure{Code: "invalid_ack", Permanent: true, Err: fmt.Errorf("acknowledgement: %w", err)}
	}
	return protocol.Ack{Status: protocol.AckAccepted}, false, err
}

// callHandler runs the user's code, unless its time is over before it began.
func (r *run) callHandler(h Handoff) (protocol.Result, error) {
	if r.ctx.Err() != nil {
		return protocol.Result{}, context.Cause(r.ctx)
	}
	if r.lastState().CallOf != "" {
		return r.bid(h)
	}
	r.handlerCalled = true
	ctx := broker.WithTrace(r.ctx, h.Trace)
	return recoverPanic(r.log, func() (protocol.Result, error) { return r.w.handler.Handle(ctx, h) })
}

// stackBytesMax is how much of a panic's stack goes into the ledger; the log
// has all of it.
const stackBytesMax = 4 << 10

// recoverPanic turns a panic of the user's code into a failed attempt.
func recoverPanic[T any](log *slog.Logger, f func() (T, error)) (value T, err error) {
	defer func() {
		if p := recover(); p != nil {
			stack := debug.Stack()
			log.Error("handler panicked", "panic", p, "stack", string(stack))
			err = &Failure{Code: "panic", Err: fmt.Errorf("panic: %v\n%s", p, protocol.CutText(string(stack), stackBytesMax))}
		}
	}()
	return f()
}

// beat keeps the lease, and heeds the signal in the head.
func (r *run) beat(ctx context.Context) {
	if !r.beating.CompareAndSwap(false, true) {
		return // the last one still waits for its answer
	}
	defer r.beating.Store(false)
	ctx, cancel := context.WithTimeout(ctx, min(r.w.cfg.BeatTimeout, r.w.heartbeatInterval))
	defer cancel()
	signal, err := r.beatClaim(ctx)
	switch {
	case errors.Is(err, broker.ErrLeaseLost):
		r.cancel(err)
	case err != nil:
		r.log.Warn("handoff's head not read in a beat", "err", err)
	default:
		r.applySignal(signal)
	}
}

// applySignal carries out the requests of the ledger.
func (r *run) applySignal(signal broker.Signal) {
	if signal.Reminded {
		r.reminder.fire()
	}
	r.cancelIfRequested(signal.CancelRequested, signal.Return)
}

// cancelIfRequested ends the handler's context if the end of the handoff was asked for.
func (r *run) cancelIfRequested(end, rollBack bool) {
	switch {
	case rollBack:
		r.cancel(ErrReturned)
	case end:
		r.cancel(ErrCancelled)
	}
}

// reminder is closed when most of the time to the limit is used up: when the ledger
// asks for it, or when it is time by our own clock, for a supervisor may be away.
type reminder struct {
	mu    sync.Mutex
	ch    chan struct{}
	fired bool
	timer *time.Timer
}

func (m *reminder) ensureChannel() {
	if m.ch == nil {
		m.ch = make(chan struct{})
	}
}

// channel is for a handoff that was accepted at an instant of our own clock: the ledger's
// instant would mislead when that clock is set.
func (m *reminder) channel(s protocol.State, accepted time.Time) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ensureChannel()
	if at := lifecycle.ReminderAt(s); m.timer == nil && !m.fired && !at.IsZero() {
		m.timer = time.AfterFunc(time.Until(accepted.Add(at.Sub(s.AcceptedAt))), m.fire)
	}
	return m.ch
}

// reset makes another channel of it, for a handoff that was extended.
func (m *reminder) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.timer != nil {
		m.timer.Stop()
	}
	m.ch, m.fired, m.timer = nil, false, nil
}

func (m *reminder) fire() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ensureChannel()
	if !m.fired {
		m.fired = true
		close(m.ch)
	}
}

func (m *reminder) stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.timer != nil {
		m.timer.Stop()
	}
}
