package lifecycle

import (
	"cmp"
	"errors"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// By is what events of the core say caused them.
const By = "supervisor"

// stepsMax bounds one Decide: no chain of consequences is longer
// (lease lost, timed out, escalated, offered).
const stepsMax = 8

// Decide returns what happens next to a handoff as d and now have it, or nothing. now
// must not be earlier than the last event.
func Decide(s p.State, d *Directory, now time.Time) Step {
	t := Step{State: s}
	t.decide(d.At(now), now)
	return t
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
	if s.Phase == p.AwaitingApproval {
		return stepGate(s, d, meta)
	}
	if s.Phase == p.PhaseTimeout && s.TimedOut == p.ClockDeadline {
		return stepDeadline(s, d, meta)
	}
	if s.Phase == p.PhaseRejected && s.Denied != "" && deniedEnds(s, d, now) { // no clock makes another end of it
		return []p.Event{closeDenied(s, meta)}
	}
	if hasPassed(now, Deadline(s)) && s.Phase == p.AwaitingSource { // no authority begins it while its source may be at work
		return []p.Event{closed(meta, p.OutcomeTimeout, because(ReasonDeadline, s), p.Human)}
	}
	if hasPassed(now, Deadline(s)) {
		return []p.Event{&p.TimedOut{Meta: meta, Clock: p.ClockDeadline, Agent: s.Agent, Attempt: s.Attempt}}
	}
	if returnClock(s) && hasPassed(now, returnDue(s)) {
		return []p.Event{&p.TimedOut{Meta: meta, Clock: p.ClockReturn, Agent: s.Agent, Attempt: s.Attempt}}
	}
	if s.Offer == 0 && s.Agent != "" { // it was moved, and the append held no offer
		if s.EscalationLevel > 0 {
			return []p.Event{offer(s, d, meta, s.Agent, OfferMoved, nil)}
		}
		return offerOrGate(&s, d, meta, offerTo{agent: s.Agent, reason: OfferMoved})
	}
	switch s.Phase {
	case p.Pending:
		return stepPending(s, d, now)
	case p.PhaseAccepted, p.Working:
		return stepHeld(s, d, now)
	case p.Conditional:
		return stepConditional(s, d, now)
	case p.Retrying:
		if hasPassed(now, s.RetryAt) {
			if _, _, ok := d.lets(s.Agent, s.Ticket); ok {
				return []p.Event{again(s, d, meta, OfferRetry)}
			}
		}
	case p.PhaseFailed:
		return stepFailed(s, d, meta)
	case p.PhaseRejected:
		return stepRejected(s, d, meta)
	case p.PhaseTimeout:
		return stepTimeout(s, d, meta)
	}
	return nil
}

// stepCancel ends a handoff without a holder at once, and a held one when
// its holder is gone or the grace is over.
func stepCancel(s p.State, d *Directory, now time.Time) []p.Event {
	grace := s.CancelRequestedAt.Add(millis(s.Policy.CancelGraceMS))
	cause := ""
	switch {
	case !s.Held():
	case holderLost(s, d, now):
		cause = causeWorkerGone
	case hasPassed(now, grace), hasPassed(now, Deadline(s)):
		cause = causeGraceOver
	default:
		return nil
	}
	return []p.Event{endEvent(s, d, p.Meta{At: now, By: By}, cause)}
}

// endEvent is the end of a handoff of which it was requested: cancelled, or back
// to its source. cause is what ended the wait for its worker.
func endEvent(s p.State, d *Directory, meta p.Meta, cause string) p.Event {
	why := reason{code: ReasonCancelled}
	if cause != "" {
		why.facts.Causes = []string{cause}
	}
	if s.CancelReturn {
		why.code = ReasonReturned
		return closed(meta, p.OutcomeRolledBack, why, sourceInbox(s, d))
	}
	return closed(meta, p.OutcomeCancelled, why, "")
}

func stepPending(s p.State, d *Directory, now time.Time) []p.Event {
	meta := p.Meta{At: now, By: By}
	if s.Aggregate != nil { // its members bring it on
		return nil
	}
	late := hasPassed(now, queueDue(s)) && !keepsOffer(s, d) // it runs to the acknowledgement, claimed or not
	if s.Held() && !late {
		return stepClaimed(s, d, now)
	}
	if events := goBack(s, d, meta); events != nil {
		return events
	}
	if s.Attempt >= s.Policy.MaxAttempts && !s.Held() { // a claim is taken from its holder first
		return exhausted(s, d, meta)
	}
	if s.Offer == 0 {
		return firstOffer(s, d, meta)
	}
	if late {
		return []p.Event{&p.TimedOut{Meta: meta, Clock: p.ClockQueue, Agent: s.Agent}}
	}
	if absent(s, d, now) && !keepsOffer(s, d) {
		return []p.Event{&p.TimedOut{Meta: meta, Clock: p.ClockAcknowledge, Agent: s.Agent}}
	}
	return nil
}

// stepClaimed offers again what a holder claimed and has not acknowledged, when the
// holder is gone or the time to acknowledge is over. No attempt is charged; after as many claims
// as LapsedClaimsMax the agent counts as absent.
func stepClaimed(s p.State, d *Directory, now time.Time) []p.Event {
	if !holderLost(s, d, now) && !hasPassed(now, ClaimDue(s)) {
		return nil
	}
	meta := p.Meta{At: now, By: By}
	lost := claimLost(s, d, meta)
	if lapsesOut(s) && !keepsOffer(s, d) {
		return []p.Event{lost, &p.TimedOut{Meta: meta, Clock: p.ClockAcknowledge, Agent: s.Agent}}
	}
	return []p.Event{lost, again(s, d, meta, cmp.Or(lost.Reason, OfferLeaseLost))}
}

// claimLost takes a handoff from its holder, and says whether that holder is there.
func claimLost(s p.State, d *Directory, meta p.Meta) *p.LeaseLost {
	lost := leaseLost(s, meta)
	if isClaimed(s) && !holderLost(s, d, meta.At) {
		lost.Reason = p.NotAcknowledged
	}
	return lost
}

// firstOffer makes up for a submission whose append held no offer.
func firstOffer(s p.State, d *Directory, meta p.Meta) []p.Event {
	routing, err := firstTarget(s, d)
	if err == nil {
		return offerOrGate(&s, d, meta, offerTo{agent: routing.Choice, reason: OfferSubmitted, routing: &routing})
	}
	if errors.Is(err, errBreakerOpen) || awaitsAgent(&s.Summary, err) { // it waits, for as long as it may be open
		return nil
	}
	if hasPassed(meta.At, routableSince(s).Add(millis(s.Policy.AckTimeoutMS))) && !keepsOffer(s, d) {
		return []p.Event{&p.TimedOut{Meta: meta, Clock: p.ClockAcknowledge, Agent: s.Agent}}
	}
	return nil // the directory may only just be filling
}

// firstTarget is the agent that gets the first offer.
func firstTarget(s p.State, d *Directory) (p.Routing, error) {
	if routing, ok, settled := byBids(s, d, nil); ok {
		return routing, nil
	} else if settled {
		return p.Routing{}, p.Errorf(p.CodeNoAgent, "bids", "no agent that made a bid may have it now")
	}
	return routeTarget(s.Summary, d)
}

// keepsOffer tells whether the offer waits where it stands though its agent is
// absent or slow: the policy says so, and no other agent can take it.
func keepsOffer(s p.State, d *Directory) bool {
	return s.Policy.OnNoTaker == p.NoTakerQueue && !escalatesAtOnce(s, d) && reroute(s, d, p.Meta{}, reason{}) == nil
}

// escalatesAtOnce tells whether a handoff without a taker is escalated at once, whatever else
// the policy says: a critical one is, while there is an authority above.
func escalatesAtOnce(s p.State, d *Directory) bool {
	_, _, ok := nextAuthority(s, d)
	return ok && s.Priority == p.Critical
}

func stepHeld(s p.State, d *Directory, now time.Time) []p.Event {
	meta := p.Meta{At: now, By: By}
	if holderLost(s, d, now) {
		return reofferAfterLoss(s, d, meta)
	}
	if ms := s.Policy.ProgressTimeoutMS; ms > 0 && hasPassed(now, progressSince(s).Add(millis(ms))) {
		return []p.Event{&p.TimedOut{Meta: meta, Clock: p.ClockProgress, Agent: s.Agent, Attempt: s.Attempt}}
	}
	if hasPassed(now, workDue(s)) {
		return []p.Event{&p.TimedOut{Meta: meta, Clock: p.ClockWork, Agent: s.Agent, Attempt: s.Attempt}}
	}
	if hasPassed(now, ReminderAt(s)) {
		return []p.Event{&p.Reminded{Meta: meta, Fence: s.Fence}}
	}
	return nil
}

func stepConditional(s p.State, d *Directory, now time.Time) []p.Event {
	meta := p.Meta{At: now, By: By}
	switch {
	case isSuspended(s):
		if s.Children.Awaited.Without(s.Children.Closed) == "" {
			return []p.Event{again(s, d, meta, OfferReturn)}
		}
		return nil
	case s.ConditionRounds > s.Policy.MaxConditions:
		return escalate(s, d, meta, because(ReasonConditionsExhausted, s).withCount(s.ConditionRounds, s.Policy.MaxConditions))
	case s.Conditions == nil && hasPassed(now, s.RetryAt): // deferred, or answered
		return []p.Event{again(s, d, meta, reofferReason(s))}
	case s.Conditions != nil && hasPassed(now, s.ConditionedAt.Add(millis(s.Policy.ConditionTimeoutMS))):
		return []p.Event{&p.TimedOut{Meta: meta, Clock: p.ClockCondition, Agent: s.Agent}}
	}
	return nil
}

// reofferReason is why a handoff is offered again that waited for nothing but time.
func reofferReason(s p.State) string {
	if s.Reason == OfferAnswer {
		return OfferAnswer
	}
	return OfferDeferred
}

// stepTimeout follows the clock that ran out.
func stepTimeout(s p.State, d *Directory, meta p.Meta) []p.Event {
	switch s.TimedOut {
	case p.ClockWork:
		return stepOverdue(s, d, meta, s.Policy.OnTimeout, because(ReasonWorkTimeout, s).withLimit(millis(s.Policy.WorkTimeoutMS)))
	case p.ClockProgress:
		return stepOverdue(s, d, meta, s.Policy.OnTimeout, because(ReasonProgressTimeout, s).withLimit(millis(s.Policy.ProgressTimeoutMS)))
	case p.ClockReturn:
		return stepNoReturn(s, d, meta)
	case p.ClockCondition:
		return escalate(s, d, meta, because(ReasonConditionTimeout, s).withLimit(millis(s.Policy.ConditionTimeoutMS)))
	}
	why := because(ReasonAcknowledgeTimeout, s).withLimit(AckTimeout(s))
	if s.LapsedClaims >= LapsedClaimsMax {
		why = because(ReasonClaimsLapsed, s).withCount(s.LapsedClaims, LapsedClaimsMax)
	}
	if s.TimedOut == p.ClockQueue {
		why = because(ReasonQueueTimeout, s).withLimit(millis(s.Policy.QueueTimeoutMS))
	}
	if s.Reason == ReasonDeadlock {
		return stepDeadlock(s, d, meta)
	}
	if escalatesAtOnce(s, d) || s.Denied != "" {
		return escalate(s, d, meta, why)
	}
	if events := reroute(s, d, meta, why); events != nil {
		return events
	}
	return noTaker(s, d, meta, p.OutcomeTimeout, notRerouted(s, why))
}

// stepNoReturn follows the return's clock, as the package says. A retry of what
// no agent has begun is one of as many as there may be attempts.
func stepNoReturn(s p.State, d *Directory, meta p.Meta) []p.Event {
	why := because(ReasonReturnTimeout, s).withLimit(millis(s.Policy.ReturnTimeoutMS))
	if s.Aggregate != nil { // it has no work of its own
		return []p.Event{closeUnfinished(s, meta, why)}
	}
	return stepOverdue(s, d, meta, s.Policy.OnReturnTimeout, why)
}

// canReoffer tells whether the handoff may be offered once more to the agent
// that it is with: there is one, and it has neither refused nor asked too often.
func canReoffer(s p.State) bool {
	return s.Agent != "" && !contains(s.Refused, s.Agent) && s.ConditionRounds <= s.Policy.MaxConditions
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

// stepRejected finds another taker.
func stepRejected(s p.State, d *Directory, meta p.Meta) []p.Event {
	if s.Denied != "" {
		return escalate(s, d, meta, reason{ReasonDenied, p.Facts{Agent: s.Denied}})
	}
	if why, ok := tooFewBids(s); ok {
		if events := reroute(s, d, meta, why); events != nil {
			return events
		}
		return noTaker(s, d, meta, p.OutcomeRejected, why)
	}
	why := because(ReasonRefused, s)
	if events := reroute(s, d, meta, why); events != nil {
		return events
	}
	return noTaker(s, d, meta, p.OutcomeRejected, notRerouted(s, why))
}

// notRerouted is why a handoff that its agent does not take goes to no other one.
// What was escalated is not rerouted, so there the cause alone is the reason.
func notRerouted(s p.State, cause reason) reason {
	switch {
	case s.EscalationLevel > 0:
		return cause
	case s.Reroutes >= s.Policy.MaxReroutes:
		return cause.causing(ReasonReroutesExhausted).withCount(s.Reroutes, s.Policy.MaxReroutes)
	}
	return cause.causing(ReasonNoFitAgent)
}

// noTaker applies the policy for a handoff that no agent takes.
func noTaker(s p.State, d *Directory, meta p.Meta, outcome p.Outcome, why reason) []p.Event {
	switch s.Policy.OnNoTaker {
	case p.NoTakerQueue:
		if s.ReturnOf != "" && s.Phase == p.PhaseRejected { // no other agent will ever be fit for it
			return []p.Event{closed(meta, outcome, why.causing(ReasonNoTaker), p.Human)}
		}
		if s.Phase == p.PhaseTimeout && s.Agent != "" { // back into the same queue
			return []p.Event{again(s, d, meta, OfferNoTaker)}
		}
		return nil // refused by all: stays so until a fit agent turns up, or the deadline passes
	case p.NoTakerReturn:
		return []p.Event{closed(meta, p.OutcomeRolledBack, why.causing(ReasonNoTaker), sourceInbox(s, d))}
	case p.NoTakerClose:
		return []p.Event{closed(meta, outcome, why.causing(ReasonNoTaker), "")}
	}
	if s.Group != "" && s.Overrides.OnNoTaker == nil { // its group does without it rather than ask a person
		if _, to, ok := nextAuthority(s, d); !ok || to == p.Human {
			return []p.Event{closed(meta, outcome, why.causing(ReasonNoTaker), "")}
		}
	}
	return escalate(s, d, meta, why)
}

// escalate offers the handoff to the next authority. Where there is none, or a
// person has refused it already, it ends.
func escalate(s p.State, d *Directory, meta p.Meta, why reason) []p.Event {
	level, to, ok := nextAuthority(s, d)
	if !ok && s.Denied != "" {
		return []p.Event{closeDenied(s, meta)}
	}
	if !ok {
		outcome := p.OutcomeTimeout
		if s.Phase == p.PhaseRejected || s.Phase == p.Conditional { // no clock ran out: it was not taken
			outcome = p.OutcomeRejected
		}
		inbox := p.Human
		if s.Agent == p.Human && outcome == p.OutcomeRejected && s.ReturnOf == "" { // a person has seen it, and said no
			inbox = ""
		}
		return []p.Event{closed(meta, outcome, why.causing(ReasonNoAuthority), inbox)}
	}
	return []p.Event{
		&p.Escalated{Meta: meta, Level: level, From: s.Agent, To: to, ReasonCode: why.code, Facts: why.factsOrNil(), Reason: why.words()},
		offer(s, d, meta, to, OfferEscalation, nil),
	}
}

// nextAuthority is the next level, and its authority; not ok is that there is none.
func nextAuthority(s p.State, d *Directory) (level int, to string, ok bool) {
	level = s.EscalationLevel + 1
	if s.Denied != "" {
		to = nextDecider(s, d)
		return level, to, to != ""
	}
	to = authorityAt(s, d, level)
	exhausted := level > s.Policy.MaxEscalations || s.Escalations >= p.EscalationsTotalMax
	return level, to, s.Agent != p.Human && !exhausted && !contains(s.Refused, to) && !d.Reserved(to)
}

// authorityAt is who an agent escalates to: its own choice while that leads
// somewhere new, a person at the last level. One that is not fit is passed over.
func authorityAt(s p.State, d *Directory, level int) string {
	if level >= s.Policy.MaxEscalations || exhaustedBudget(&s) != "" { // an agent above has nothing to work with
		return p.Human
	}
	below := s.Agent
	for range approvalsAbove {
		profile, known := d.Agent(below)
		next := profile.EscalatesTo
		if !known || next == "" {
			break
		}
		above, known := d.Agent(next)
		if !known || contains(s.Refused, next) || contains(s.Chain, next) || next == s.Agent || d.Reserved(next) || s.Type == p.Escalation && next == s.Source {
			break
		}
		if d.fitAbove(&above, &s.Summary) {
			return next
		}
		below = next
	}
	return p.Human
}

// reroute offers the handoff to another fit agent; nil if there is none or
// enough were tried.
func reroute(s p.State, d *Directory, meta p.Meta, why reason) []p.Event {
	if s.Reroutes >= s.Policy.MaxReroutes {
		return nil
	}
	routing, ok := Reroute(s, d)
	if !ok {
		return nil
	}
	return offerOrGate(&s, d, meta, offerTo{agent: routing.Choice, reason: OfferReroute, routing: &routing, why: why})
}

// offer makes the event that puts the handoff before an agent, with the policy
// that holds there.
func offer(s p.State, d *Directory, meta p.Meta, agent, reason string, routing *p.Routing) p.Event {
	profile, _ := d.Agent(agent)
	policy := ResolvePolicy(s.Summary, profile, d)
	mark, _, _ := d.lets(agent, s.Ticket)
	return &p.Offered{Meta: meta, Agent: agent, Reason: reason, Routing: routing, Policy: &policy, Breaker: mark}
}

// closed is an end for a reason, listed in an inbox if that is not empty.
func closed(meta p.Meta, o p.Outcome, why reason, inbox string) *p.Closed {
	return &p.Closed{Meta: meta, Outcome: o, Reason: why.code, Facts: why.factsOrNil(), Message: why.words(), Inbox: inbox}
}

func leaseLost(s p.State, meta p.Meta) *p.LeaseLost {
	return &p.LeaseLost{Meta: meta, Holder: s.Holder, Fence: s.Fence, Attempt: s.Attempt}
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}
