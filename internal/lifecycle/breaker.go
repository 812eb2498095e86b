package lifecycle

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// A breaker keeps handoffs from an agent that fails. It opens when its threshold of different
// handoffs has failed since the last success, and the failure rate is high enough: one package that
// no agent can do never opens it. When its time is over it is half-open, and as many handoffs as it
// has probes are offered. A probe that succeeds closes it; one that fails opens it for twice as
// long.

// BreakerState is which handoffs an agent's breaker lets through.
type BreakerState string

const (
	BreakerClosed   BreakerState = "closed"    // all
	BreakerHalfOpen BreakerState = "half-open" // probes
	BreakerOpen     BreakerState = "open"      // none
)

// Attempt is an ended attempt, as the health of its agent counts it.
type Attempt struct {
	Agent        string
	Ticket       string
	Fence        uint64
	End          p.AttemptEnd
	RetryAfterMS int64 // of EndThrottled
}

// AgentHealth is the health of an agent, and the revision of its entry.
type AgentHealth struct {
	p.Health
	Rev uint64
}

// Breaker returns the state of an agent's breaker. until is when time alone may change it: when it
// becomes half-open, or when a probe's place becomes free. It is zero for a half-open breaker with
// a free place.
func Breaker(h p.Health, policy p.BreakerPolicy, now time.Time) (state BreakerState, until time.Time) {
	switch {
	case policy.Threshold == 0 || h.OpenUntil.IsZero():
		return BreakerClosed, time.Time{}
	case now.Before(h.OpenUntil):
		return BreakerOpen, h.OpenUntil
	}
	taken := 0
	for _, probe := range h.Probes {
		if now.Before(probe.Until) {
			taken++
			if until.IsZero() || probe.Until.Before(until) {
				until = probe.Until
			}
		}
	}
	if taken < policy.Probes {
		until = time.Time{}
	}
	return BreakerHalfOpen, until
}

// Fold returns the health of an agent after the end of an attempt. An attempt that was already
// counted changes nothing.
func Fold(h p.Health, a Attempt, policy p.BreakerPolicy, now time.Time) p.Health {
	known := slices.IndexFunc(h.Failures, func(f p.FailedHandoff) bool { return f.Ticket == a.Ticket })
	failed := a.End != p.EndSucceeded && a.End != p.EndUncounted
	if failed && known >= 0 && h.Failures[known].Fence >= a.Fence {
		return h
	}
	probe := slices.ContainsFunc(h.Probes, func(q p.Probe) bool { return q.Ticket == a.Ticket })
	h.Agent = a.Agent
	h.Probes = withoutProbe(h.Probes, a.Ticket)
	h = fade(h, policy, now)
	switch {
	case a.End == p.EndUncounted:
	case !failed:
		return succeed(h, probe)
	default:
		h.Failed = tenths(h.Failed + 1)
		h.LastFailure = &p.LastFailure{At: now, End: a.End, Ticket: a.Ticket}
		h.Failures = addFailure(h.Failures, a, known)
		h = fail(h, a, policy, probe, now)
	}
	return h
}

// fade reduces the weight of earlier ends: by half after half a window.
func fade(h p.Health, policy p.BreakerPolicy, now time.Time) p.Health {
	if half := millis(policy.WindowMS) / 2; half > 0 && now.After(h.At) {
		factor := math.Exp2(-float64(now.Sub(h.At)) / float64(half))
		h.OK, h.Failed, h.At = tenths(h.OK*factor), tenths(h.Failed*factor), now
	}
	return h
}

// tenths rounds to one decimal.
func tenths(n float64) float64 { return math.Round(n*10) / 10 }

// succeed records a success. That of a probe closes the breaker. That of an attempt which was
// running when the breaker opened proves little.
func succeed(h p.Health, probe bool) p.Health {
	switch {
	case probe:
		return p.Health{Agent: h.Agent}
	case h.OpenUntil.IsZero():
		h.Failures = nil
	}
	if h.Failed > 0 {
		h.OK = tenths(h.OK + 1)
	}
	return h
}

// throttleSpreadPct spreads the breakers of agents that one provider has throttled.
const throttleSpreadPct = 20

// fail records a failure, and opens the breaker if necessary.
func fail(h p.Health, a Attempt, policy p.BreakerPolicy, probe bool, now time.Time) p.Health {
	closed := h.OpenUntil.IsZero()
	if closed && (len(h.Failures) < policy.Threshold || h.Failed*100 < float64(policy.SharePercent)*(h.Failed+h.OK)) {
		return h
	}
	if closed || probe {
		open := min(policy.OpenMS<<min(h.Trips, 20), max(policy.OpenMaxMS, policy.OpenMS))
		h.OpenedAt, h.OpenUntil = now, now.Add((millis(open) + spread(a.Ticket, h.Trips, millis(open)/20)).Round(time.Second/10))
		h.Trips++
	}
	if wait := now.Add(later(a.Agent, h.Trips, throttleSpreadPct, millis(a.RetryAfterMS))); a.End == p.EndThrottled && wait.After(h.OpenUntil) {
		h.OpenUntil = wait
	}
	return h
}

// addFailure adds a handoff once. known is its index, or negative.
func addFailure(failures []p.FailedHandoff, a Attempt, known int) []p.FailedHandoff {
	if known < 0 {
		return appendLast(failures, p.FailedHandoff{Ticket: a.Ticket, Fence: a.Fence}, p.BreakerThresholdMax)
	}
	failures = slices.Clone(failures)
	failures[known].Fence = a.Fence
	return failures
}

func withoutProbe(probes []p.Probe, ticket string) []p.Probe {
	return slices.DeleteFunc(slices.Clone(probes), func(q p.Probe) bool { return q.Ticket == ticket })
}

// TakeProbe reserves a probe's place for a handoff, and reports whether the handoff may proceed. A
// closed breaker needs no place. An expired place is free, unless its handoff is still being tried:
// then it is extended.
func TakeProbe(h p.Health, ticket string, policy p.BreakerPolicy, tried func(ticket string) bool, now time.Time) (next p.Health, taken bool) {
	state, _ := Breaker(h, policy, now)
	if state != BreakerHalfOpen {
		return h, state == BreakerClosed
	}
	until := now.Add(p.ProbeReservation)
	var kept []p.Probe
	for _, q := range h.Probes {
		switch {
		case q.Ticket == ticket:
			continue
		case !now.Before(q.Until) && !tried(q.Ticket):
			continue
		case !now.Before(q.Until):
			q.Until = until
		}
		kept = append(kept, q)
	}
	if len(kept) < policy.Probes {
		kept, taken = append(kept, p.Probe{Ticket: ticket, Until: until}), true
	}
	h.Probes = kept
	return h, taken
}

// IsProbing reports whether a handoff tests whether its agent has recovered.
func IsProbing(s p.State) bool { return !s.Closed && s.Breaker == p.BreakerProbe }

// AttemptEnded returns the attempt that an append ended, if its agent has a breaker that counts it.
func AttemptEnded(before, after *p.State, events []p.Event) (a Attempt, ok bool) {
	if before.Breaker == "" { // usual case
		return a, false
	}
	a = Attempt{Agent: before.Agent, Ticket: before.Ticket, Fence: before.Fence}
	for _, e := range events {
		if a.End = attemptEndOf(e, before); a.End != "" {
			if a.End == p.EndThrottled {
				a.RetryAfterMS = e.(*p.Failed).RetryAfterMS
			}
			return a, true
		}
	}
	a.End = p.EndUncounted
	return a, IsProbing(*before) && !(IsProbing(*after) && after.Agent == before.Agent)
}

// attemptEndOf returns how an event ends a counted attempt; empty if it does not.
func attemptEndOf(e p.Event, before *p.State) p.AttemptEnd {
	if before.Fence == 0 {
		return ""
	}
	switch e := e.(type) {
	case *p.Completed:
		return p.EndSucceeded
	case *p.Failed:
		switch {
		case e.Retryable && e.RetryAfterMS > 0:
			return p.EndThrottled
		case e.Retryable:
			return p.EndFailed
		}
	case *p.LeaseLost:
		return p.EndLost
	case *p.TimedOut:
		if e.Clock == p.ClockWork || e.Clock == p.ClockProgress {
			return p.EndTimeout
		}
	}
	return ""
}

// breakerView is a breaker that is not closed, at one instant.
type breakerView struct {
	state  BreakerState
	until  time.Time // zero: it has a place for a probe
	probes []p.Probe
	failed int
}

// BreakerPolicy returns the settings of an agent's breaker.
func (d *Directory) BreakerPolicy(agent string) p.BreakerPolicy {
	if d == nil || agent == p.Human {
		return p.BreakerPolicy{}
	}
	profile, _ := d.Agent(agent)
	return p.ResolveBreaker(d.fleet().Breaker, profile.Breaker)
}

// lets reports whether an agent's breaker lets a handoff through, and how its offer is marked. If
// not, until is when it may.
func (q Query) lets(agent, ticket string) (mark p.BreakerMark, until time.Time, ok bool) {
	view, barred := q.breakers[agent]
	switch {
	case !barred && q.BreakerPolicy(agent).Threshold == 0:
		return "", time.Time{}, true
	case !barred:
		return p.BreakerCounts, time.Time{}, true
	case view.state == BreakerHalfOpen && (view.until.IsZero() || slices.ContainsFunc(view.probes, func(q p.Probe) bool { return q.Ticket == ticket })):
		return p.BreakerProbe, time.Time{}, true
	}
	return p.BreakerCounts, view.until, false
}

// breakerOpen returns the refusal of a handoff that its agent's breaker does not let through.
func (q Query) breakerOpen(field, agent string, until time.Time) *p.Error {
	view, wait := q.breakers[agent], until.Sub(q.Now)
	words := fmt.Sprintf("is open: %d handoffs to it failed", view.failed)
	if view.state == BreakerHalfOpen {
		words = "is half-open, and another handoff tests whether it has recovered"
	}
	err := p.Errorf(p.CodeBreakerOpen, field, "the breaker of %s %s; submit it again in %s, or have it wait (routing.on_open)", agent, words, wait.Round(100*time.Millisecond))
	err.RetryAfterMS = max(1, wait.Milliseconds())
	return err
}

// errBreakerOpen matches breakerOpen.
var errBreakerOpen = &p.Error{Code: p.CodeBreakerOpen}

// BreakerDue returns when a breaker may let a handoff through that it keeps back now. It is zero if
// none keeps it back.
func BreakerDue(s p.State, q Query) time.Time {
	if agent, _, kept := KeptBack(s, q); kept {
		return q.withBreakers().breakers[agent].until
	}
	return time.Time{}
}

// KeptBack returns the agent whose breaker keeps a handoff back, and its health. For a capability
// this is the agent whose breaker may be the first to let it through.
func KeptBack(s p.State, q Query) (agent string, h p.Health, kept bool) {
	if s.Closed || q.Directory == nil || len(q.Health) == 0 { // usual case
		return "", h, false
	}
	q = q.withBreakers()
	switch {
	case s.Phase == p.Retrying && hasPassed(q.Now, s.RetryAt):
		agent = s.Agent
	case s.Phase != p.Pending || s.Offer != 0 || s.Agent != "" || s.Aggregate != nil:
		return "", h, false
	case s.Target.Agent != "" && !slices.Contains(s.Excluded, s.Target.Agent):
		agent = s.Target.Agent
	default:
		_, err := routeTarget(s.Summary, q)
		var barred *p.Error
		if !errors.As(err, &barred) || barred.Code != p.CodeBreakerOpen {
			return "", h, false
		}
		agent = firstBarred(s.Summary, q)
	}
	if _, _, ok := q.lets(agent, s.Ticket); ok {
		return "", h, false
	}
	return agent, q.Health[agent].Health, true
}
