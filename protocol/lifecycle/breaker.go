package lifecycle

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// A breaker keeps handoffs from an agent that fails. It opens when as many different handoffs as its
// threshold failed since the last success, and their share is large enough: one package that no agent
// can do never opens it. When its time is over it is half-open: as many handoffs as it has probes are
// offered. A probe that succeeds closes it, one that fails opens it for twice as long.

// BreakerState is what an agent's breaker lets through.
type BreakerState string

const (
	BreakerClosed   BreakerState = "closed"    // everything
	BreakerHalfOpen BreakerState = "half-open" // probes
	BreakerOpen     BreakerState = "open"      // nothing
)

// Attempt is an attempt that has ended, as the health of its agent counts it.
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

// Breaker tells the state of an agent's breaker. until is when it may change by time alone: when it is
// half-open, or when a probe's place is free. A half-open breaker that has a place now has none.
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

// Fold returns the health of an agent after the end of an attempt. An attempt that is counted already
// changes nothing.
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

// fade lets earlier ends count for less: half as much after half a window.
func fade(h p.Health, policy p.BreakerPolicy, now time.Time) p.Health {
	if half := millis(policy.WindowMS) / 2; half > 0 && now.After(h.At) {
		factor := math.Exp2(-float64(now.Sub(h.At)) / float64(half))
		h.OK, h.Failed, h.At = tenths(h.OK*factor), tenths(h.Failed*factor), now
	}
	return h
}

// tenths keeps one digit behind the point.
func tenths(n float64) float64 { return math.Round(n*10) / 10 }

// succeed takes in a success. That of a probe closes the breaker; of an attempt that was under way
// when it opened, it proves little.
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

// fail opens the breaker, where the failure calls for that.
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
	if wait := now.Add(millis(a.RetryAfterMS)); a.End == p.EndThrottled && wait.After(h.OpenUntil) {
		h.OpenUntil = wait
	}
	return h
}

// addFailure adds a handoff, each once. known is its place, or negative.
func addFailure(failures []p.FailedHandoff, a Attempt, known int) []p.FailedHandoff {
	failures = slices.Clone(failures)
	if known >= 0 {
		failures[known].Fence = a.Fence
		return failures
	}
	failures = append(failures, p.FailedHandoff{Ticket: a.Ticket, Fence: a.Fence})
	return failures[max(0, len(failures)-p.BreakerThresholdMax):]
}

func withoutProbe(probes []p.Probe, ticket string) []p.Probe {
	return slices.DeleteFunc(slices.Clone(probes), func(q p.Probe) bool { return q.Ticket == ticket })
}

// TakeProbe keeps a place among the probes for a handoff, and tells whether there was one. Where the
// breaker is closed there is nothing to keep. A place whose time is over is free, unless its handoff
// is tried still: then it is kept for longer.
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

// IsProbing tells whether a handoff tries whether its agent has recovered.
func IsProbing(s p.State) bool { return !s.Closed && s.Breaker == p.BreakerProbe }

// AttemptEnded returns the attempt that an append ended, where its agent has a breaker that counts it.
func AttemptEnded(before, after *p.State, events []p.Event) (a Attempt, ok bool) {
	if before.Breaker == "" { // as a rule
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

// attemptEndOf is how an event ends an attempt that counts; empty where it does not.
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

// BreakerPolicy are the settings of an agent's breaker.
func (d *Directory) BreakerPolicy(agent string) p.BreakerPolicy {
	if d == nil || agent == p.Human {
		return p.BreakerPolicy{}
	}
	var fleet *p.Breaker
	if d.Fleet != nil {
		fleet = d.Fleet.Breaker
	}
	return p.ResolveBreaker(fleet, d.Agents[agent].Breaker)
}

// WithHealth returns a snapshot with another health of one agent.
func (d *Directory) WithHealth(agent string, h AgentHealth) *Directory {
	if d == nil {
		d = &Directory{}
	}
	next := *d
	next.Health = make(map[string]AgentHealth, len(d.Health)+1)
	for id, other := range d.Health {
		next.Health[id] = other
	}
	next.Health[agent] = h
	return &next
}

// At is the snapshot with the breakers as they stand at an instant. Without one it is d itself, as
// it is where all are closed.
func (d *Directory) At(now time.Time) *Directory {
	if d == nil || len(d.Health) == 0 && d.breakers == nil { // as a rule
		return d
	}
	var views map[string]breakerView
	for agent, h := range d.Health {
		state, until := Breaker(h.Health, d.BreakerPolicy(agent), now)
		if state == BreakerClosed {
			continue
		}
		if views == nil {
			views = map[string]breakerView{}
		}
		views[agent] = breakerView{state, until, h.Probes, len(h.Failures)}
	}
	next := *d
	next.breakers, next.asOf = views, now
	return &next
}

// lets tells whether an agent's breaker lets a handoff through, and how its offer is marked. until is
// when it may, if not now.
func (d *Directory) lets(agent, ticket string) (mark p.BreakerMark, until time.Time, ok bool) {
	if d == nil {
		return "", time.Time{}, true
	}
	view, barred := d.breakers[agent]
	switch {
	case !barred && d.BreakerPolicy(agent).Threshold == 0:
		return "", time.Time{}, true
	case !barred:
		return p.BreakerCounts, time.Time{}, true
	case view.state == BreakerHalfOpen && (view.until.IsZero() || slices.ContainsFunc(view.probes, func(q p.Probe) bool { return q.Ticket == ticket })):
		return p.BreakerProbe, time.Time{}, true
	}
	return p.BreakerCounts, view.until, false
}

// withoutBreakers is the snapshot as if all breakers were closed.
func (d *Directory) withoutBreakers() *Directory {
	next := *d
	next.Health, next.breakers = nil, nil
	return &next
}

// afterEnd is the snapshot with the end of an attempt taken in, as a supervisor is about to.
func (d *Directory) afterEnd(a Attempt, now time.Time) *Directory {
	policy := d.BreakerPolicy(a.Agent)
	if policy.Threshold == 0 {
		return d
	}
	h := d.Health[a.Agent]
	h.Health = Fold(h.Health, a, policy, now)
	return d.WithHealth(a.Agent, h).At(now)
}

// breakerOpen refuses a handoff whose agent's breaker does not let it through.
func (d *Directory) breakerOpen(field, agent string, until time.Time) *p.Error {
	view, wait := d.breakers[agent], until.Sub(d.asOf)
	words := fmt.Sprintf("is open: %d handoffs to it failed", view.failed)
	if view.state == BreakerHalfOpen {
		words = "is half-open, and another handoff tries whether it has recovered"
	}
	err := p.Errorf(p.CodeBreakerOpen, field, "the breaker of %s %s; submit it again in %s, or have it wait (routing.on_open)", agent, words, wait.Round(100*time.Millisecond))
	err.RetryAfterMS = max(1, wait.Milliseconds())
	return err
}

// errBreakerOpen matches breakerOpen.
var errBreakerOpen = &p.Error{Code: p.CodeBreakerOpen}

// BreakerDue is when a breaker may let a handoff through that it keeps back now. Zero is that none
// does.
func BreakerDue(s p.State, d *Directory, now time.Time) time.Time {
	if agent, _, kept := KeptBack(s, d, now); kept {
		return d.At(now).breakers[agent].until
	}
	return time.Time{}
}

// KeptBack returns the agent whose breaker keeps a handoff back, and its health. Of a capability that
// is the one whose breaker may be the first to let it through.
func KeptBack(s p.State, d *Directory, now time.Time) (agent string, h p.Health, kept bool) {
	if s.Closed || d == nil || len(d.Health) == 0 { // as a rule
		return "", h, false
	}
	if d = d.At(now); d.breakers == nil {
		return "", h, false
	}
	switch {
	case s.Phase == p.Retrying && hasPassed(now, s.RetryAt):
		agent = s.Agent
	case s.Phase != p.Pending || s.Offer != 0 || s.Agent != "" || s.Aggregate != nil:
		return "", h, false
	case s.Target.Agent != "" && !contains(s.Excluded, s.Target.Agent):
		agent = s.Target.Agent
	default:
		_, err := routeTarget(s.Summary, d)
		var barred *p.Error
		if !errors.As(err, &barred) || barred.Code != p.CodeBreakerOpen {
			return "", h, false
		}
		agent = firstBarred(s.Summary, d)
	}
	if _, _, ok := d.lets(agent, s.Ticket); ok {
		return "", h, false
	}
	return agent, d.Health[agent].Health, true
}
