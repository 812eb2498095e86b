package lifecycle

import (
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// Deadline is when the time of a handoff is over: its own deadline, and after that
// the end of the time in which an authority may intervene. It is never later than the
// longest deadline that a package may ask for. No gateway checks a state that a worker in
// another language wrote: one without a deadline, or with one in ten years, would stay
// open for longer than the ledger keeps it.
func Deadline(s p.State) time.Time {
	at := s.Deadline
	if !s.OverdueSince.IsZero() {
		at = s.OverdueSince.Add(millis(s.Policy.InterventionTimeoutMS))
	}
	if s.SubmittedAt.IsZero() {
		return at
	}
	latest := latestDeadline(s)
	if at.IsZero() || at.After(latest) {
		return latest
	}
	return at
}

// DeadlinePassed tells whether the deadline has ended a handoff, or passed it up: no
// earlier holder has it any more.
func DeadlinePassed(s p.State) bool {
	return !s.OverdueSince.IsZero() || s.Closed && s.Reason == ReasonDeadline
}

// latestDeadline is when a handoff closes whatever its state says.
func latestDeadline(s p.State) time.Time { return s.SubmittedAt.Add(millis(p.DeadlineMaxMS)) }

// mayBeDeadline refuses a new deadline that has passed, or is later than any may be.
func mayBeDeadline(s p.State, deadline, now time.Time) error {
	switch latest := latestDeadline(s); {
	case deadline.IsZero():
	case !deadline.After(now):
		return p.Errorf(p.CodeInvalid, "deadline", "%s has passed already", deadline.UTC().Format(time.RFC3339))
	case deadline.After(latest):
		return p.Errorf(p.CodeTooLarge, "deadline", "%s is too late; %s, 90 days after the submission, is the latest",
			deadline.UTC().Format(time.RFC3339), latest.UTC().Format(time.RFC3339))
	}
	return nil
}

// stepDeadline follows the deadline. It is escalated, and stands
// at the authority as overdue; once the time to intervene is over too, or where the
// policy says so, it closes.
func stepDeadline(s p.State, d *Directory, meta p.Meta) []p.Event {
	why := because(ReasonDeadline, s)
	if s.Aggregate != nil {
		return []p.Event{closeUnfinished(s, meta, why)}
	}
	if s.Policy.OnDeadline != p.DeadlineClose && !hasPassed(meta.At, Deadline(s)) {
		if s.Agent == p.Human && !contains(s.Refused, p.Human) {
			return []p.Event{offer(s, d, meta, p.Human, OfferOverdue, nil)}
		}
		if _, _, ok := nextAuthority(s, d); ok {
			return escalate(s, d, meta, why)
		}
	}
	return []p.Event{closed(meta, p.OutcomeTimeout, why, p.Human)}
}
