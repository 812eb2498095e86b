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

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// run is one offer in this worker's hands, from the pull to the report.
type run struct {
	w         *Worker
	offer     Offer
	log       *slog.Logger
	ctx       context.Context // the handler's
	cancel    context.CancelCauseFunc
	pulledAt  time.Time
	beating   atomic.Bool
	claim     atomic.Pointer[Claim] // nil until accepted; then &held
	claimed   Claim
	seenState atomic.Pointer[protocol.State] // as the claim last had it
	reminder  reminder

	logs, attemptLogs lazyLogger

	progressed atomic.Pointer[protocol.Progress] // the last report of this worker
	cleaning   sync.WaitGroup                    // of the user's Cleanup, which may outlast the report

	// Of the goroutine that serves alone.
	acceptedAt    time.Time // by our clock
	handlerCalled bool      // Handle was called
	cleanupCalled bool      // Cleanup was

	mu          sync.Mutex
	released    bool      // the offer was released
	extendUntil time.Time // for how long it is kept from others; zero is for as long as it takes
}

func newRun(ctx context.Context, w *Worker, offer Offer) *run {
	r := &run{w: w, offer: offer, pulledAt: time.Now()}
	r.log = r.logs.with(w.log, "ticket", offer.Ticket())
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	return r
}

func (r *run) state() protocol.State { return *r.lastState() }

// lastState returns the state itself, not a copy: large, and not to be changed.
func (r *run) lastState() *protocol.State {
	if s := r.seenState.Load(); s != nil {
		return s
	}
	return r.offer.State()
}

// refreshState keeps the claim's state, so that reading it never waits for
// an append under way. The returned state is not to be changed.
func (r *run) refreshState(c Claim) *protocol.State {
	s := c.LastState()
	r.seenState.Store(s)
	return s
}

// currentClaim is nil until the offer is accepted.
func (r *run) currentClaim() Claim {
	if claim := r.claim.Load(); claim != nil {
		return *claim
	}
	return nil
}

// serve takes the offer from the pull to the report.
func (r *run) serve(c contexts) {
	defer r.w.wg.Done()
	defer func() {
		r.w.runs.remove(r)
		r.reminder.stop()
		r.cancel(nil)
		r.cleaning.Wait()
		r.w.freeSlots(1)
	}()
	h, ack, failed, ok := r.prepareAnswer(c.accepting)
	if !ok {
		if c.accepting.Err() != nil {
			r.releaseOffer()
		}
		return // otherwise it comes again after the ack wait, and not in a circle
	}
	claim := r.acknowledge(c, ack)
	if claim == nil {
		return
	}
	s := r.lastState()
	h.Attempt, h.Fence = s.Attempt, s.Fence
	h.Trace = r.w.cfg.Trace(*s)
	h.Log = r.attemptLogs.with(r.log, "attempt", h.Attempt)
	r.attempt(c, h, claim, failed)
}

// attempt runs the user's code on a handoff, unless that has failed already, and
// reports.
func (r *run) attempt(c contexts, h Handoff, claim Claim, failed error) {
	if failed == nil {
		failed = r.readReturns(&h, claim)
	}
	if failed != nil {
		r.report(c, h, claim, protocol.Result{}, failed)
		return
	}
	var result protocol.Result
	err := errors.New("the handler ended its goroutine instead of returning")
	defer func() { r.report(c, h, claim, result, err) }() // deferred, for runtime.Goexit
	result, err = r.callHandler(h)
	if err == nil && r.handlerCalled {
		r.w.worked.add(time.Since(r.acceptedAt))
	}
}

// prepareAnswer finds out how to answer the offer. failed is an error of the user's
// code on the way: the attempt it belongs to is then begun and failed. ok is
// false if there is no answer: the worker drains, or the package is not to be had.
func (r *run) prepareAnswer(ctx context.Context) (h Handoff, ack protocol.Ack, failed error, ok bool) {
	ack.Status = protocol.AckAccepted
	h = Handoff{Ticket: r.offer.Ticket(), Agent: r.w.cfg.Agent, Log: r.log, r: r}
	err := r.fetch(ctx, &h)
	if errors.Is(err, broker.ErrNotFound) { // gone, or damaged, for every worker
		return h, lifecycle.UnreadablePackage(err), nil, true
	}
	if err != nil {
		if ctx.Err() == nil {
			r.log.Error("package not fetched", "err", err)
		}
		return h, ack, nil, false
	}
	h.Answers, h.Trail = r.offer.Answers(), r.offer.Trail() // fetched with the package
	if h.Package, err = decode(h.Raw, h.Answers); err != nil {
		// Another worker, of a newer version, may be able to.
		return h, lifecycle.UnreadablePackage(err), nil, true
	}
	if r.w.acks != nil && h.State().CallOf == "" {
		var timedOut bool
		if ack, timedOut, failed = r.callAcknowledger(ctx, h); timedOut {
			r.log.Warn("offer not acknowledged in time; released", "after", lifecycle.ClaimTimeout(h.State()))
			r.releaseOffer()
			return h, ack, nil, false
		}
	}
	return h, ack, failed, ctx.Err() == nil
}

// fetch reads the package: most have come with the offer.
func (r *run) fetch(ctx context.Context, h *Handoff) (err error) {
	if r.offer.Inline() {
		h.Raw, err = r.offer.Package(ctx)
		return err
	}
	return r.w.retry(ctx, "fetch the package", withTimeout(fetchTimeout, func(ctx context.Context) (err error) {
		h.Raw, err = r.offer.Package(ctx)
		return err
	}))
}

// callAcknowledger lets the user's code answer the offer. timedOut reports that it did not in time,
// which is charged to no attempt: the offer goes to another.
func (r *run) callAcknowledger(accepting context.Context, h Handoff) (ack protocol.Ack, timedOut bool, err error) {
	limit := lifecycle.ClaimTimeout(h.State())
	ctx, cancel := context.WithTimeoutCause(r.ctx, limit, errNotAcknowledged)
	defer cancel()
	r.limitExtension(time.Now().Add(limit))
	// A drain ends the run: its offer is released, whatever the answer is.
	defer context.AfterFunc(accepting, func() { r.cancel(ErrShutdown) })()
	ack, err = recoverPanic(r.log, func() (protocol.Ack, error) { return r.w.acks.Acknowledge(ctx, h) })
	if context.Cause(ctx) == errNotAcknowledged {
		return ack, true, nil
	}
	r.limitExtension(time.Time{}) // the append may take as long as it takes
	if err == nil {
		if err = ack.Validate(); err == nil {
			return ack, false, nil
		}
		err = &Failure{Code: "invalid_ack", Permanent: true, Err: fmt.Errorf("acknowledgement: %w", err)}
	}
	return protocol.Ack{Status: protocol.AckAccepted}, false, err
}

// acknowledge answers the offer. The claim is nil unless it was accepted and is ours.
func (r *run) acknowledge(c contexts, ack protocol.Ack) Claim {
	ctx, cancel := c.forReport()
	defer cancel()
	var claim Claim
	err := r.w.retryUpTo(ctx, unlimited, "acknowledge", func(ctx context.Context) (err error) {
		claim, err = r.offer.Acknowledge(ctx, r.w.holder, ack, true)
		return err
	})
	switch {
	case errors.Is(err, broker.ErrOfferGone):
		r.log.Debug("offer gone", "err", err)
	case err != nil: // it comes again after the ack wait
		r.log.Error("offer not acknowledged", "err", err)
	case claim == nil:
		r.w.counts.declined.Add(1)
		r.log.Info("handoff declined", "as", ack.Status, "reason", ack.Reason)
	default:
		r.refreshState(claim)
		r.claimed, r.acceptedAt = claim, time.Now()
		r.claim.Store(&r.claimed)
		r.w.counts.claimed.Add(1)
		return claim
	}
	return nil
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

// beat keeps the offer from others and heeds the signal in the head.
func (r *run) beat(ctx context.Context) {
	if !r.beating.CompareAndSwap(false, true) {
		return // the last one still waits for its answer
	}
	defer r.beating.Store(false)
	claim := r.currentClaim()
	if claim == nil {
		r.extendOffer()
		return
	}
	ctx, cancel := context.WithTimeout(ctx, min(r.w.cfg.BeatTimeout, r.w.heartbeatInterval))
	defer cancel()
	signal, err := claim.Beat(ctx)
	switch {
	case errors.Is(err, broker.ErrLeaseLost):
		r.cancel(err)
		return
	case err != nil:
		r.log.Warn("handoff's head not read in a beat", "err", err)
		return
	}
	r.refreshState(claim)
	r.applySignal(signal)
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

// extendOffer keeps an offer from others that is not accepted yet.
func (r *run) extendOffer() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.released || !r.extendUntil.IsZero() && time.Now().After(r.extendUntil) {
		return
	}
	if err := r.offer.Extend(); err != nil {
		r.log.Warn("offer not extended", "err", err)
	}
}

// limitExtension bounds for how long the offer is kept from others, also by user code
// that does not heed the end of its context.
func (r *run) limitExtension(until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.extendUntil = until
}

// releaseOffer lets others have the offer. No beat under way may extend it after that.
func (r *run) releaseOffer() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.released {
		return
	}
	r.released = true
	releaseOffer(r.w, r.offer)
}

func (r *run) progress(ctx context.Context, progress protocol.Progress) error {
	claim := r.currentClaim()
	if claim == nil {
		return protocol.Errorf(protocol.CodeIllegal, "progress", "the handoff is not accepted yet")
	}
	err := claim.Progress(ctx, progress)
	switch {
	case errors.Is(err, broker.ErrLeaseLost):
		r.cancel(err)
	case err == nil:
		r.progressed.Store(&progress)
		s := r.refreshState(claim) // an end that was asked for is seen on the way, sooner than by the next beat
		r.cancelIfRequested(s.CancelRequested, s.CancelReturn)
	}
	return err
}

// spend reports the usage of the attempt.
func (r *run) spend(ctx context.Context, usage protocol.Usage) error {
	return r.say("usage", func(claim Claim) error { return claim.Spend(ctx, usage) })
}

// decide records a decision of the handler.
func (r *run) decide(ctx context.Context, decision protocol.WorkDecision) error {
	return r.say("decision", func(claim Claim) error { return claim.Decide(ctx, decision) })
}

// say reports a fact from within the work. Like progress it cancels the handler on a requested end.
func (r *run) say(field string, report func(Claim) error) error {
	claim := r.currentClaim()
	if claim == nil {
		return protocol.Errorf(protocol.CodeIllegal, field, "the handoff is not accepted yet")
	}
	err := report(claim)
	switch {
	case errors.Is(err, broker.ErrLeaseLost):
		r.cancel(err)
	case err == nil:
		s := r.refreshState(claim)
		r.cancelIfRequested(s.CancelRequested, s.CancelReturn)
	}
	return err
}

// extendWork asks for more time, after which the holder is reminded anew.
func (r *run) extendWork(ctx context.Context, by time.Duration, reason string) error {
	claim := r.currentClaim()
	if claim == nil {
		return protocol.Errorf(protocol.CodeIllegal, "extend_ms", "the handoff is not accepted yet")
	}
	err := claim.Extend(ctx, by, reason)
	switch {
	case errors.Is(err, broker.ErrLeaseLost):
		r.cancel(err)
	case err == nil:
		r.refreshState(claim)
		r.reminder.reset()
	}
	return err
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
