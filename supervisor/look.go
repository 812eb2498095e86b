package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// look is a reason to look at a handoff.
type look struct {
	ticket string
	// onlyAt, if not 0, drops the look when the head is another by now: then
	// another event follows, and is a reason of its own.
	onlyAt uint64
	// head, if its Seq is not 0, is where the handoff was just seen.
	head broker.Head
	// matched says that whoever looks sees to its children by itself: a pass.
	matched bool
	// ended, if not nil, is an offer to be taken out of its queue, and nothing else is
	// to be done.
	ended *broker.OfferKey
	// ends are children of the handoff that have closed.
	ends []protocol.ChildClosed
	// wasStuck says that the handoff was stuck when the last try read it: one try is
	// enough then.
	wasStuck bool
	// done is called when the look needs no repetition. It may be nil.
	done func()
}

func (l look) finish() {
	if l.done != nil {
		l.done()
	}
}

// enqueue hands a look to the loops; it blocks while all of them are busy.
func (s *Supervisor) enqueue(ctx context.Context, l look) {
	select {
	case s.looks <- l:
	case <-ctx.Done():
	}
}

func (s *Supervisor) lookLoop(ctx context.Context, trying *since) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case l := <-s.looks:
			if l.ended != nil {
				s.removeOffer(ctx, l)
			} else {
				s.look(ctx, l, trying)
			}
		}
	}
}

// triesMax is how often a look that fails for a reason of its own is repeated
// before the handoff is called stuck.
const triesMax = 5

// silentMax is how many tries in a row may have no answer of the engine, while it
// answers others, before a look leaves its loop to them: 45 seconds and more.
const silentMax = 3

// errBroken is a panic over a handoff: the core chokes on its state, and always will.
var errBroken = errors.New("broken")

// look repeats until it has succeeded, or never can. An engine that does not
// answer is waited for, and is nobody's fault.
func (s *Supervisor) look(ctx context.Context, l look, trying *since) {
	wait := backoff.NewExponentialBackOff(backoff.WithInitialInterval(20*time.Millisecond),
		backoff.WithMaxInterval(2*time.Second), backoff.WithMaxElapsedTime(0))
	for failures, silent := 0, 0; ; {
		trying.begin()
		err := s.guard(l.ticket, func() error { return s.lookOnce(ctx, &l) })
		trying.end()
		if ctx.Err() == nil {
			s.cfg.Watch.Looked(err)
		}
		switch {
		case err == nil:
			l.finish()
			return
		case ctx.Err() != nil:
			return
		case notAnswering(err):
			s.log.Warn("engine does not answer; waiting", "ticket", l.ticket, "err", err)
			if silent++; silent >= silentMax && s.answers(ctx) {
				s.log.Error("look given up until the next pass: the engine answers others", "ticket", l.ticket, "err", err)
				l.finish()
				return
			}
		default:
			failures++
			if failures == triesMax || l.wasStuck || errors.Is(err, errBroken) || broker.Unreadable(err) { // to try again helps nothing
				s.stuck(ctx, l, err, failures)
				return
			}
			s.log.Error("look failed", "ticket", l.ticket, "try", failures, "err", err)
		}
		l.head = broker.Head{}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait.NextBackOff()):
		}
	}
}

// answers tells whether the engine answers a question about a handoff that is none.
func (s *Supervisor) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	_, err := s.b.Head(ctx, uuid.Nil.String(), 0)
	return err == nil || !notAnswering(err)
}

// lookTimeout bounds one try, so that a loop is never lost to a request
// without an answer.
const lookTimeout = 15 * time.Second

func (s *Supervisor) lookOnce(ctx context.Context, l *look) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	head := l.head
	if head.Seq == 0 {
		var err error
		head, err = s.b.Head(ctx, l.ticket, 0)
		if errors.Is(err, broker.ErrNotFound) { // aged out, or a foreign ticket
			return nil
		}
		if err != nil {
			return err
		}
	}
	s.readable(head.Ticket, head.Seq)
	if l.onlyAt != 0 && head.Seq != l.onlyAt {
		return nil
	}
	l.wasStuck = head.State.StuckReason != ""
	if len(l.ends) > 0 {
		return s.mark(ctx, head, l.ends)
	}
	if head.State.Closed {
		return s.afterEndOf(ctx, head, l.matched)
	}
	at, judge := time.Time{}, time.Time{}
	before := head
	head, appended, err := s.b.UpdateFrom(ctx, head, func(h broker.Head, d *lifecycle.Directory, now time.Time) ([]protocol.Event, error) {
		at, judge = now, lifecycle.JudgeAt(h.State, d)
		return decide(h.State, d, now)
	})
	if err != nil {
		return err
	}
	if appended {
		s.logDecision(before.State, head)
		// What was appended is followed like any other event: its duties are
		// seen to then, if it is still the head.
		return nil
	}
	return s.duties(ctx, head, at, nextLook(head.State, at, judge), l.matched)
}

// nextLook is when a handoff at which a look has just found nothing to decide is
// looked at again. judge is when more can be said of who is gone.
func nextLook(s protocol.State, now, judge time.Time) time.Time {
	next := lifecycle.NextLook(s, now)
	if judge.After(now) && judge.Before(next) { // we came back too lately to say more now
		return judge
	}
	return next
}

// decide asks the core. A state that it chokes on (it panics rather than append
// what does not apply) makes one handoff stuck; it must not take down every
// supervisor that comes by.
func decide(s protocol.State, d *lifecycle.Directory, now time.Time) (events []protocol.Event, err error) {
	defer func() {
		if broken := recover(); broken != nil {
			events, err = nil, fmt.Errorf("decide about %s: %w: %v", s.Ticket, errBroken, broken)
		}
	}()
	return lifecycle.Decide(s, d, now), nil
}

// armMin keeps a wake-up that has come, by a clock other than ours, from
// firing in a circle.
const armMin = 200 * time.Millisecond

// duties makes sure that what the state calls for stands outside. The wake-up
// does not depend on the rest: what cannot be offered has a deadline all the same.
func (s *Supervisor) duties(ctx context.Context, head broker.Head, now, next time.Time, matched bool) error {
	duties := lifecycle.DutiesOf(head.State)
	duties.Children = duties.Children && !matched
	var source error
	if duties.Source {
		source = s.b.EnsureSource(ctx, head)
	}
	return errors.Join(s.hints(ctx, head, duties, now, next), source, s.family(ctx, head, duties))
}

// hints are the offer and the wake-up.
func (s *Supervisor) hints(ctx context.Context, head broker.Head, duties lifecycle.Duties, now, next time.Time) error {
	var offered error
	if duties.Offer {
		offered = s.b.EnsureOffer(ctx, head)
	}
	if soonest := now.Add(armMin); next.Before(soonest) {
		next = soonest
	}
	return errors.Join(offered, s.b.Arm(ctx, head.Ticket, head.Seq, next))
}

// afterEnd does what a closed handoff still owes: its return to its source,
// the submission of what it handed off, the end of what it shall not leave behind.
func (s *Supervisor) afterEnd(ctx context.Context, head broker.Head) error {
	return s.afterEndOf(ctx, head, false)
}

func (s *Supervisor) afterEndOf(ctx context.Context, head broker.Head, matched bool) error {
	before := head.State
	head, appended, err := s.b.UpdateFrom(ctx, head, func(h broker.Head, d *lifecycle.Directory, now time.Time) ([]protocol.Event, error) {
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
	if duties.Return {
		returned = s.b.EnsureReturn(ctx, head)
	}
	return errors.Join(returned, s.family(ctx, head, duties))
}

func (s *Supervisor) logDecision(before protocol.State, head broker.Head) {
	after := head.State
	s.log.Info("decided", "ticket", head.Ticket, "from", before.Phase, "to", after.Phase, "agent", after.Agent,
		"attempt", after.Attempt, "level", after.EscalationLevel, "closed", after.Closed, "reason", after.Reason, "seq", head.Seq)
}

// stuck records that a handoff cannot be looked at. Its other reasons to look
// stay: an operator may mend what was wrong. Nothing can follow a head that cannot be
// read: that is noted here, and doctor tells it.
func (s *Supervisor) stuck(ctx context.Context, l look, cause error, tries int) {
	level := slog.LevelError
	if l.wasStuck { // which was logged
		level = slog.LevelDebug
	}
	s.log.Log(ctx, level, "look failed; the handoff is stuck", "ticket", l.ticket, "try", tries, "err", cause)
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	head, err := s.b.Head(ctx, l.ticket, 0)
	if err == nil && head.State.StuckReason == "" && !head.State.Closed {
		_, _, err = s.b.UpdateFrom(ctx, head, func(h broker.Head, _ *lifecycle.Directory, now time.Time) ([]protocol.Event, error) {
			if h.State.Closed {
				return nil, nil
			}
			return []protocol.Event{&protocol.Stuck{Meta: protocol.Meta{At: now, By: lifecycle.By}, Reason: cause.Error()}}, nil
		})
	}
	var unread *broker.UnreadableError
	switch {
	case errors.As(err, &unread):
		s.unread(unread.Ticket, unread.Seq, unread)
	case err != nil:
		s.log.Error("could not record that a handoff is stuck", "ticket", l.ticket, "err", err)
	}
	l.finish()
}
