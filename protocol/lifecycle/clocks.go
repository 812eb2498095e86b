package lifecycle

import (
	"cmp"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// routableSince is since when an agent is looked for, of a handoff without an offer: its
// submission, or the completion of the source that it awaited.
func routableSince(s p.State) time.Time {
	if s.AwaitsSource {
		return s.UpdatedAt
	}
	return s.SubmittedAt
}

// progressSince is the last sign of progress of the attempt under way.
func progressSince(s p.State) time.Time {
	if s.ProgressAt.After(s.AcceptedAt) {
		return s.ProgressAt
	}
	return s.AcceptedAt
}

// isClaimed tells whether a holder has claimed the handoff and not acknowledged it.
func isClaimed(s p.State) bool { return s.Phase == p.Pending && s.Held() }

// ClaimTimeout is how long a claim may stand without an acknowledgement: what the
// claim asked for, else the acknowledge timeout. A person has the longest that a
// claim may ask for.
func ClaimTimeout(s p.State) time.Duration {
	switch {
	case s.AckWithinMS > 0:
		return millis(min(s.AckWithinMS, p.AckWithinMaxMS))
	case s.Agent == p.Human:
		return millis(p.AckWithinMaxMS)
	}
	return millis(s.Policy.AckTimeoutMS)
}

// ClaimDue is when a claim lapses that is not acknowledged by then; zero where the
// handoff is not merely claimed.
func ClaimDue(s p.State) time.Time {
	if !isClaimed(s) {
		return time.Time{}
	}
	return s.ClaimedAt.Add(ClaimTimeout(s))
}

// queueSince is when the queue's clock of the current agent began: with its offer,
// or with the first one where mere claims came between.
func queueSince(s p.State) time.Time {
	if s.QueuedSince.IsZero() {
		return s.OfferedAt
	}
	return s.QueuedSince
}

// queueDue is when the queue's clock runs out; zero where there is none. A person
// has no queue clock.
func queueDue(s p.State) time.Time {
	waits := s.Phase == p.Pending && s.Offer != 0 && s.Aggregate == nil && s.Agent != p.Human
	if !waits || s.Policy.QueueTimeoutMS <= 0 {
		return time.Time{}
	}
	return queueSince(s).Add(millis(s.Policy.QueueTimeoutMS))
}

// Limit is when the first clock runs out that takes a handoff from its holder, and which
// one. It is zero where it has none. The clock of progress, which the holder itself sets
// anew, is not among them.
func Limit(s p.State) (at time.Time, clock p.Clock) {
	if !s.Held() || s.Closed {
		return at, clock
	}
	consider := func(due time.Time, of p.Clock) {
		if !due.IsZero() && (at.IsZero() || due.Before(at)) {
			at, clock = due, of
		}
	}
	consider(Deadline(s), p.ClockDeadline)
	if returnClock(s) {
		consider(returnDue(s), p.ClockReturn)
	}
	consider(workDue(s), p.ClockWork)
	consider(queueDue(s), p.ClockQueue)
	consider(ClaimDue(s), p.ClockAcknowledge)
	return at, clock
}

// workDue is when the work's clock runs out; zero where it does not run.
func workDue(s p.State) time.Time {
	switch {
	case s.Phase != p.PhaseAccepted && s.Phase != p.Working || s.Policy.WorkTimeoutMS <= 0:
		return time.Time{}
	case !s.ExtendedUntil.IsZero():
		return s.ExtendedUntil
	}
	return s.AcceptedAt.Add(millis(s.Policy.WorkTimeoutMS))
}

// ReminderAt is when a holder is reminded of its limit: when most of the time is
// used up that it has had since the acceptance, or since its extension. Zero is never.
func ReminderAt(s p.State) time.Time {
	limit, _ := Limit(s)
	since := s.AcceptedAt
	if s.ExtendedAt.After(since) {
		since = s.ExtendedAt
	}
	if s.Fence == 0 || !s.RemindedAt.IsZero() || s.Policy.ReminderPercent <= 0 || !limit.After(since) {
		return time.Time{}
	}
	return since.Add(limit.Sub(since) / 100 * time.Duration(s.Policy.ReminderPercent))
}

// returnClock tells whether the return's clock runs, of what expects one or goes on with a chain
// that does: not beyond the deadline, nor
// while something else that ran out or failed is yet to be decided.
func returnClock(s p.State) bool {
	undecided := s.Phase == p.PhaseTimeout || s.Phase == p.PhaseFailed
	return s.Policy.ReturnTimeoutMS > 0 && !s.ReturnSince.IsZero() && s.OverdueSince.IsZero() && !undecided
}

func returnDue(s p.State) time.Time {
	return s.ReturnSince.Add(millis(cmp.Or(s.ReturnMS, s.Policy.ReturnTimeoutMS)))
}

// holderLost tells whether the holder is gone, as far as this observer may
// judge: it must itself have been connected for one lease.
func holderLost(s p.State, d *Directory, now time.Time) bool {
	if !s.Held() || d.Present(s.Holder) {
		return false
	}
	return connectedFor(d, now, millis(s.LeaseMS))
}

// absent tells whether the agent has been without a worker, and has not polled,
// for the acknowledge timeout. A person is never absent, a paused agent is paused
// on purpose.
func absent(s p.State, d *Directory, now time.Time) bool {
	if s.Agent == p.Human || d == nil {
		return false
	}
	if profile, _ := d.Agent(s.Agent); profile.Paused {
		return false
	}
	if d.Attended(s.Agent) {
		return false
	}
	timeout := AckTimeout(s)
	since := s.OfferedAt
	if last := d.LastPresent[s.Agent]; last.After(since) {
		since = last
	}
	return hasPassed(now, since.Add(timeout)) && connectedFor(d, now, absenceGrace(s))
}

// absenceGrace is how long an observer must have been connected before it calls
// an agent absent: workers come back with the engine.
func absenceGrace(s p.State) time.Duration {
	return min(AckTimeout(s), millis(p.LeaseDefaultMS))
}

// AckTimeout is how long an offer stands while its agent is neither served nor polling.
// An agent that has begun this handoff already gets twice the time: its worker crashed, and is more
// likely than not being started again.
func AckTimeout(s p.State) time.Duration {
	timeout := millis(s.Policy.AckTimeoutMS)
	if s.Attempt > 0 {
		timeout *= 2
	}
	return timeout
}

func connectedFor(d *Directory, now time.Time, span time.Duration) bool {
	return d != nil && !d.ConnectedSince.IsZero() && now.Sub(d.ConnectedSince) >= span
}

// hasPassed tells whether an instant has come. The zero instant never does.
func hasPassed(now, at time.Time) bool { return !at.IsZero() && !now.Before(at) }

func millis(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }
