package lifecycle

import (
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// Foreseen is what will be decided about a handoff, and when.
type Foreseen struct {
	At   time.Time
	Step // as Decide makes it at that instant
}

// clocksMax bounds Foresee. A state lives under no more clocks than this; each
// instant that is tried is later than the one before.
const clocksMax = 16

// Foresee returns what Decide will say of a handoff from now on if nothing else
// happens: no other append, and the directory stays as it is (those absent stay
// so, those present too). It asks Decide itself, at each instant at which one of
// the handoff's clocks runs out, or an observer of d may call a holder or an agent gone; so
// it is the core's own decision, made early. False is that nothing will be
// decided, which is true of closed handoffs alone: those that are open have a
// deadline. It is the first decision only: ask again of its state for what follows.
func Foresee(s p.State, d *Directory, now time.Time) (Foreseen, bool) {
	if s.UpdatedAt.After(now) {
		now = s.UpdatedAt
	}
	breakers := 0
	if d != nil {
		breakers = len(d.Health)
	}
	for range clocksMax + breakers {
		if t := Decide(s, d, now); len(t.Events) > 0 {
			return Foreseen{At: now, Step: t}, true
		}
		if now = nextInstant(s, d, now); now.IsZero() {
			break
		}
	}
	return Foreseen{}, false
}

// nextInstant is the earliest instant later than after at which Decide may say
// something that it did not say before; zero if there is none.
func nextInstant(s p.State, d *Directory, after time.Time) time.Time {
	next := wakeAfter(s, after)
	for _, at := range []time.Time{AbsenceKnownAt(s, d), progressMissedAt(s, d), nextBreaker(d, after)} {
		if at.After(after) && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}

// nextBreaker is when the next breaker lets a handoff through that it keeps back now: of any agent,
// since the handoff may go to another one. Zero is that none does.
func nextBreaker(d *Directory, after time.Time) (next time.Time) {
	if d = d.At(after); d == nil {
		return time.Time{}
	}
	for _, view := range d.breakers {
		if view.until.After(after) && (next.IsZero() || view.until.Before(next)) {
			next = view.until
		}
	}
	return next
}

// progressMissedAt is when an agent whose last worker was seen to go is absent; zero
// where none was.
func progressMissedAt(s p.State, d *Directory) time.Time {
	if s.Phase != p.Pending || s.Closed || s.Held() || d == nil {
		return time.Time{}
	}
	last, seen := d.LastPresent[s.Agent]
	if !seen {
		return time.Time{}
	}
	return last.Add(AckTimeout(s))
}
