package lifecycle

import (
	"cmp"
	"fmt"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// By is what events of the core say caused them.
const By = "supervisor"

// stepsMax bounds one Decide: no chain of consequences is longer
// (lease lost, timed out, escalated, offered).
const stepsMax = 8

// Decide returns what happens next to a handoff as d and now have it, or
// nothing. The events apply to s in order, in one append. now must not be
// earlier than the last event.
func Decide(s p.State, d *Directory, now time.Time) []p.Event {
	var events []p.Event
	for range stepsMax {
		more := step(s, d, now)
		if len(more) == 0 {
			break
		}
		next, err := ApplyAll(s, more)
		if err != nil { // a step that is not legal is a bug here; the tests look for it
			panic(fmt.Sprintf("lifecycle: decided what does not apply: %v", err))
		}
		s = next
		events = append(events, more...)
	}
	return events
}

// step decides one consequence.
func step(s p.State, d *Directory, now time.Time) []p.Event {
	if s.Phase == fresh {
		return nil
	}
	meta := p.Meta{At: now, By: By}
	if s.Closed {
		return stepClosed(s, d, meta)
	}
	if s.CancelRequested {
		return stepCancel(s, d, now)
	}
	if s.Aggregate != nil {
		if events := stepGroup(s, meta); events != nil { // what is certain no clock undoes
			return events
		}
	}
	if due(now, Deadline(s)) {
		return append(timedOutOnce(s, p.ClockDeadline, meta), overdue(meta))
	}
	if returnClock(s) && due(now, returnDue(s)) && Legal(s.Phase, false, p.EventTimedOut) {
		return []p.Event{&p.TimedOut{Meta: meta, Clock: p.ClockReturn, Agent: s.Agent, Attempt: s.Attempt}}
	}
	if s.Offer == 0 && s.Agent != "" { // it was moved, and the append held no offer
		return []p.Event{offer(s, d, meta, s.Agent, "moved", nil)}
	}
	switch s.Phase {
	case p.Pending:
		return stepPending(s, d, now)
	case p.PhaseAccepted, p.Working:
		return stepHeld(s, d, now)
	case p.Conditional:
		return stepConditional(s, d, now)
	case p.Retrying:
		if due(now, s.RetryAt) {
			return []p.Event{&p.Offered{Meta: meta, Agent: s.Agent, Reason: "retry"}}
		}
	case p.PhaseFailed:
		return stepFailed(s, meta)
	case p.PhaseRejected:
		return stepRejected(s, d, meta)
	case p.PhaseTimeout:
		return stepTimeout(s, d, meta)
	}
	return nil
}

// stepCancel ends a handoff that nobody holds at once, and a held one when
// its holder is gone or the grace is over.
func stepCancel(s p.State, d *Directory, now time.Time) []p.Event {
	grace := s.CancelRequestedAt.Add(millis(s.Policy.CancelGraceMS))
	how := ""
	switch {
	case !s.Held():
	case holderLost(s, d, now):
		how = "; its worker was gone"
	case due(now, grace), due(now, Deadline(s)):
		how = "; its worker did not stop in time"
	default:
		return nil
	}
	return []p.Event{ended(s, d, p.Meta{At: now, By: By}, how)}
}

// ended is the end of a handoff of which it was requested: cancelled, or back
// to its source.
func ended(s p.State, d *Directory, meta p.Meta, how string) p.Event {
	if s.CancelReturn {
		return &p.Closed{Meta: meta, Outcome: p.OutcomeRolledBack, Reason: "returned", Message: "returned on request" + how, Inbox: sourceInbox(s, d)}
	}
	return closed(meta, p.OutcomeCancelled, "cancelled", "cancelled on request"+how)
}

func stepPending(s p.State, d *Directory, now time.Time) []p.Event {
	meta := p.Meta{At: now, By: By}
	if s.Aggregate != nil { // its members bring it on
		return nil
	}
	if s.Held() { // claimed by a holder that polls, not acknowledged yet
		if holderLost(s, d, now) {
			return []p.Event{leaseLost(s, meta), &p.Offered{Meta: meta, Agent: s.Agent, Reason: "lease_lost"}}
		}
		return nil
	}
	if s.Attempt >= s.Policy.MaxAttempts {
		return []p.Event{exhausted(s, meta)}
	}
	if s.Offer == 0 {
		return firstOffer(s, d, meta)
	}
	if ms := s.Policy.QueueTimeoutMS; ms > 0 && due(now, s.OfferedAt.Add(millis(ms))) && s.Agent != p.Human && !staysQueued(s, d) {
		return []p.Event{&p.TimedOut{Meta: meta, Clock: p.ClockQueue, Agent: s.Agent}}
	}
	if absent(s, d, now) && !staysQueued(s, d) {
		return []p.Event{&p.TimedOut{Meta: meta, Clock: p.ClockAcknowledge, Agent: s.Agent}}
	}
	return nil
}

// firstOffer makes up for a submission whose append held no offer.
func firstOffer(s p.State, d *Directory, meta p.Meta) []p.Event {
	routing, err := target(s.Summary, d)
	if err == nil {
		return []p.Event{offer(s, d, meta, routing.Choice, "submitted", &routing)}
	}
	if due(meta.At, s.SubmittedAt.Add(millis(s.Policy.AckTimeoutMS))) && !staysQueued(s, d) {
		return []p.Event{&p.TimedOut{Meta: meta, Clock: p.ClockAcknowledge, Agent: s.Agent}}
	}
	return nil // the directory may only just be filling
}

// staysQueued tells whether the offer waits where it stands though its agent is
// absent or slow: the policy says so, and there is nobody else to take it.
func staysQueued(s p.State, d *Directory) bool {
	return s.Policy.OnNoTaker == p.NoTakerQueue && !goesUpAtOnce(s, d) && reroute(s, d, p.Meta{}, "") == nil
}

// goesUpAtOnce tells whether what nobody takes is escalated at once, whatever else
// the policy says: a critical one is (document 1 §6.2), while there is somebody above.
func goesUpAtOnce(s p.State, d *Directory) bool {
	_, _, ok := above(s, d)
	return ok && s.Priority == p.Critical
}

func stepHeld(s p.State, d *Directory, now time.Time) []p.Event {
	meta := p.Meta{At: now, By: By}
	if holderLost(s, d, now) {
		return afterLoss(s, meta)
	}
	if ms := s.Policy.ProgressTimeoutMS; ms > 0 && due(now, progressSince(s).Add(millis(ms))) {
		return []p.Event{&p.TimedOut{Meta: meta, Clock: p.ClockProgress, Agent: s.Agent, Attempt: s.Attempt}}
	}
	work := millis(s.Policy.WorkTimeoutMS)
	if work <= 0 {
		return nil
	}
	if due(now, s.AcceptedAt.Add(work)) {
		return []p.Event{&p.TimedOut{Meta: meta, Clock: p.ClockWork, Agent: s.Agent, Attempt: s.Attempt}}
	}
	if s.RemindedAt.IsZero() && s.Policy.ReminderPercent > 0 && due(now, reminderAt(s)) {
		return []p.Event{&p.Reminded{Meta: meta, Fence: s.Fence}}
	}
	return nil
}

// afterLoss charges the lost attempt and offers again while attempts remain.
func afterLoss(s p.State, meta p.Meta) []p.Event {
	lost := leaseLost(s, meta)
	if s.Attempt < s.Policy.MaxAttempts {
		return []p.Event{lost, &p.Offered{Meta: meta, Agent: s.Agent, Reason: "lease_lost"}}
	}
	after := s
	after.LeasesLost++
	return []p.Event{lost, exhausted(after, meta)}
}

func stepConditional(s p.State, d *Directory, now time.Time) []p.Event {
	meta := p.Meta{At: now, By: By}
	timedOut := []p.Event{&p.TimedOut{Meta: meta, Clock: p.ClockCondition, Agent: s.Agent}}
	switch {
	case awaits(s):
		if s.Children.Awaited.Without(s.Children.Closed) == "" {
			return []p.Event{&p.Offered{Meta: meta, Agent: s.Agent, Reason: "return"}}
		}
		return nil
	case s.ConditionRounds > s.Policy.MaxConditions:
		return timedOut
	case s.Conditions == nil && due(now, s.RetryAt): // deferred, or answered
		return []p.Event{&p.Offered{Meta: meta, Agent: s.Agent, Reason: s.Reason}}
	case s.Conditions != nil && due(now, s.ConditionedAt.Add(millis(s.Policy.ConditionTimeoutMS))):
		return timedOut
	}
	return nil
}

// stepFailed schedules the next attempt, or ends it.
func stepFailed(s p.State, meta p.Meta) []p.Event {
	if !s.Retryable {
		return []p.Event{closed(meta, p.OutcomeFailed, cmp.Or(s.Reason, "failed"), "")}
	}
	if s.Attempt >= s.Policy.MaxAttempts {
		return []p.Event{exhausted(s, meta)}
	}
	return []p.Event{&p.RetryScheduled{Meta: meta, Attempt: s.Attempt, Due: s.UpdatedAt.Add(Backoff(s))}}
}

// stepTimeout follows the clock that ran out (document 1 §4.2, §6.2).
func stepTimeout(s p.State, d *Directory, meta p.Meta) []p.Event {
	switch s.TimedOut {
	case p.ClockDeadline: // the append held no end
		return []p.Event{overdue(meta)}
	case p.ClockWork:
		return stepOverdue(s, d, meta, s.Policy.OnTimeout, "no result within the work timeout")
	case p.ClockProgress:
		return stepOverdue(s, d, meta, s.Policy.OnTimeout, "no progress within the progress timeout")
	case p.ClockReturn:
		if s.Aggregate != nil { // nobody works on a group itself
			return stepOverdue(s, d, meta, p.OnTimeoutFail, "the group's outcome was not certain within the return timeout")
		}
		return stepNoReturn(s, d, meta)
	case p.ClockCondition:
		return escalate(s, d, meta, "the condition was not answered in time")
	}
	reason := "no live worker acknowledged the offer in time"
	if s.TimedOut == p.ClockQueue {
		reason = "the offer stood in the queue too long"
	}
	if goesUpAtOnce(s, d) {
		return escalate(s, d, meta, reason)
	}
	if events := reroute(s, d, meta, reason); events != nil {
		return events
	}
	return noTaker(s, d, meta, p.OutcomeTimeout, reason)
}

// stepNoReturn follows the return's clock, as the package says. A handoff that
// nobody has begun waits as long again, as often as it would be tried.
func stepNoReturn(s p.State, d *Directory, meta p.Meta) []p.Event {
	on := s.Policy.OnReturnTimeout
	if on == p.OnTimeoutRetry {
		switch {
		case s.ReturnTimeouts >= s.Policy.MaxAttempts:
			on = p.OnTimeoutFail
		case s.Attempt == 0 && canHaveItAgain(s):
			return []p.Event{&p.Offered{Meta: meta, Agent: s.Agent, Reason: "return_timeout"}}
		}
	}
	return stepOverdue(s, d, meta, on, "no return within the return timeout")
}

// canHaveItAgain tells whether the handoff may be offered once more to the agent
// that it is with: there is one, and it has neither refused nor asked too often.
func canHaveItAgain(s p.State) bool {
	return s.Agent != "" && !contains(s.Refused, s.Agent) && s.ConditionRounds <= s.Policy.MaxConditions
}

// stepOverdue follows a clock that ran out over somebody's work, as the package
// says (document 1 §4.2). What fails so is listed for a person too.
func stepOverdue(s p.State, d *Directory, meta p.Meta, on p.OnTimeout, words string) []p.Event {
	reason := string(s.TimedOut) + "_timeout"
	switch {
	case on == p.OnTimeoutRetry && s.Attempt > 0 && s.Attempt < s.Policy.MaxAttempts && canHaveItAgain(s):
		return []p.Event{&p.RetryScheduled{Meta: meta, Attempt: s.Attempt, Due: meta.At.Add(Backoff(s))}}
	case on == p.OnTimeoutEscalate:
		return escalate(s, d, meta, words)
	}
	if late := lateResult(s, meta); late != nil {
		return []p.Event{late}
	}
	return []p.Event{&p.Closed{Meta: meta, Outcome: p.OutcomeTimeout, Reason: reason, Message: words, Inbox: p.Human}}
}

// escalated tells whether an authority has the handoff, in its queue or in its hands.
func escalated(s p.State) bool {
	return len(s.Chain) > 0 && (s.Phase == p.Pending || s.Fence != 0)
}

// lateResult is the end by a result that was parked, where the policy uses it; nil else.
func lateResult(s p.State, meta p.Meta) p.Event {
	if s.Policy.LateResult != p.LateUse || s.LateSeq == 0 {
		return nil
	}
	return &p.LateResultUsed{Meta: meta, Seq: s.LateSeq}
}

// stepRejected finds another taker (document 1 §6.1, document 4).
func stepRejected(s p.State, d *Directory, meta p.Meta) []p.Event {
	if events := reroute(s, d, meta, "refused by "+s.Agent); events != nil {
		return events
	}
	return noTaker(s, d, meta, p.OutcomeRejected, "refused, and no other agent is fit")
}

// noTaker applies the policy for what nobody takes.
func noTaker(s p.State, d *Directory, meta p.Meta, outcome p.Outcome, reason string) []p.Event {
	switch s.Policy.OnNoTaker {
	case p.NoTakerQueue:
		if s.ReturnOf != "" && s.Phase == p.PhaseRejected { // nobody else will ever be fit for it
			return []p.Event{closed(meta, outcome, "no_taker", reason)}
		}
		if s.Phase == p.PhaseTimeout && s.Agent != "" { // back into the same queue
			return []p.Event{&p.Offered{Meta: meta, Agent: s.Agent, Reason: "no_taker"}}
		}
		return nil // refused by all: stays so until somebody fit turns up, or the deadline passes
	case p.NoTakerReturn:
		return []p.Event{&p.Closed{Meta: meta, Outcome: p.OutcomeRolledBack, Reason: "no_taker", Message: reason, Inbox: sourceInbox(s, d)}}
	case p.NoTakerClose:
		return []p.Event{closed(meta, outcome, "no_taker", reason)}
	}
	return escalate(s, d, meta, reason)
}

// escalate offers the handoff to the next authority. Where there is none, or a
// person has refused it already, it ends.
func escalate(s p.State, d *Directory, meta p.Meta, reason string) []p.Event {
	level, to, ok := above(s, d)
	if !ok {
		outcome := p.OutcomeTimeout
		if s.Phase == p.PhaseRejected {
			outcome = p.OutcomeRejected
		}
		return []p.Event{closed(meta, outcome, "escalation_exhausted", reason)}
	}
	return []p.Event{
		&p.Escalated{Meta: meta, Level: level, From: s.Agent, To: to, Reason: reason},
		offer(s, d, meta, to, "escalation", nil),
	}
}

// above is the next level, and who is there; not ok is that nobody is.
func above(s p.State, d *Directory) (level int, to string, ok bool) {
	level = s.EscalationLevel + 1
	to = authority(s, d, level)
	exhausted := level > s.Policy.MaxEscalations || s.Escalations >= p.EscalationsTotalMax
	return level, to, s.Agent != p.Human && !exhausted && !contains(s.Refused, to)
}

// authority is who an agent escalates to: its own choice while that leads
// somewhere new, a person at the last level.
func authority(s p.State, d *Directory, level int) string {
	agent, known := d.Agent(s.Agent)
	next := agent.EscalatesTo
	if !known || next == "" || level >= s.Policy.MaxEscalations {
		return p.Human
	}
	profile, known := d.Agent(next)
	if !known || !profile.Accepts() || contains(s.Refused, next) || contains(s.Chain, next) || next == s.Agent {
		return p.Human
	}
	return next
}

// reroute offers the handoff to another fit agent; nil if there is none or
// enough were tried.
func reroute(s p.State, d *Directory, meta p.Meta, reason string) []p.Event {
	if s.Reroutes >= s.Policy.MaxReroutes {
		return nil
	}
	routing, ok := Reroute(s, d)
	if !ok {
		return nil
	}
	return []p.Event{
		&p.Rerouted{Meta: meta, From: s.Agent, To: routing.Choice, Reason: reason},
		offer(s, d, meta, routing.Choice, "reroute", &routing),
	}
}

// offer makes the event that puts the handoff before an agent, with the policy
// that holds there.
func offer(s p.State, d *Directory, meta p.Meta, agent, reason string, routing *p.Routing) p.Event {
	profile, _ := d.Agent(agent)
	policy := ResolvePolicy(s.Summary, profile)
	return &p.Offered{Meta: meta, Agent: agent, Reason: reason, Routing: routing, Policy: &policy}
}

// exhausted closes a handoff whose attempts at this agent are used up. Attempts
// that all ended by a lost lease are a crash loop: the work kills its workers.
func exhausted(s p.State, meta p.Meta) p.Event {
	message := fmt.Sprintf("%d of %d attempts failed", s.Attempt, s.Policy.MaxAttempts)
	if late := lateResult(s, meta); late != nil {
		return late
	}
	if s.LeasesLost >= s.Attempt && s.Attempt > 0 {
		return closed(meta, p.OutcomeFailed, "crash_loop", message+": each time its worker vanished")
	}
	if s.Message != "" {
		message += ": " + s.Message
	}
	return closed(meta, p.OutcomeFailed, "attempts_exhausted", message)
}

func closed(meta p.Meta, o p.Outcome, reason, message string) p.Event {
	return &p.Closed{Meta: meta, Outcome: o, Reason: reason, Message: message}
}

// overdue is the end by the deadline.
func overdue(meta p.Meta) p.Event {
	return closed(meta, p.OutcomeTimeout, "deadline", "the deadline passed")
}

func leaseLost(s p.State, meta p.Meta) p.Event {
	return &p.LeaseLost{Meta: meta, Holder: s.Holder, Fence: s.Fence, Attempt: s.Attempt}
}

// timedOutOnce records the clock, where the phase allows it.
func timedOutOnce(s p.State, clock p.Clock, meta p.Meta) []p.Event {
	if !Legal(s.Phase, false, p.EventTimedOut) {
		return nil
	}
	return []p.Event{&p.TimedOut{Meta: meta, Clock: clock, Agent: s.Agent, Attempt: s.Attempt}}
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}
