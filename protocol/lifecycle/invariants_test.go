package lifecycle

import (
	"reflect"
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
	s := h.state
	held := s.Phase == p.PhaseAccepted || s.Phase == p.Working
	switch {
	case s.Closed && (s.Outcome == "" || s.ClosedAt.IsZero() || s.Held() || s.Reason == "" && !s.ReturnedAt.After(s.ClosedAt) && s.Phase != p.Complete && s.Phase != p.PhaseReturned):
		w.fail(h, "closed without an outcome, an instant or a reason, or in somebody's hands")
	case s.Closed && closedPhase[s.Outcome] != s.Phase && (s.Phase != p.PhaseReturned || s.ReturnedAt.IsZero()):
		w.fail(h, "closed as %s in %s", s.Outcome, s.Phase)
	case !s.Closed && (s.Outcome != "" || s.Phase == p.Complete || s.Phase == p.Cancelled || s.Phase == p.PhaseReturned):
		w.fail(h, "open in %s with outcome %q", s.Phase, s.Outcome)
	case !s.Closed && (s.ReturnTicket != "" || !s.ReturnedAt.IsZero() || s.RedrivenAs != "" || s.Inbox != ""):
		w.fail(h, "open, and its end is spoken of")
	case held != (s.Fence != 0), held && !s.Held(), s.Held() && !held && s.Phase != p.Pending:
		w.fail(h, "held by %q with fence %d in %s", s.Holder, s.Fence, s.Phase)
	case s.UpdatedAt.Before(before.UpdatedAt):
		w.fail(h, "went back in time")
	case s.Attempt < 0 || s.AttemptsTotal < s.Attempt || held && s.Attempt < 1:
		w.fail(h, "attempt %d of %d in all", s.Attempt, s.AttemptsTotal)
	case s.EscalationLevel != len(s.Chain):
		w.fail(h, "level %d, chain %s", s.EscalationLevel, s.Chain)
	case s.Aggregate != nil && (s.Held() || s.Agent != "" || s.Offer != 0 || s.AttemptsTotal != 0):
		w.fail(h, "a group with agent %q, holder %q, offer %d", s.Agent, s.Holder, s.Offer)
	case s.Children != nil && (s.Children.Closed.Without(s.Children.Made) != "" || s.Children.Succeeded.Without(s.Children.Closed) != "" ||
		s.Children.Awaited.Without(s.Children.Made) != "" || s.Children.Made.Len() > s.Children.Count):
		w.fail(h, "children %+v", *s.Children)
	case s.Children != nil && s.Children.Awaited != "" && s.Phase != p.Conditional:
		w.fail(h, "waits for children in %s", s.Phase)
	case len(s.LateFences) > p.LateResultsMax || slices.Contains(s.LateFences, s.Fence) && s.Fence != 0:
		w.fail(h, "late results of %d, fence %d", s.LateFences, s.Fence)
	}
	if s.Closed {
		w.checkClosed(h)
	} else {
		w.checkOpen(h)
	}
	if !w.wild {
		w.checkBounds(h)
	}
}

// checkAfter: once closed, nothing changes but what is told of the end.
func (w *world) checkAfter(h *thread, before, after p.State) {
	if after.Phase != before.Phase && after.Phase != p.PhaseReturned {
		w.fail(h, "went from %s to %s after it closed", before.Phase, after.Phase)
	}
	if b, a := before.Children, after.Children; b != nil && a != nil &&
		(a.Made != b.Made || a.Count != b.Count || a.Awaited != b.Awaited || b.Closed.Without(a.Closed) != "" || b.Succeeded.Without(a.Succeeded) != "") {
		w.fail(h, "children %+v became %+v after it closed", *b, *a)
	}
	for _, s := range []*p.State{&before, &after} {
		s.Phase, s.Children, s.UpdatedAt, s.Inbox, s.RedrivenAs = "", nil, p.Time{}, "", ""
		s.ReturnTicket, s.ReturnedAt = "", p.Time{}
		s.LateFences, s.LateSeq, s.LateStatus, s.LateTokens = nil, 0, "", 0
	}
	if !reflect.DeepEqual(before, after) {
		w.fail(h, "changed after it closed:\n%s\n%s", w.json(h, before), w.json(h, after))
	}
}

// checkClosed: a closed handoff wakes nobody and stands in no queue, and owes
// what it can pay.
func (w *world) checkClosed(h *thread) {
	s := h.state
	duties := DutiesOf(s)
	switch {
	case duties.Offer || duties.Look || !Wake(s).IsZero() || !NextLook(s, w.now).IsZero():
		w.fail(h, "closed, with duties %+v", duties)
	case duties.Return && !s.ReturnedAt.IsZero(), (duties.Return || duties.CancelChildren) && !Owes(s):
		w.fail(h, "closed, owes %t, with duties %+v", Owes(s), duties)
	case duties.CancelChildren && !duties.Mark:
		w.fail(h, "children are cancelled, and their ends not recorded")
	}
}

// checkOpen: every open handoff has what brings it on, and in time.
func (w *world) checkOpen(h *thread) {
	s := h.state
	next, clock := NextLook(s, w.now), wakeAfter(s, w.now)
	duties := DutiesOf(s)
	switch {
	case !duties.Look || !next.After(w.now):
		w.fail(h, "open, and never looked at again")
	case !clock.IsZero() && next.After(clock):
		w.fail(h, "next looked at %s after a clock runs out", next.Sub(clock))
	case duties.Offer != (s.Phase == p.Pending && !s.Held() && s.Offer != 0), duties.Return:
		w.fail(h, "duties %+v in %s", duties, s.Phase)
	case (s.Aggregate != nil || awaits(s)) && !duties.Mark:
		w.fail(h, "waits for children, and nobody records their ends")
	case s.Deadline.After(w.now) && next.After(s.Deadline):
		w.fail(h, "next looked at %s after the deadline", next.Sub(s.Deadline))
	case Wake(s).IsZero():
		w.fail(h, "open, and never wakes")
	}
}

// checkBounds: what Decide and the fences keep within the policy.
func (w *world) checkBounds(h *thread) {
	s := h.state
	switch {
	case s.Attempt > attemptsMax:
		w.fail(h, "attempt %d of %d", s.Attempt, s.Policy.MaxAttempts)
	case s.Reroutes > reroutesMax, s.EscalationLevel > levelsMax, s.Escalations > p.EscalationsTotalMax:
		w.fail(h, "%d reroutes, %d levels, %d escalations", s.Reroutes, s.EscalationLevel, s.Escalations)
	case s.Phase == p.Pending && slices.Contains(s.Refused, s.Agent):
		w.fail(h, "offered to %s, which refused", s.Agent)
	case s.ConditionRounds > conditionsMax+1: // the one over it escalates
		w.fail(h, "%d rounds of conditions", s.ConditionRounds)
	case s.ReturnTimeouts > attemptsMax+levelsMax+1:
		w.fail(h, "%d return timeouts", s.ReturnTimeouts)
	}
}

// owes tells whether a closed handoff owes something that can be paid: a source
// that is no agent reads its return by ticket, whenever it likes.
func owes(s p.State) bool {
	return Owes(s) && (s.Source != "outsider" && s.Source != "handoff" || cancelsChildren(s))
}

// checkLooked: after a look no clock has run out that the handoff still lives
// under, and nothing is left to be decided.
func (w *world) checkLooked(h *thread) {
	s := h.state
	past := func(at time.Time, ms int64) bool { return ms > 0 && due(w.now, at.Add(millis(ms))) }
	held := s.Fence != 0 && !s.Closed && !s.CancelRequested
	undecided := ""
	switch {
	case s.Closed:
	case due(w.now, s.Deadline):
		undecided = "the deadline"
	case s.CancelRequested && !s.Held(), s.CancelRequested && past(s.CancelRequestedAt, s.Policy.CancelGraceMS):
		undecided = "a cancel"
	case s.CancelRequested:
	case returnClock(s) && past(s.ReturnSince, s.Policy.ReturnTimeoutMS) && (!w.wild || s.Phase != p.PhaseTimeout):
		undecided = "the return's clock"
	case held && past(s.AcceptedAt, s.Policy.WorkTimeoutMS):
		undecided = "the work's clock"
	case held && past(progressSince(s), s.Policy.ProgressTimeoutMS):
		undecided = "the clock of progress"
	case s.Phase == p.Conditional && s.Conditions != nil && past(s.ConditionedAt, s.Policy.ConditionTimeoutMS):
		undecided = "a question"
	case s.Phase == p.Retrying && due(w.now, s.RetryAt):
		undecided = "a retry"
	case awaits(s) && s.Children.Awaited.Without(s.Children.Closed) == "":
		undecided = "the end of its children"
	case s.Phase == p.PhaseFailed, s.Phase == p.PhaseTimeout && !w.wild, s.Phase == p.PhaseRejected && s.Policy.OnNoTaker != p.NoTakerQueue:
		undecided = "what follows"
	case s.Offer == 0 && s.Agent != "" && s.Phase != p.AwaitingApproval:
		undecided = "the offer"
	case s.Aggregate != nil && s.Aggregate.Mode == p.AggregateAny && s.Aggregate.Counted == "" && s.Children.Succeeded != "":
		undecided = "the group"
	}
	if undecided != "" {
		w.fail(h, "looked at, and %s is undecided", undecided)
	}
}
