package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// request asks for the reconcile of one handoff.
type request struct {
	ticket string
	// onlyAt, if not 0, is the sequence of the head for which the request is valid: if the head is
	// newer, its writer has announced it if necessary.
	onlyAt uint64
	// head, if its Seq is not 0, is the head just read.
	head broker.Head
	// childrenSwept reports that a sweep matches the children.
	childrenSwept bool
	// standing, if not 0, is an offer of the handoff that is in its queue.
	standing uint64
	// endedOffer, if not nil, is an offer to be removed from its queue; the request does nothing
	// else.
	endedOffer *broker.OfferKey
	// attempt, if not nil, is an ended attempt at the handoff, which is counted for the health of
	// its agent first. With onlyAttempt the request does nothing else.
	attempt     *lifecycle.Attempt
	onlyAttempt bool
	// closedChildren are children of the handoff that have closed.
	closedChildren []protocol.ChildClosed
	// andItself also reconciles the handoff after its children are marked: its return was received
	// or never will be, or its chain has ended.
	andItself bool
	// wasStuck reports that the handoff was stuck when the last try read it: one try is enough
	// then.
	wasStuck bool
	// tellRelatives makes the notifier report the state to the handoffs that it concerns.
	tellRelatives bool
	// deadlock, if not nil, is a circle that the handoff is to be taken out of; the request does
	// nothing else.
	deadlock *lifecycle.Deadlock
	// checkPackage reconciles the handoff only if its package can be read.
	checkPackage bool
	// done is called once the request need not be repeated. It may be nil.
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

// afterCalls returns a function whose n-th call calls done, if that is not nil. A message that causes
// n requests is acknowledged by the last of them.
func afterCalls(n int32, done func()) func() {
	var left atomic.Int32
	left.Store(n)
	return func() {
		if left.Add(-1) == 0 && done != nil {
			done()
		}
	}
}

// enqueue passes a request to the loops. It blocks while all of them are busy.
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

// triesMax is the number of failures of a reconcile after which the handoff is stuck.
const triesMax = 5

// unansweredMax is the number of tries without an answer after which a request leaves its loop to
// others, if the engine answers them: 45 seconds and more.
const unansweredMax = 3

// errPanic reports a panic over a state, which would happen again.
var errPanic = errors.New("broken")

// reconcile repeats until it succeeds, or cannot succeed. It waits for an engine that does not
// answer.
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
			var lost *broker.BodyLostError
			if errors.As(err, &lost) { // a retry would not help
				s.recordStuck(ctx, r, lost, failures)
				return
			}
			if failures == triesMax || r.wasStuck || errors.Is(err, errPanic) || errors.Is(err, lifecycle.ErrUndecidable) || broker.Unreadable(err) { // a retry would not help
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

// engineAnswers reports whether the engine responds to a read of a ticket that does not exist.
func (s *Supervisor) engineAnswers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, reconcileTimeout)
	defer cancel()
	_, err := s.b.Head(ctx, uuid.Nil.String(), 0)
	return err == nil || !isUnanswered(err)
}

// reconcileTimeout bounds one try, so that a request without an answer does not block a loop for
// ever.
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
		case errors.Is(err, broker.ErrNotFound): // aged out, or not one of this ledger
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

// reconcileOpen appends the events that are due to an open handoff, and performs the duties of the
// new state.
func (s *Supervisor) reconcileOpen(ctx context.Context, head broker.Head, r *request) error {
	for {
		at, judge := time.Time{}, time.Time{}
		var deadlock time.Time
		next, appended, err := s.update(ctx, head, func(h broker.Head, q lifecycle.Query) (lifecycle.Step, error) {
			at, judge = q.Now, lifecycle.AbsenceKnownAt(h.State, q.Directory)
			if due := lifecycle.BreakerDue(h.State, q); !due.IsZero() {
				s.breakers.keep(h.State)
				judge = due
			}
			if deadlock = lifecycle.DeadlockDue(h.State, q.Directory); deadlock.After(q.Now) && (judge.IsZero() || deadlock.Before(judge)) {
				judge = deadlock
			}
			return lifecycle.Decide(h.State, q)
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
		if head.State.Closed {
			return s.reconcileClosed(ctx, head, r.childrenSwept)
		}
	}
}

// nextReconcile returns when to reconcile a handoff again that needs no event now. judge is when
// the directory will know whether a holder is gone.
func nextReconcile(s protocol.State, now, judge time.Time) time.Time {
	next := lifecycle.NextReconcile(s, now)
	if judge.After(now) && judge.Before(next) { // connected too recently to judge now
		return judge
	}
	return next
}

// wakeUpDelayMin keeps a wake-up that another clock has made due from firing in a circle.
const wakeUpDelayMin = 200 * time.Millisecond

// performDuties puts the offer, the wake-up and the relatives of a state in place. The wake-up does
// not depend on the others, because a handoff that cannot be offered still has a deadline.
func (s *Supervisor) performDuties(ctx context.Context, head broker.Head, now, next time.Time, r *request) error {
	duties := lifecycle.DutiesOf(head.State)
	duties.Children = duties.Children && !r.childrenSwept
	duties.Offer = duties.Offer && head.State.Offer != r.standing
	var source, lost error
	if r.checkPackage && !duties.Offer {
		lost = s.b.CheckPackage(ctx, head)
	}
	if duties.Source {
		source = s.b.EnsureSource(ctx, head)
	}
	_, shared := s.b.EnsureWorkspace(ctx, head)
	_, called := s.b.EnsureBids(ctx, head)
	limited := s.ensureKey(ctx, head)
	return errors.Join(s.publishOutbox(ctx, head, duties, now, next), lost, source, shared, called, limited, s.reconcileFamily(ctx, head, duties))
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

// reconcileClosed performs the remaining duties of a closed handoff: its return to its source, the
// submission of its children, the end of children to be cancelled. matched reports that its
// children were just checked.
func (s *Supervisor) reconcileClosed(ctx context.Context, head broker.Head, matched bool) error {
	head, _, err := s.update(ctx, head, func(h broker.Head, q lifecycle.Query) (lifecycle.Step, error) {
		return lifecycle.Decide(h.State, q)
	})
	if err != nil {
		return err
	}
	duties := lifecycle.DutiesOf(head.State)
	duties.Children = duties.Children && !matched
	var returned error
	if duties.Chain || duties.Return {
		returned = s.b.EnsureReturn(ctx, head)
	}
	_, shared := s.b.EnsureWorkspace(ctx, head)
	_, called := s.b.EnsureBids(ctx, head)
	err = errors.Join(returned, shared, called, s.reconcileFamily(ctx, head, duties))
	if err == nil {
		s.engine.Settled(head.Ticket, head.Seq)
	}
	return err
}

// update appends a decision about a handoff, and logs it.
func (s *Supervisor) update(ctx context.Context, head broker.Head, decide broker.Decider) (broker.Head, bool, error) {
	from := head.State.Phase
	head, appended, err := s.b.Update(ctx, head, decide)
	if after := head.State; err == nil && appended {
		s.log.Info("decided", "ticket", head.Ticket, "from", from, "to", after.Phase, "agent", after.Agent,
			"attempt", after.Attempt, "level", after.EscalationLevel, "closed", after.Closed, "reason", after.Reason, "seq", head.Seq)
	}
	return head, appended, err
}

// recordStuck records that a handoff cannot be reconciled. Its other wake-ups stay, because an
// operator may fix the cause. No entry can follow an unreadable head: that is only noted, and
// handoff doctor reports it.
func (s *Supervisor) recordStuck(ctx context.Context, r request, cause error, tries int) {
	level := slog.LevelError
	if r.wasStuck { // already logged
		level = slog.LevelDebug
	}
	s.log.Log(ctx, level, "reconcile failed; handoff is stuck", "ticket", r.ticket, "try", tries, "err", cause)
	ctx, cancel := context.WithTimeout(ctx, reconcileTimeout)
	defer cancel()
	head, err := s.b.Head(ctx, r.ticket, 0)
	if err == nil && head.State.StuckReason == "" && !head.State.Closed {
		_, _, err = s.b.Update(ctx, head, func(h broker.Head, q lifecycle.Query) (lifecycle.Step, error) {
			return lifecycle.RecordStuck(h.State, cause, q.Now)
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

// removeOffer takes an offer out of its queue that an append has ended, according to its writer.
// That is a hint: an offer that the handoff still needs stays. If the engine does not answer, the
// announcement is delivered again; a refused removal is left to the next sweep, and does not make
// the handoff stuck.
func (s *Supervisor) removeOffer(ctx context.Context, r request) {
	ctx, cancel := context.WithTimeout(ctx, reconcileTimeout)
	defer cancel()
	gone, err := s.hasEnded(ctx, *r.endedOffer)
	if err == nil && gone {
		err = s.engine.RemoveOffer(ctx, *r.endedOffer)
	}
	switch {
	case err == nil:
		r.finish()
	case isUnanswered(err), ctx.Err() != nil:
		s.log.Warn("engine does not answer; ended offer stays until the next delivery", "ticket", r.ticket, "agent", r.endedOffer.Agent, "err", err)
	default:
		s.log.Warn("ended offer not removed from the queue", "ticket", r.ticket, "agent", r.endedOffer.Agent, "err", err)
		r.finish()
	}
}

// offersSweptMax is the number of open offers up to which a regular sweep lists the queues.
const offersSweptMax = 100_000

// removeEnded removes the offers that no handoff needs from all queues: their writers announced no
// end, or died before the queue had the offer. called has the offers that the sweep found to be
// needed, end the place up to which it read. Before an offer is removed, its head is read from the
// leader.
func (s *Supervisor) removeEnded(ctx context.Context, called []uint64, end broker.Cursor) (removed int) {
	slices.Sort(called)
	var ended []broker.OfferKey
	err := s.engine.Offers(ctx, "", func(key broker.OfferKey) error {
		if _, found := slices.BinarySearch(called, key.Sequence); !found && end.Passed(key.Sequence) {
			ended = append(ended, key)
		}
		return ctx.Err()
	})
	for _, key := range ended {
		if err != nil {
			break
		}
		var gone bool
		if gone, err = s.hasEnded(ctx, key); err == nil && gone {
			if err = s.engine.RemoveOffer(ctx, key); err == nil {
				removed++
			}
		}
	}
	switch {
	case ctx.Err() != nil:
	case err != nil:
		s.log.Warn("ended offers not removed; the next sweep tries again", "removed", removed, "err", err)
	case removed > 0:
		s.log.Info("removed ended offers from the queues", "offers", removed)
	}
	return removed
}

// hasEnded reports whether a handoff no longer needs an offer. If the ledger does not have the
// handoff, or not its entry of the offer, the offer stays: the ledger may have lost its end. The
// offer also stays if the head cannot be read.
func (s *Supervisor) hasEnded(ctx context.Context, key broker.OfferKey) (bool, error) {
	head, err := s.b.Head(ctx, key.Ticket, 0)
	if errors.Is(err, broker.ErrNotFound) || broker.Unreadable(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	state := head.State
	current := lifecycle.OfferStands(state) && state.Offer == key.Sequence && state.Agent == key.Agent
	return !current && head.Seq >= key.Sequence, nil
}

const (
	// unreadableMax bounds the handoffs with an unreadable head that are remembered.
	unreadableMax = 100_000
	// unreadableLogged bounds the handoffs that the log names, each once. handoff doctor names the
	// others.
	unreadableLogged = 100
)

// unreadable has the handoffs whose head cannot be read. They are stuck: the supervisor reads and
// skips them until another entry follows.
type unreadable struct {
	mu       sync.Mutex
	seqs     map[string]uint64 // of the head, by ticket
	reported int
}

// noteUnreadable records that an entry cannot be read.
func (s *Supervisor) noteUnreadable(ticket string, seq uint64, err error) {
	u := &s.unreadable
	u.mu.Lock()
	known, there := u.seqs[ticket]
	if there && known >= seq {
		u.mu.Unlock()
		return
	}
	if there || len(u.seqs) < unreadableMax {
		if u.seqs == nil {
			u.seqs = map[string]uint64{}
		}
		u.seqs[ticket] = seq
	}
	u.reported++
	said, n := u.reported, len(u.seqs)
	u.mu.Unlock()
	s.cfg.Watch.Unreadable(n)
	switch {
	case said < unreadableLogged:
		s.log.Error("handoff is stuck: its entry cannot be read", "ticket", ticket, "seq", seq, "err", err)
	case said == unreadableLogged:
		s.log.Error("handoff is stuck: its entry cannot be read; further ones are not logged, the doctor counts them", "ticket", ticket, "seq", seq, "err", err)
	}
}

// noteReadable records that the head of a handoff can be read.
func (s *Supervisor) noteReadable(ticket string, seq uint64) {
	u := &s.unreadable
	u.mu.Lock()
	known, there := u.seqs[ticket]
	if there && seq > known {
		delete(u.seqs, ticket)
	}
	n := len(u.seqs)
	u.mu.Unlock()
	if there && seq > known {
		s.cfg.Watch.Unreadable(n)
	}
}

// headOf decodes the head of a handoff from an entry that a sweep has read.
func (s *Supervisor) headOf(e broker.Entry) (broker.Head, bool) {
	head, err := broker.HeadOf(e)
	if err != nil {
		s.noteUnreadable(e.Ticket, e.Seq, err)
		return head, false
	}
	s.noteReadable(e.Ticket, e.Seq)
	return head, true
}

// recoverPanic converts a panic over one handoff into an error of that handoff. Entries are checked
// when they are read, so a panic is a bug, and is logged as one.
func (s *Supervisor) recoverPanic(ticket string, do func() error) (err error) {
	defer func() {
		if broken := recover(); broken != nil {
			s.log.Error("panic over a handoff: this is a bug", "ticket", ticket, "panic", broken, "stack", string(debug.Stack()))
			err = fmt.Errorf("%w about %s: %v", errPanic, ticket, broken)
		}
	}()
	return do()
}
