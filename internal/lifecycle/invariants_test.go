package lifecycle

import (
	"errors"
	"slices"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// The bounds of what the policies of a world allow.
const (
	attemptsMax   = 3
	reroutesMax   = 3
	levelsMax     = 3
	conditionsMax = 5
)

// check holds a state against what must be true of every one.
func (w *world) check(h *thread, before p.State) {
	if err := CheckFollows(before, h.state, w.now); err != nil {
		w.fail(h, "%v", err)
	}
	if !w.wild {
		if err := errors.Join(CheckEnd(before, h.state), CheckGate(h.state)); err != nil {
			w.fail(h, "%v", err)
		}
		w.checkBounds(h)
	}
	if err := CheckRead(h.state.Ticket, w.seq, &h.state); err != nil {
		w.fail(h, "what was written may not be read: %v", err)
	}
	w.checkAttention(h)
	if w.seen != nil {
		w.seen(h)
	}
}

// checkBounds: what Decide and the fences keep within the policy.
func (w *world) checkBounds(h *thread) {
	s := h.state
	levels, escalations := levelsMax, p.EscalationsTotalMax
	if len(s.Deciders) > 0 {
		levels, escalations = levels+p.DecidersMax, escalations+p.DecidersMax
	}
	switch {
	case s.Attempt > attemptsMax:
		w.fail(h, "attempt %d of %d", s.Attempt, s.Policy.MaxAttempts)
	case s.Reroutes > reroutesMax, s.EscalationLevel > levels, s.Escalations > escalations:
		w.fail(h, "%d reroutes, %d levels, %d escalations", s.Reroutes, s.EscalationLevel, s.Escalations)
	case s.Phase == p.Pending && slices.Contains(s.Refused, s.Agent):
		w.fail(h, "offered to %s, which refused", s.Agent)
	case s.Denied != "" && !s.Closed && s.Phase == p.Pending && !slices.Contains(s.Deciders, s.Agent):
		w.fail(h, "denied by %s, and %s has it", s.Denied, s.Agent)
	case s.ConditionRounds > conditionsMax+1: // the one over it escalates
		w.fail(h, "%d rounds of conditions", s.ConditionRounds)
	case s.ReturnTimeouts > attemptsMax+levels+1:
		w.fail(h, "%d return timeouts", s.ReturnTimeouts)
	}
}

// owes tells whether a closed handoff owes something that can be paid: a source
// that is no agent reads its return by ticket, whenever it likes.
func owes(s p.State) bool {
	return HasPendingDuties(s) && (s.Source != "outsider" && s.Source != "handoff" || cancelsChildren(s))
}

// checkReconciled: after a reconcile no clock has run out that the handoff still lives
// under, and nothing is left to be decided.
func (w *world) checkReconciled(h *thread) {
	s := h.state
	past := func(at time.Time, ms int64) bool { return ms > 0 && hasPassed(w.now, at.Add(millis(ms))) }
	held := s.Fence != 0 && !s.Closed && !s.CancelRequested
	undecided := ""
	switch {
	case s.Closed:
	case hasPassed(w.now, Deadline(s)):
		undecided = "the deadline"
	case s.CancelRequested && !s.Held(), s.CancelRequested && past(s.CancelRequestedAt, s.Policy.CancelGraceMS):
		undecided = "a cancel"
	case s.CancelRequested:
	case returnClock(s) && hasPassed(w.now, returnDue(s)) && (!w.wild || s.Phase != p.PhaseTimeout):
		undecided = "the return's clock"
	case held && hasPassed(w.now, workDue(s)):
		undecided = "the work's clock"
	case held && hasPassed(w.now, ReminderAt(s)):
		undecided = "a reminder"
	case held && past(progressSince(s), s.Policy.ProgressTimeoutMS):
		undecided = "the clock of progress"
	case hasPassed(w.now, ClaimDue(s)):
		undecided = "a claim that was not acknowledged in time"
	case s.Phase == p.Conditional && s.Conditions != nil && past(s.ConditionedAt, s.Policy.ConditionTimeoutMS):
		undecided = "a question"
	case s.Phase == p.Retrying && hasPassed(w.now, s.RetryAt) && BreakerDue(s, w.d.At(w.now)).IsZero():
		undecided = "a retry"
	case isSuspended(s) && s.Children.Awaited.Without(s.Children.Closed) == "":
		undecided = "the end of its children"
	case s.Phase == p.PhaseFailed, s.Phase == p.PhaseTimeout && !w.wild, s.Phase == p.PhaseRejected && s.Policy.OnNoTaker != p.NoTakerQueue:
		undecided = "what follows"
	case s.Offer == 0 && s.Agent != "" && s.Phase != p.AwaitingApproval:
		undecided = "the offer"
	case s.Aggregate != nil && s.Aggregate.Mode == p.AggregateAny && s.Aggregate.Counted == "" && s.Children.Succeeded != "":
		undecided = "the group"
	}
	if undecided != "" {
		w.fail(h, "reconciled, and %s is undecided", undecided)
	}
}
