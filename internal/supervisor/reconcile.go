package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// request asks for the reconcile of one handoff.
type request struct {
	ticket string
	// onlyAt, if not 0, drops the request when the head is another by now: its writer
	// announces it where that is needed.
	onlyAt uint64
	// head, if its Seq is not 0, is where the handoff was just seen.
	head broker.Head
	// childrenSwept says that a sweep matches the children by itself.
	childrenSwept bool
	// standing, if not 0, is an offer of the handoff that stands in its queue.
	standing uint64
	// endedOffer, if not nil, is an offer to be taken out of its queue, and nothing else is
	// to be done.
	endedOffer *broker.OfferKey
	// attempt, if not nil, is an attempt at the handoff that has ended, which the health of its agent
	// takes in first. onlyAttempt says that nothing else is to be done.
	attempt     *lifecycle.Attempt
	onlyAttempt bool
	// closedChildren are children of the handoff that have closed.
	closedChildren []protocol.ChildClosed
	// andItself says that the handoff is reconciled once its children are marked: its return was
	// taken in, or never will be, or its chain has ended.
	andItself bool
	// wasStuck says that the handoff was stuck when the last try read it: one try is
	// enough then.
	wasStuck bool
	// tellRelatives has the notifier tell those of the handoff that its state concerns.
	tellRelatives bool
	// deadlock, if not nil, is a circle in which the handoff waits, and nothing else is to be done
	// than to take it out of that.
	deadlock *lifecycle.Deadlock
	// done is called when the request needs no repetition. It may be nil.
	done func()
}

func (r request) finish() {
	if r.done != nil {
		r.done()
	}
}

// handleDue reconciles a handoff whose wake-up has fired, or that its writer announces.
func (s *Supervisor) handleDue(ctx context.Context, w broker.WakeUp, done func()) {
	r := request{ticket: w.Ticket, tellRelatives: true, done: done}
	word, ended, named := w.Attention.Ended()
	if attempt, ok := w.Attention.Attempt(w.Ticket); ok {
		r.attempt, r.onlyAttempt = &attempt, word == lifecycle.AttentionNone
	}
	switch word {
	case "":
		s.cfg.Watch.Due(w.At)
	case lifecycle.AttentionLater:
		r.onlyAt = w.Seq
	}
	if named {
		key := broker.OfferKey{Agent: ended.Agent, Lane: ended.Lane, Ticket: w.Ticket, Sequence: ended.Offer}
		if word != lifecycle.AttentionNone || r.onlyAttempt {
			r.done = afterCalls(2, done)
		}
		s.enqueue(ctx, request{ticket: w.Ticket, endedOffer: &key, done: r.done})
	}
	if !named || word != lifecycle.AttentionNone || r.onlyAttempt {
		s.enqueue(ctx, r)
	}
}

// afterCalls returns a function whose n-th call calls done: what was delivered once, and is a reason
// for n requests, is done with the last of them.
func afterCalls(n int32, done func()) func() {
	var left atomic.Int32
	left.Store(n)
	return func() {
		if left.Add(-1) == 0 {
			done()
		}
	}
}

// enqueue hands a request to the loops; it blocks while all of them are busy.
func (s *Supervisor) enqueue(ctx context.Context, r request) {
	select {
	case s.requests <- r:
	case <-ctx.Done():
	}
}

func (s *Supervisor) reconcileLoop(ctx context.Context, trying *startedAt) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case l := <-s.requests:
			if l.endedOffer != nil {
				s.removeOffer(ctx, l)
			} else {
				s.reconcile(ctx, l, trying)
			}
		}
	}
}

// triesMax is how often a reconcile that fails for a reason of its own is repeated before the handoff
// is called stuck.
const triesMax = 5

// unansweredMax is how many tries in a row may have no answer of the engine, while it answers others,
// before a request gives its loop to them: 45 seconds and more.
const unansweredMax = 3

// errPanic is a panic over a handoff: the core chokes on its state, and always will.
var errPanic = errors.New("broken")

// reconcile repeats until it has succeeded, or never can. It waits for an engine that does not answer.
func (s *Supervisor) reconcile(ctx context.Context, r request, trying *startedAt) {
	wait := backoff.NewExponentialBackOff(backoff.WithInitialInterval(20*time.Millisecond),
		backoff.WithMaxInterval(2*time.Second), backoff.WithMaxElapsedTime(0))
	for failures, unanswered := 0, 0; ; {
		trying.begin()
		err := s.recoverPanic(r.ticket, func() error { return s.reconcileOnce(ctx, &r) })
		trying.end()
		if ctx.Err() == nil {
			s.cfg.Watch.Reconciled(err)
		}
		switch {
		case err == nil:
			r.finish()
			return
		case ctx.Err() != nil:
			return
		case isUnanswered(err):
			s.log.Warn("engine does not answer; waiting", "ticket", r.ticket, "err", err)
			if unanswered++; unanswered >= unansweredMax && s.engineAnswers(ctx) {
				s.log.Error("reconcile given up until the next sweep: the engine answers others", "ticket", r.ticket, "err", err)
				r.finish()
				return
			}
		default:
			failures++
			if failures == triesMax || r.wasStuck || errors.Is(err, errPanic) || broker.Unreadable(err) { // to try again helps nothing
				s.recordStuck(ctx, r, err, failures)
				return
			}
			s.log.Error("reconcile failed", "ticket", r.ticket, "try", failures, "err", err)
		}
		r.head = broker.Head{}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait.NextBackOff()):
		}
	}
}

// engineAnswers tells whether the engine answers a question about a handoff that is none.
func (s *Supervisor) engineAnswers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, reconcileTimeout)
	defer cancel()
	_, err := s.b.Head(ctx, uuid.Nil.String(), 0)
	return err == nil || !isUnanswered(err)
}

// reconcileTimeout bounds one try, so that no loop is lost to a request without an answer.
const reconcileTimeout = 15 * time.Second

func (s *Supervisor) reconcileOnce(ctx context.Context, l *request) error {
	ctx, cancel := context.WithTimeout(ctx, reconcileTimeout)
	defer cancel()
	if l.deadlock != nil {
		return s.breakDeadlock(ctx, l)
	}
	if l.attempt != nil {
		l.done = s.breakers.count(ctx, *l.attempt, l.done)
		if l.attempt = nil; l.onlyAttempt {
			return nil
		}
	}
	head := l.head
	if head.Seq == 0 {
		var err error
		head, err = s.b.Head(ctx, l.ticket, 0)
		var unread *broker.UnreadableError
		switch {
		case errors.Is(err, broker.ErrNotFound): // aged out, or a foreign ticket
			return nil
		case errors.As(err, &unread): // no entry can follow it
			s.noteUnreadable(unread.Ticket, unread.Seq, unread)
			return nil
		case err != nil:
			return err
		}
	}
	s.noteReadable(head.Ticket, head.Seq)
	s.absences.note(&head.State)
	if l.onlyAt != 0 && head.Seq != l.onlyAt {
		return nil
	}
	if l.tellRelatives {
		l.tellRelatives, l.done = false, s.notifier.notifyRelatives(head.State, l.done)
	}
	l.wasStuck = head.State.StuckReason != ""
	if len(l.closedChildren) > 0 {
		if err := s.markChildren(ctx, head, l.closedChildren); err != nil || !l.andItself {
			return err
		}
		var err error
		if head, err = s.b.Head(ctx, l.ticket, 0); err != nil {
			return err
		}
	}
	if head.State.Closed {
		return s.reconcileClosed(ctx, head, l.childrenSwept)
	}
	return s.reconcileOpen(ctx, head, l)
}

// reconcileOpen appends what is to be appended to an open handoff, and does what its state
// calls for then.
func (s *Supervisor) reconcileOpen(ctx context.Context, head broker.Head, r *request) error {
	for {
		at, judge := time.Time{}, time.Time{}
		var deadlock time.Time
		before := head
		next, appended, err := s.b.UpdateFrom(ctx, head, func(h broker.Head, d *lifecycle.Directory, now time.Time) (lifecycle.Step, error) {
			at, judge = now, lifecycle.AbsenceKnownAt(h.State, d)
			if due := lifecycle.BreakerDue(h.State, d, now); !due.IsZero() {
				s.breakers.keep(h.State)
				judge = due
			}
			if deadlock = lifecycle.DeadlockDue(h.State, d); deadlock.After(now) && (judge.IsZero() || deadlock.Before(judge)) {
				judge = deadlock
			}
			return decide(h.State, d, now)
		})
		switch head = next; {
		case err != nil:
			return err
		case !appended:
			err := s.performDuties(ctx, head, at, nextReconcile(head.State, at, judge), r)
			if err == nil && !deadlock.IsZero() && !deadlock.After(at) {
				err = s.suspectDeadlock(ctx, head)
			}
			if err == nil {
				s.engine.Settled(head.Ticket, head.Seq)
			}
			return err
		}
		s.logDecision(before.State, head)
		if head.State.Closed {
			return s.reconcileClosed(ctx, head, r.childrenSwept)
		}
	}
}

// nextReconcile is when a handoff is reconciled again that calls for no event now. judge is when the
// directory can tell more of holders that are gone.
func nextReconcile(s protocol.State, now, judge time.Time) time.Time {
	next := lifecycle.NextReconcile(s, now)
	if judge.After(now) && judge.Before(next) { // we came back too lately to say more now
		return judge
	}
	return next
}

// decide asks the core. A state that it chokes on (it panics rather than append
// what does not apply) makes one handoff stuck; it must not take down every
// supervisor that comes by.
func decide(s protocol.State, d *lifecycle.Directory, now time.Time) (step lifecycle.Step, err error) {
	defer func() {
		if broken := recover(); broken != nil {
			step, err = lifecycle.Step{}, fmt.Errorf("decide about %s: %w: %v", s.Ticket, errPanic, broken)
		}
	}()
	return lifecycle.Decide(s, d, now), nil
}

// wakeUpDelayMin keeps a wake-up that has come, by a clock other than ours, from
// firing in a circle.
const wakeUpDelayMin = 200 * time.Millisecond

// performDuties makes sure that what the state calls for stands outside. The wake-up
// does not depend on the rest: what cannot be offered has a deadline all the same.
func (s *Supervisor) performDuties(ctx context.Context, head broker.Head, now, next time.Time, r *request) error {
	duties := lifecycle.DutiesOf(head.State)
	duties.Children = duties.Children && !r.childrenSwept
	duties.Offer = duties.Offer && head.State.Offer != r.standing
	var source error
	if duties.Source {
		source = s.b.EnsureSource(ctx, head)
	}
	_, shared := s.b.EnsureWorkspace(ctx, head)
	_, called := s.b.EnsureBids(ctx, head)
	return errors.Join(s.publishOutbox(ctx, head, duties, now, next), source, shared, called, s.reconcileFamily(ctx, head, duties))
}

// publishOutbox puts the offer and the wake-up in place.
func (s *Supervisor) publishOutbox(ctx context.Context, head broker.Head, duties lifecycle.Duties, now, next time.Time) error {
	var offered error
	if duties.Offer {
		offered = s.b.EnsureOffer(ctx, head)
	}
	if soonest := now.Add(wakeUpDelayMin); next.Before(soonest) {
		next = soonest
	}
	return errors.Join(offered, s.engine.Arm(ctx, head.Ticket, head.Seq, next))
}

// reconcileClosed does what a closed handoff still owes: its return to its source,
// the submission of what it handed off, the end of what it shall not leave behind.
// matched reports that its children were looked at just before.
func (s *Supervisor) reconcileClosed(ctx context.Context, head broker.Head, matched bool) error {
	before := head.State
	head, appended, err := s.b.UpdateFrom(ctx, head, func(h broker.Head, d *lifecycle.Directory, now time.Time) (lifecycle.Step, error) {
		return decide(h.State, d, now)
	})
	if err != nil {
		return err
	}
	if appended {
		s.logDecision(before, head)
	}
	duties := lifecycle.DutiesOf(head.State)
	duties.Children = duties.Children && !matched
	var returned error
	if duties.Chain || duties.Return {
		returned = s.b.EnsureReturn(ctx, head)
	}
	_, shared := s.b.EnsureWorkspace(ctx, head)
	var called error
	switch {
	case duties.BidAnswer:
		called = s.b.EnsureBidAnswer(ctx, head)
	case lifecycle.LeavesCalls(head.State):
		called = s.b.EndCalls(ctx, head)
	}
	err = errors.Join(returned, shared, called, s.reconcileFamily(ctx, head, duties))
	if err == nil {
		s.engine.Settled(head.Ticket, head.Seq)
	}
	return err
}

func (s *Supervisor) logDecision(before protocol.State, head broker.Head) {
	after := head.State
	s.log.Info("decided", "ticket", head.Ticket, "from", before.Phase, "to", after.Phase, "agent", after.Agent,
		"attempt", after.Attempt, "level", after.EscalationLevel, "closed", after.Closed, "reason", after.Reason, "seq", head.Seq)
}

// recordStuck records that a handoff cannot be reconciled. Its other reasons to reconcile stay: an
// operator may mend the cause. No entry can follow a head that cannot be read: that is noted here, and
// handoff doctor reports it.
func (s *Supervisor) recordStuck(ctx context.Context, r request, cause error, tries int) {
	level := slog.LevelError
	if r.wasStuck { // which was logged
		level = slog.LevelDebug
	}
	s.log.Log(ctx, level, "reconcile failed; handoff is stuck", "ticket", r.ticket, "try", tries, "err", cause)
	ctx, cancel := context.WithTimeout(ctx, reconcileTimeout)
	defer cancel()
	head, err := s.b.Head(ctx, r.ticket, 0)
	if err == nil && head.State.StuckReason == "" && !head.State.Closed {
		_, _, err = s.b.UpdateFrom(ctx, head, func(h broker.Head, _ *lifecycle.Directory, now time.Time) (lifecycle.Step, error) {
			return lifecycle.RecordStuck(h.State, cause, now)
		})
	}
	var unread *broker.UnreadableError
	switch {
	case errors.As(err, &unread):
		s.noteUnreadable(unread.Ticket, unread.Seq, unread)
	case err != nil:
		s.log.Error("stuck handoff not recorded", "ticket", r.ticket, "err", err)
	}
	r.finish()
}
