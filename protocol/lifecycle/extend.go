package lifecycle

import (
	"strings"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// Extend gives a holder more time for its work: by this much
// from where its work's clock would run out, at most to the clock of those who wait
// for the handoff. It is granted once in an attempt; a *protocol.Error says why not.
func Extend(s p.State, holder string, by time.Duration, reason string, now time.Time) (Step, error) {
	const field = "extend_ms"
	if err := mustNotBeEnding(s); err != nil {
		return Step{}, err
	}
	due := workDue(s)
	last, clock := waiterLimit(s)
	switch ms := by.Milliseconds(); {
	case ms < 1 || ms > p.ExtensionMaxMS:
		return Step{}, p.Errorf(p.CodeInvalid, field, "must be from 1 to %d, not %d", p.ExtensionMaxMS, ms)
	case strings.TrimSpace(reason) == "":
		return Step{}, p.Errorf(p.CodeMissing, "reason", "is missing: an extension needs one")
	case !s.ExtendedUntil.IsZero():
		return Step{}, p.Errorf(p.CodeIllegal, field, "this attempt was extended already, until %s; that is granted once", instant(s.ExtendedUntil))
	case due.IsZero():
		return Step{}, p.Errorf(p.CodeIllegal, field, "no work timeout runs; the %s ends it at %s, and only its source can move that", clock, instant(last))
	case !now.Before(due):
		return Step{}, p.Errorf(p.CodeIllegal, field, "the work timeout ran out at %s", instant(due))
	case !last.After(due):
		return Step{}, p.Errorf(p.CodeIllegal, field, "its limit is the %s at %s, and only its source can move that", clock, instant(last))
	}
	until := due.Add(by)
	if until.After(last) {
		until = last
	}
	return StepOf(s, &p.Extended{Meta: p.Meta{At: now, By: holder}, Fence: s.Fence, Until: until, Reason: reason})
}

// waiterLimit is the clock of those who wait for a handoff that runs out first: no
// extension of the work goes past it.
func waiterLimit(s p.State) (time.Time, p.Clock) {
	if deadline := Deadline(s); !returnClock(s) || deadline.Before(returnDue(s)) {
		return deadline, p.ClockDeadline
	}
	return returnDue(s), p.ClockReturn
}

func instant(at time.Time) string { return at.UTC().Format(time.RFC3339) }
