package lifecycle

import (
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// progressSince is the last sign of progress of the attempt under way.
func progressSince(s p.State) time.Time {
	if s.ProgressAt.After(s.AcceptedAt) {
		return s.ProgressAt
	}
	return s.AcceptedAt
}

func reminderAt(s p.State) time.Time {
	return s.AcceptedAt.Add(millis(s.Policy.WorkTimeoutMS * int64(s.Policy.ReminderPercent) / 100))
}

// returnClock tells whether the return's clock runs.
func returnClock(s p.State) bool {
	return s.ReturnExpected && s.Policy.ReturnTimeoutMS > 0 && !s.ReturnSince.IsZero()
}

func returnDue(s p.State) time.Time { return s.ReturnSince.Add(millis(s.Policy.ReturnTimeoutMS)) }

// holderLost tells whether the holder is gone, as far as this observer may
// judge: it must itself have been connected for one lease.
func holderLost(s p.State, d *Directory, now time.Time) bool {
	if !s.Held() || d.Present(s.Holder) {
		return false
	}
	return connectedFor(d, now, millis(s.LeaseMS))
}

// absent tells whether the agent has had no live holder for the acknowledge
// timeout. A person is never absent, a paused agent is paused on purpose.
func absent(s p.State, d *Directory, now time.Time) bool {
	if s.Agent == p.Human || d == nil {
		return false
	}
	if profile, _ := d.Agent(s.Agent); profile.Paused {
		return false
	}
	if live, _, _ := d.Load(s.Agent); live > 0 {
		return false
	}
	timeout := AckTimeout(s)
	since := s.OfferedAt
	if last := d.LastPresent[s.Agent]; last.After(since) {
		since = last
	}
	return due(now, since.Add(timeout)) && connectedFor(d, now, absenceGrace(s))
}

// absenceGrace is how long an observer must have been connected before it calls
// an agent absent: workers come back with the engine.
func absenceGrace(s p.State) time.Duration {
	return min(AckTimeout(s), millis(p.LeaseDefaultMS))
}

// AckTimeout is how long the agent of an offer may be without a live holder
// before the offer is given up (document 1 §6.2). An agent that has begun this
// handoff already gets twice the time: its worker crashed, and is more likely
// than not being started again by somebody.
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

// due tells whether an instant has come. The zero instant never does.
func due(now, at time.Time) bool { return !at.IsZero() && !now.Before(at) }

func millis(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }
