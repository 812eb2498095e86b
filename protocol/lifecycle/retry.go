package lifecycle

import (
	"cmp"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// What follows an attempt that ended without a result.

// reofferAfterLoss charges the lost attempt and offers again while attempts remain.
func reofferAfterLoss(s p.State, d *Directory, meta p.Meta) []p.Event {
	lost := append(estimate(&s, meta), leaseLost(s, meta))
	if s.Attempt < s.Policy.MaxAttempts {
		if s.Breaker != "" {
			d = d.afterEnd(Attempt{Agent: s.Agent, Ticket: s.Ticket, Fence: s.Fence, End: p.EndLost}, meta.At)
			if events := awaitBreaker(s, d, meta, Backoff(s)); events != nil {
				return append(lost, events...)
			}
		}
		return append(lost, again(s, d, meta, OfferLeaseLost))
	}
	after := s
	after.LeasesLost++
	return append(lost, exhausted(after, d, meta)...)
}

// stepFailed schedules the next attempt, or ends it.
func stepFailed(s p.State, d *Directory, meta p.Meta) []p.Event {
	if !s.Retryable {
		inbox := ""
		if s.ReturnOf != "" { // it is no dead letter
			inbox = p.Human
		}
		return []p.Event{&p.Closed{Meta: meta, Outcome: p.OutcomeFailed, Reason: cmp.Or(s.Reason, "failed"), Inbox: inbox}} // in the worker's words
	}
	if s.Attempt >= s.Policy.MaxAttempts {
		return exhausted(s, d, meta)
	}
	if events := awaitBreaker(s, d, meta, Backoff(s)); events != nil {
		return events
	}
	return []p.Event{&p.RetryScheduled{Meta: meta, Attempt: s.Attempt, Due: s.UpdatedAt.Add(Backoff(s))}}
}

// stepOverdue follows a clock that ran out over the work of an agent, as the package
// says. Attempts that a clock used up go up as those that failed do. What fails so is listed
// for a person too.
func stepOverdue(s p.State, d *Directory, meta p.Meta, on p.OnTimeout, why reason) []p.Event {
	switch {
	case on == p.OnTimeoutEscalate:
		return escalate(s, d, meta, why)
	case on != p.OnTimeoutRetry:
	case s.Attempt < s.Policy.MaxAttempts && canReoffer(s) && !returnsUsedUp(s):
		if events := awaitBreaker(s, d, meta, Backoff(s)); events != nil {
			return events
		}
		due := meta.At.Add(Backoff(s))
		if s.RetryAt.After(due) { // an earlier retry is set for then
			due = s.RetryAt
		}
		return []p.Event{&p.RetryScheduled{Meta: meta, Attempt: s.Attempt, Due: due}}
	default:
		return usedUp(s, d, meta, closed(meta, p.OutcomeTimeout, why, p.Human), why)
	}
	if late := lateResult(s, meta); late != nil {
		return []p.Event{late}
	}
	return []p.Event{closed(meta, p.OutcomeTimeout, why, p.Human)}
}

// exhausted follows attempts that failed until none is left. Attempts that all ended by a lost
// lease are a crash loop: the work kills its workers.
func exhausted(s p.State, d *Directory, meta p.Meta) []p.Event {
	why := because(ReasonAttemptsExhausted, s).withCount(s.Attempt, s.Policy.MaxAttempts)
	if s.LeasesLost >= s.Attempt && s.Attempt > 0 {
		why.code = ReasonCrashLoop
	}
	end := closed(meta, p.OutcomeFailed, why, p.Human)
	if s.Message != "" && why.code != ReasonCrashLoop {
		end.Message += ": " + s.Message
	}
	return usedUp(s, d, meta, end, why)
}

// usedUp passes a handoff up for which no attempt is left at its agent, whatever ended the last
// one; or ends it, as its policy says. A late result goes before both.
func usedUp(s p.State, d *Directory, meta p.Meta, end p.Event, why reason) []p.Event {
	if late := lateResult(s, meta); late != nil {
		return []p.Event{late}
	}
	if _, _, ok := nextAuthority(s, d); s.Denied != "" || ok && s.Policy.OnExhausted != p.ExhaustedFail {
		return escalate(s, d, meta, why)
	}
	return []p.Event{end}
}

// waitsOn reports whether the return's clock, when it runs out now, leaves a handoff as it is: it is
// retried, and what the handoff waits for (an answer, its children, its hour, a gate) is all that
// there is to try.
func waitsOn(s *p.State) bool {
	return (s.Phase == p.Conditional || s.Phase == p.AwaitingApproval) &&
		s.Policy.OnReturnTimeout == p.OnTimeoutRetry && s.ReturnTimeouts+1 < s.Policy.MaxAttempts
}

// returnsUsedUp reports whether the return's clock ran out as often as there may be attempts.
func returnsUsedUp(s p.State) bool {
	return s.TimedOut == p.ClockReturn && s.ReturnTimeouts >= s.Policy.MaxAttempts
}

// again makes the event that offers a handoff to the agent that has it once more.
func again(s p.State, d *Directory, meta p.Meta, why string) *p.Offered {
	offered := &p.Offered{Meta: meta, Agent: s.Agent, Reason: why}
	if mark, _, _ := d.lets(s.Agent, s.Ticket); mark != s.Breaker {
		offered.Breaker = mark
	}
	return offered
}

// awaitBreaker is what follows an attempt at an agent whose breaker does not let the next one
// through: another fit agent has it, else it waits for the breaker. Nil is that it does.
func awaitBreaker(s p.State, d *Directory, meta p.Meta, delay time.Duration) []p.Event {
	_, until, ok := d.lets(s.Agent, s.Ticket)
	if ok {
		return nil
	}
	if events := reroute(s, d, meta, because(ReasonBreakerOpen, s)); events != nil {
		if _, gated := events[0].(*p.Gated); !gated || !s.Held() { // no gate stands where a holder was lost
			return events
		}
	}
	due := meta.At.Add(delay)
	if until.After(due) {
		due = until
	}
	return []p.Event{&p.RetryScheduled{Meta: meta, Attempt: s.Attempt, Due: due}}
}
