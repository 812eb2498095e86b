package lifecycle

import (
	"cmp"
	"hash/fnv"
	"strconv"
	"time"

	"github.com/cenkalti/backoff/v4"

	p "github.com/agenthandoff/handoff/protocol"
)

// Steps after an attempt that ended without a result.

// reofferAfterLoss charges the lost attempt, and offers the handoff again while attempts remain.
func reofferAfterLoss(s p.State, q Query, meta p.Meta) []p.Event {
	lost := append(estimate(&s, meta), leaseLost(s, meta))
	if s.Attempt < s.Policy.MaxAttempts {
		if s.Breaker != "" {
			q = q.afterEnd(Attempt{Agent: s.Agent, Ticket: s.Ticket, Fence: s.Fence, End: p.EndLost})
			if events := awaitBreaker(s, q, meta, Backoff(s)); events != nil {
				return append(lost, events...)
			}
		}
		return append(lost, again(s, q, meta, OfferLeaseLost))
	}
	after := s
	after.LeasesLost++
	return append(lost, exhausted(after, q, meta)...)
}

// stepFailed schedules the next attempt, or ends the handoff.
func stepFailed(s p.State, q Query, meta p.Meta) []p.Event {
	if !s.Retryable {
		// In the worker's words. A return is no dead letter, so an inbox lists it.
		return []p.Event{&p.Closed{Meta: meta, Outcome: p.OutcomeFailed, Reason: cmp.Or(s.Reason, "failed"), Inbox: personIf(s.ReturnOf != "")}}
	}
	if s.Attempt >= s.Policy.MaxAttempts {
		return exhausted(s, q, meta)
	}
	if events := awaitBreaker(s, q, meta, Backoff(s)); events != nil {
		return events
	}
	return []p.Event{&p.RetryScheduled{Meta: meta, Attempt: s.Attempt, Due: s.UpdatedAt.Add(Backoff(s))}}
}

// stepOverdue decides the next step after a clock over the work of an agent, by the package's
// policy. Attempts that a clock used up escalate like failed ones. A handoff that fails by a clock
// is also listed for a person.
func stepOverdue(s p.State, q Query, meta p.Meta, on p.OnTimeout, why reason) []p.Event {
	switch {
	case on == p.OnTimeoutEscalate:
		return escalate(s, q, meta, why)
	case on != p.OnTimeoutRetry:
	case s.Attempt < s.Policy.MaxAttempts && canReoffer(s) && !returnsUsedUp(s):
		if events := awaitBreaker(s, q, meta, Backoff(s)); events != nil {
			return events
		}
		due := meta.At.Add(Backoff(s))
		if s.RetryAt.After(due) { // an earlier retry is scheduled for that time
			due = s.RetryAt
		}
		return []p.Event{&p.RetryScheduled{Meta: meta, Attempt: s.Attempt, Due: due}}
	default:
		return usedUp(s, q, meta, closed(meta, p.OutcomeTimeout, why, p.Human), why)
	}
	if late := lateResult(s, meta); late != nil {
		return []p.Event{late}
	}
	return []p.Event{closed(meta, p.OutcomeTimeout, why, p.Human)}
}

// exhausted decides the next step when all attempts have failed. If all ended by a lost lease it is
// a crash loop: the work kills its workers.
func exhausted(s p.State, q Query, meta p.Meta) []p.Event {
	why := because(ReasonAttemptsExhausted, s).withCount(s.Attempt, s.Policy.MaxAttempts)
	if s.LeasesLost >= s.Attempt && s.Attempt > 0 {
		why.code = ReasonCrashLoop
	}
	end := closed(meta, p.OutcomeFailed, why, p.Human)
	if s.Message != "" && why.code != ReasonCrashLoop {
		end.Message += ": " + s.Message
	}
	return usedUp(s, q, meta, end, why)
}

// usedUp escalates a handoff that has no attempt left at its agent, or ends it, by its policy. A
// late result takes precedence.
func usedUp(s p.State, q Query, meta p.Meta, end p.Event, why reason) []p.Event {
	if late := lateResult(s, meta); late != nil {
		return []p.Event{late}
	}
	if _, _, ok := nextAuthority(s, q); s.Denied != "" || ok && s.Policy.OnExhausted != p.ExhaustedFail {
		return escalate(s, q, meta, why)
	}
	return []p.Event{end}
}

// waitsOn reports whether the end of the return's clock leaves a handoff unchanged: the policy is
// to retry, and the only possible retry is to wait further (for an answer, its children, its time,
// a gate).
func waitsOn(s *p.State) bool {
	return (s.Phase == p.Conditional || s.Phase == p.AwaitingApproval) &&
		s.Policy.OnReturnTimeout == p.OnTimeoutRetry && s.ReturnTimeouts+1 < s.Policy.MaxAttempts
}

// returnsUsedUp reports whether the return's clock ran out once per allowed attempt.
func returnsUsedUp(s p.State) bool {
	return s.TimedOut == p.ClockReturn && s.ReturnTimeouts >= s.Policy.MaxAttempts
}

// again returns the event that offers a handoff once more to its agent.
func again(s p.State, q Query, meta p.Meta, why string) *p.Offered {
	offered := &p.Offered{Meta: meta, Agent: s.Agent, Reason: why}
	if mark, _, _ := q.lets(s.Agent, s.Ticket); mark != s.Breaker {
		offered.Breaker = mark
	}
	return offered
}

// awaitBreaker returns the events after an attempt if the breaker of its agent blocks the next one:
// another fit agent gets it, else it waits for the breaker. nil means that the breaker lets it
// through.
func awaitBreaker(s p.State, q Query, meta p.Meta, delay time.Duration) []p.Event {
	_, until, ok := q.lets(s.Agent, s.Ticket)
	if ok {
		return nil
	}
	if events := reroute(s, q, meta, because(ReasonBreakerOpen, s)); events != nil {
		if _, gated := events[0].(*p.Gated); !gated || !s.Held() { // no gate while a holder was lost
			return events
		}
	}
	due := meta.At.Add(delay)
	if until.After(due) {
		due = meta.At.Add(later(s.Ticket, s.AttemptsTotal, s.Policy.BackoffSpreadPct, until.Sub(meta.At)))
	}
	return []p.Event{&p.RetryScheduled{Meta: meta, Attempt: s.Attempt, Due: due}}
}

// Backoff returns the delay before the next attempt at the same agent. It is exponential from the
// base and doubles with each retry there, for any cause (a failure, a clock, a lost lease). It is
// capped, spread by a hash of ticket and attempt so that a replay gives the same instant, and never
// below the delay that the worker asked for, which is spread upwards. The cap also applies to the
// spread delay: the part beyond it is folded back, so capped retries do not all start at once.
func Backoff(s p.State) time.Duration {
	policy := s.Policy
	exponential := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(millis(min(policy.BackoffBaseMS, policy.BackoffCapMS))),
		backoff.WithMultiplier(2),
		backoff.WithMaxInterval(millis(policy.BackoffCapMS)),
		backoff.WithRandomizationFactor(0),
		backoff.WithMaxElapsedTime(0),
		backoff.WithClockProvider(zeroClock{}),
	)
	var delay time.Duration
	for n := 0; n <= s.Retries && delay < millis(policy.BackoffCapMS); n++ {
		delay = exponential.NextBackOff()
	}
	delay += spread(s.Ticket, max(s.AttemptsTotal, s.Retries+1), delay*time.Duration(policy.BackoffSpreadPct)/100)
	if most := millis(policy.BackoffCapMS); delay > most {
		delay = 2*most - delay
	}
	return max(delay, later(s.Ticket, s.AttemptsTotal, policy.BackoffSpreadPct, millis(s.RetryAfterMS))).Round(time.Millisecond)
}

// sharedSpreadMax is the longest spread of a delay that many handoffs share.
const sharedSpreadMax = 10 * time.Minute

// later spreads a delay that was asked for (an outage, a limit, a breaker) by up to percent more.
// Many handoffs may share that delay, and must not all return at the same instant.
func later(ticket string, try, percent int, delay time.Duration) time.Duration {
	width := min(delay*time.Duration(percent)/100, sharedSpreadMax)
	return (delay + (spread(ticket, try, width)+width)/2).Round(time.Millisecond)
}

// zeroClock is the clock for the back-off, which reads one although no result depends on it.
type zeroClock struct{}

func (zeroClock) Now() time.Time { return time.Time{} }

// spread returns a duration between -width and +width, the same for the same ticket and attempt.
func spread(ticket string, try int, width time.Duration) time.Duration {
	if width <= 0 {
		return 0
	}
	hash := fnv.New64a()
	hash.Write([]byte(ticket + "/" + strconv.Itoa(try)))
	return time.Duration(hash.Sum64()%uint64(2*width+1)) - width
}
