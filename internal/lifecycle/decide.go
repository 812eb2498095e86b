package lifecycle

import (
	"cmp"
	"errors"
	"slices"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// By is the author of the core's events.
const By = "supervisor"

// stepsMax bounds one Decide: no sequence of consequences is longer (lease lost, timed out,
// escalated, offered).
const stepsMax = 8

// Decide returns the next step of a handoff by d and now; it may be empty. now must not be earlier
// than the last event.
func Decide(s p.State, q Query) (Step, error) {
	t := Step{State: s}
	if err := t.decide(q.withBreakers()); err != nil {
		return Step{}, err
	}
	return t, nil
}

// step decides one consequence.
func step(s p.State, q Query) []p.Event {
	if s.Phase == fresh {
		return nil
	}
	meta := p.Meta{At: q.Now, By: By}
	if s.Closed {
		return stepClosed(s, q.Directory, meta)
	}
	if s.CancelRequested {
		return stepCancel(s, q.Directory, q.Now)
	}
	if s.Aggregate != nil {
		if events := stepGroup(s, meta); events != nil { // a clock does not change a certain outcome
			return events
		}
	}
	if s.Phase == p.AwaitingApproval {
		return stepGate(s, q, meta)
	}
	if s.Phase == p.PhaseTimeout && s.TimedOut == p.ClockDeadline {
		return stepDeadline(s, q, meta)
	}
	if s.Phase == p.PhaseRejected && s.Denied != "" && deniedEnds(s, q) { // no clock changes this end
		return []p.Event{closeDenied(s, meta)}
	}
	if hasPassed(q.Now, Deadline(s)) && s.Phase == p.AwaitingSource { // no authority begins it while its source may be working
		return []p.Event{closed(meta, p.OutcomeTimeout, because(ReasonDeadline, s), p.Human)}
	}
	if hasPassed(q.Now, Deadline(s)) {
		return []p.Event{&p.TimedOut{Meta: meta, Clock: p.ClockDeadline, Agent: s.Agent, Attempt: s.Attempt}}
	}
	if hasPassed(q.Now, returnDue(s)) {
		return []p.Event{&p.TimedOut{Meta: meta, Clock: p.ClockReturn, Agent: s.Agent, Attempt: s.Attempt}}
	}
	if s.Offer == 0 && s.Agent != "" { // it was moved, and the append held no offer
		if s.EscalationLevel > 0 {
			return []p.Event{offer(s, q, meta, s.Agent, offerMoved, nil)}
		}
		return offerOrGate(&s, q, meta, offerTo{agent: s.Agent, reason: offerMoved})
	}
	switch s.Phase {
	case p.Pending:
		return stepPending(s, q)
	case p.PhaseAccepted, p.Working:
		return stepHeld(s, q)
	case p.Conditional:
		return stepConditional(s, q)
	case p.Retrying:
		if hasPassed(q.Now, s.RetryAt) {
			if _, _, ok := q.lets(s.Agent, s.Ticket); ok {
				return []p.Event{again(s, q, meta, OfferRetry)}
			}
		}
	case p.PhaseFailed:
		return stepFailed(s, q, meta)
	case p.PhaseRejected:
		return stepRejected(s, q, meta)
	case p.PhaseTimeout:
		return stepTimeout(s, q, meta)
	}
	return nil
}

// stepCancel ends a handoff without a holder at once, and a held one when its holder is lost or the
// grace period is over.
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

// endEvent returns the requested end of a handoff: cancelled, or returned to its source. cause is
// the event that ended the wait for its worker.
func endEvent(s p.State, d *Directory, meta p.Meta, cause string) p.Event {
	why := reason{code: ReasonCancelled}
	if cause != "" {
		why.facts.Causes = []string{cause}
	}
	if s.CancelReturn {
		why.code = reasonReturned
		if budget := exhaustedBudget(&s); budget != "" && stoppedAtBudget(&s) {
			causes := why.facts.Causes
			why = exhaustion(&s, budget)
			why.facts.Causes = causes
		}
		return closed(meta, p.OutcomeRolledBack, why, sourceInbox(s, d))
	}
	return closed(meta, p.OutcomeCancelled, why, "")
}

func stepPending(s p.State, q Query) []p.Event {
	meta := p.Meta{At: q.Now, By: By}
	if s.Aggregate != nil { // its members advance it
		return nil
	}
	late := hasPassed(q.Now, queueDue(s)) && !keepsOffer(s, q) // runs until the acknowledgement, claimed or not
	if s.Held() && !late {
		return stepClaimed(s, q)
	}
	if events := goBack(s, q, meta); events != nil {
		return events
	}
	if s.Attempt >= s.Policy.MaxAttempts && !s.Held() { // a claim is first taken from its holder
		return exhausted(s, q, meta)
	}
	if s.Offer == 0 {
		return firstOffer(s, q, meta)
	}
	if late {
		return []p.Event{&p.TimedOut{Meta: meta, Clock: p.ClockQueue, Agent: s.Agent}}
	}
	if absent(s, q.Directory, q.Now) && !keepsOffer(s, q) {
		return []p.Event{&p.TimedOut{Meta: meta, Clock: p.ClockAcknowledge, Agent: s.Agent}}
	}
	return nil
}

// stepClaimed offers a claimed handoff again if it is not acknowledged in time, or its holder is
// lost. No attempt is charged. After LapsedClaimsMax claims the agent counts as absent.
func stepClaimed(s p.State, q Query) []p.Event {
	if !holderLost(s, q.Directory, q.Now) && !hasPassed(q.Now, ClaimDue(s)) {
		return nil
	}
	meta := p.Meta{At: q.Now, By: By}
	lost := claimLost(s, q.Directory, meta)
	if lapsesOut(s) && !keepsOffer(s, q) {
		return []p.Event{lost, &p.TimedOut{Meta: meta, Clock: p.ClockAcknowledge, Agent: s.Agent}}
	}
	return []p.Event{lost, again(s, q, meta, cmp.Or(lost.Reason, OfferLeaseLost))}
}

// claimLost takes a handoff from its holder, and records whether the holder is still present.
func claimLost(s p.State, d *Directory, meta p.Meta) *p.LeaseLost {
	lost := leaseLost(s, meta)
	if isClaimed(s) && !holderLost(s, d, meta.At) {
		lost.Reason = p.NotAcknowledged
	}
	return lost
}

// firstOffer makes the offer that is missing in the append of a submission.
func firstOffer(s p.State, q Query, meta p.Meta) []p.Event {
	routing, err := firstTarget(s, q)
	if gate := startGate(&s, q, routing.Choice, err, meta); gate != nil {
		return gate
	}
	if err == nil {
		return offerOrGate(&s, q, meta, offerTo{agent: routing.Choice, reason: OfferSubmitted, routing: &routing})
	}
	if errors.Is(err, errBreakerOpen) || awaitsAgent(&s.Summary, err) { // it waits, for as long as it may be open
		return nil
	}
	if hasPassed(meta.At, routableSince(s).Add(millis(s.Policy.AckTimeoutMS))) && !keepsOffer(s, q) {
		return []p.Event{&p.TimedOut{Meta: meta, Clock: p.ClockAcknowledge, Agent: s.Agent}}
	}
	return nil // the directory may still be loading
}

// firstTarget returns the agent that gets the first offer.
func firstTarget(s p.State, q Query) (p.Routing, error) {
	if routing, ok, settled := byBids(s, q, nil); ok {
		return routing, nil
	} else if settled {
		return p.Routing{}, p.Errorf(p.CodeNoAgent, "bids", "no agent that made a bid may have it now")
	}
	return routeTarget(s.Summary, q)
}

// keepsOffer reports whether the offer stays in its queue although its agent is absent or slow: the
// policy requires it, and no other agent can take it.
func keepsOffer(s p.State, q Query) bool {
	return s.Policy.OnNoTaker == p.NoTakerQueue && !escalatesAtOnce(s, q) && reroute(s, q, p.Meta{}, reason{}) == nil
}

// escalatesAtOnce reports whether a handoff without a taker is escalated at once, regardless of the
// policy: a critical one is, while there is an authority above.
func escalatesAtOnce(s p.State, q Query) bool {
	_, _, ok := nextAuthority(s, q)
	return ok && s.Priority == p.Critical
}

func stepHeld(s p.State, q Query) []p.Event {
	meta := p.Meta{At: q.Now, By: By}
	if holderLost(s, q.Directory, q.Now) {
		return reofferAfterLoss(s, q, meta)
	}
	if ms := s.Policy.ProgressTimeoutMS; ms > 0 && hasPassed(q.Now, progressSince(s).Add(millis(ms))) {
		return []p.Event{&p.TimedOut{Meta: meta, Clock: p.ClockProgress, Agent: s.Agent, Attempt: s.Attempt}}
	}
	if hasPassed(q.Now, workDue(s)) {
		return []p.Event{&p.TimedOut{Meta: meta, Clock: p.ClockWork, Agent: s.Agent, Attempt: s.Attempt}}
	}
	if hasPassed(q.Now, ReminderAt(s)) {
		return []p.Event{&p.Reminded{Meta: meta, Fence: s.Fence}}
	}
	return nil
}

func stepConditional(s p.State, q Query) []p.Event {
	meta := p.Meta{At: q.Now, By: By}
	switch {
	case isSuspended(s):
		if s.Children.Awaited.Without(s.Children.Closed) == "" {
			return []p.Event{again(s, q, meta, OfferReturn)}
		}
		return nil
	case s.ConditionRounds > s.Policy.MaxConditions:
		return escalate(s, q, meta, because(ReasonConditionsExhausted, s).withCount(s.ConditionRounds, s.Policy.MaxConditions))
	case s.Conditions == nil && hasPassed(q.Now, s.RetryAt): // deferred, or answered
		return []p.Event{again(s, q, meta, reofferReason(s))}
	case s.Conditions != nil && hasPassed(q.Now, s.ConditionedAt.Add(millis(s.Policy.ConditionTimeoutMS))):
		return []p.Event{&p.TimedOut{Meta: meta, Clock: p.ClockCondition, Agent: s.Agent}}
	}
	return nil
}

// reofferReason returns why a handoff is offered again that waited only for time.
func reofferReason(s p.State) string {
	if s.Reason == offerAnswer {
		return offerAnswer
	}
	return offerDeferred
}

// stepTimeout decides the next step after a clock has run out.
func stepTimeout(s p.State, q Query, meta p.Meta) []p.Event {
	switch s.TimedOut {
	case p.ClockWork:
		return stepOverdue(s, q, meta, s.Policy.OnTimeout, because(ReasonWorkTimeout, s).withLimit(millis(s.Policy.WorkTimeoutMS)))
	case p.ClockProgress:
		return stepOverdue(s, q, meta, s.Policy.OnTimeout, because(ReasonProgressTimeout, s).withLimit(millis(s.Policy.ProgressTimeoutMS)))
	case p.ClockReturn:
		return stepNoReturn(s, q, meta)
	case p.ClockCondition:
		return escalate(s, q, meta, because(ReasonConditionTimeout, s).withLimit(millis(s.Policy.ConditionTimeoutMS)))
	}
	why := because(ReasonAcknowledgeTimeout, s).withLimit(AckTimeout(s))
	if s.LapsedClaims >= LapsedClaimsMax {
		why = because(ReasonClaimsLapsed, s).withCount(s.LapsedClaims, LapsedClaimsMax)
	}
	if s.TimedOut == p.ClockQueue {
		why = because(reasonQueueTimeout, s).withLimit(millis(s.Policy.QueueTimeoutMS))
	}
	if s.Reason == ReasonDeadlock {
		return stepDeadlock(s, q, meta)
	}
	if escalatesAtOnce(s, q) || s.Denied != "" {
		return escalate(s, q, meta, why)
	}
	return rerouteOrNoTaker(s, q, meta, p.OutcomeTimeout, why)
}

// stepNoReturn decides the next step after the return's clock, by the package's policy. A retry of
// a handoff that no agent has begun counts as an attempt.
func stepNoReturn(s p.State, q Query, meta p.Meta) []p.Event {
	why := because(ReasonReturnTimeout, s).withLimit(millis(s.Policy.ReturnTimeoutMS))
	if s.Aggregate != nil { // it has no work of its own
		return []p.Event{closeUnfinished(s, meta, why)}
	}
	return stepOverdue(s, q, meta, s.Policy.OnReturnTimeout, why)
}

// canReoffer reports whether the handoff may be offered once more to its agent, which has neither
// refused it nor asked too often.
func canReoffer(s p.State) bool {
	return s.Agent != "" && !slices.Contains(s.Refused, s.Agent) && s.ConditionRounds <= s.Policy.MaxConditions
}

// escalated reports whether an authority has the handoff, queued or held.
func escalated(s p.State) bool {
	return len(s.Chain) > 0 && (s.Phase == p.Pending || s.Fence != 0)
}

// lateResult returns the end with a parked result, if the policy uses it; otherwise nil.
func lateResult(s p.State, meta p.Meta) p.Event {
	if s.Policy.LateResult != p.LateUse || s.LateSeq == 0 {
		return nil
	}
	return &p.LateResultUsed{Meta: meta, Seq: s.LateSeq}
}

// stepRejected looks for another taker.
func stepRejected(s p.State, q Query, meta p.Meta) []p.Event {
	if s.Denied != "" {
		return escalate(s, q, meta, reason{ReasonDenied, p.Facts{Agent: s.Denied}})
	}
	if why, ok := tooFewBids(s); ok {
		return rerouteOrNoTaker(s, q, meta, p.OutcomeRejected, why)
	}
	return rerouteOrNoTaker(s, q, meta, p.OutcomeRejected, because(reasonRefused, s))
}

// rerouteOrNoTaker offers the handoff to another agent, or applies the policy for one without a
// taker.
func rerouteOrNoTaker(s p.State, q Query, meta p.Meta, outcome p.Outcome, why reason) []p.Event {
	if events := reroute(s, q, meta, why); events != nil {
		return events
	}
	if why.code != reasonTooFewBids {
		why = notRerouted(s, why)
	}
	return noTaker(s, q, meta, outcome, why)
}

// notRerouted returns why a refused handoff goes to no other agent. An escalated handoff is never
// rerouted: only the cause is the reason.
func notRerouted(s p.State, cause reason) reason {
	switch {
	case s.EscalationLevel > 0:
		return cause
	case s.Reroutes >= s.Policy.MaxReroutes:
		return cause.causing(reasonReroutesExhausted).withCount(s.Reroutes, s.Policy.MaxReroutes)
	}
	return cause.causing(ReasonNoFitAgent)
}

// noTaker applies the policy for a handoff that no agent takes.
func noTaker(s p.State, q Query, meta p.Meta, outcome p.Outcome, why reason) []p.Event {
	switch s.Policy.OnNoTaker {
	case p.NoTakerQueue:
		if s.ReturnOf != "" && s.Phase == p.PhaseRejected { // no other agent will ever be fit for it
			return []p.Event{closed(meta, outcome, why.causing(reasonNoTaker), p.Human)}
		}
		if s.Phase == p.PhaseTimeout && s.Agent != "" { // back into the same queue
			return []p.Event{again(s, q, meta, offerNoTaker)}
		}
		return nil // refused by all: waits for a fit agent or the deadline
	case p.NoTakerReturn:
		return []p.Event{closed(meta, p.OutcomeRolledBack, why.causing(reasonNoTaker), sourceInbox(s, q.Directory))}
	case p.NoTakerClose:
		return []p.Event{closed(meta, outcome, why.causing(reasonNoTaker), "")}
	}
	if s.Group != "" && s.Overrides.OnNoTaker == nil { // its group continues without it rather than ask a person
		if _, to, ok := nextAuthority(s, q); !ok || to == p.Human {
			return []p.Event{closed(meta, outcome, why.causing(reasonNoTaker), "")}
		}
	}
	return escalate(s, q, meta, why)
}

// escalate offers the handoff to the next authority. If there is none, or a person has already
// refused it, it ends.
func escalate(s p.State, q Query, meta p.Meta, why reason) []p.Event {
	level, to, ok := nextAuthority(s, q)
	if !ok && s.Denied != "" {
		return []p.Event{closeDenied(s, meta)}
	}
	if !ok {
		outcome := p.OutcomeTimeout
		if s.Phase == p.PhaseRejected || s.Phase == p.Conditional { // not taken, and no clock ran out
			outcome = p.OutcomeRejected
		}
		refused := s.Agent == p.Human && outcome == p.OutcomeRejected && s.ReturnOf == "" // by a person
		return []p.Event{closed(meta, outcome, why.causing(reasonNoAuthority), personIf(!refused))}
	}
	return []p.Event{
		&p.Escalated{Meta: meta, Level: level, From: s.Agent, To: to, ReasonCode: why.code, Facts: why.factsOrNil(), Reason: why.words()},
		offer(s, q, meta, to, OfferEscalation, nil),
	}
}

// nextAuthority returns the next level and its authority; ok is false if there is none.
func nextAuthority(s p.State, q Query) (level int, to string, ok bool) {
	level = s.EscalationLevel + 1
	if s.Denied != "" {
		to = nextDecider(s, q)
		return level, to, to != ""
	}
	to = authorityAt(s, q, level)
	exhausted := level > s.Policy.MaxEscalations || s.Escalations >= p.EscalationsTotalMax
	return level, to, s.Agent != p.Human && !exhausted && !slices.Contains(s.Refused, to) && !q.Reserved.has(to)
}

// authorityAt returns the agent or person that an agent escalates to: its own choice while that
// leads to a new one, a person at the last level. An unfit one is skipped.
func authorityAt(s p.State, q Query, level int) string {
	if level >= s.Policy.MaxEscalations || exhaustedBudget(&s) != "" { // an agent above has no budget to work with
		return p.Human
	}
	below := s.Agent
	for range approvalsAbove {
		profile, known := q.Agent(below)
		next := profile.EscalatesTo
		if !known || next == "" {
			break
		}
		above, known := q.Agent(next)
		if !known || slices.Contains(s.Refused, next) || slices.Contains(s.Chain, next) || next == s.Agent || q.Reserved.has(next) || s.Type == p.Escalation && next == s.Source {
			break
		}
		if q.fitAbove(above, &s.Summary) {
			return next
		}
		below = next
	}
	return p.Human
}

// reroute offers the handoff to another fit agent; nil if there is none, or the limit is reached.
func reroute(s p.State, q Query, meta p.Meta, why reason) []p.Event {
	if s.Reroutes >= s.Policy.MaxReroutes {
		return nil
	}
	routing, ok := nextAgent(s, q)
	if !ok {
		return nil
	}
	return offerOrGate(&s, q, meta, offerTo{agent: routing.Choice, reason: offerReroute, routing: &routing, why: why})
}

// offer returns the event that offers the handoff to an agent, with the policy that applies there.
func offer(s p.State, q Query, meta p.Meta, agent, reason string, routing *p.Routing) p.Event {
	profile, _ := q.Agent(agent)
	policy := resolvePolicy(s.Summary, profile, q.Directory)
	mark, _, _ := q.lets(agent, s.Ticket)
	return &p.Offered{Meta: meta, Agent: agent, Reason: reason, Routing: routing, Policy: &policy, Breaker: mark}
}

// closed returns an end for a reason. A non-empty inbox lists it.
func closed(meta p.Meta, o p.Outcome, why reason, inbox string) *p.Closed {
	return &p.Closed{Meta: meta, Outcome: o, Reason: why.code, Facts: why.factsOrNil(), Message: why.words(), Inbox: inbox}
}

// personIf returns the inbox of a person if an end is to be listed there.
func personIf(listed bool) string {
	if listed {
		return p.Human
	}
	return ""
}

func leaseLost(s p.State, meta p.Meta) *p.LeaseLost {
	return &p.LeaseLost{Meta: meta, Holder: s.Holder, Fence: s.Fence, Attempt: s.Attempt}
}

// Stage is the stage of an open handoff. Times are counted by stage: the stages of its states add
// up to the time that it was open.
type Stage string

const (
	StageNone        Stage = ""            // not submitted, or closed
	StageGate        Stage = "gate"        // until the condition of its next offer is met
	StageQueue       Stage = "queue"       // until a holder claims or accepts it
	StageAcknowledge Stage = "acknowledge" // claimed, until the holder acknowledges it
	StageWork        Stage = "work"        // accepted, until that attempt ends
	StageAnswers     Stage = "answers"     // until the question of its agent is answered
	StageDeferred    Stage = "deferred"    // its agent or its source postponed it
	StageChildren    Stage = "children"    // it waits for its children, or for its members
	StageBackoff     Stage = "backoff"     // between two attempts
	StageDeciding    Stage = "deciding"    // until a supervisor decides
)

// StageOf returns the stage that a handoff is in.
func StageOf(s p.State) Stage {
	switch {
	case s.Phase == fresh, s.Closed:
		return StageNone
	case s.Fence != 0:
		return StageWork
	case s.Held():
		return StageAcknowledge
	case s.Aggregate != nil && s.Phase == p.Pending, s.Children != nil && s.Children.Awaited != "":
		return StageChildren
	}
	switch s.Phase {
	case p.AwaitingApproval:
		if s.Gate.First() == p.GateStart {
			return StageDeferred
		}
		return StageGate
	case p.Pending:
		return StageQueue
	case p.Conditional:
		if s.Conditions != nil {
			return StageAnswers
		}
		return StageDeferred
	case p.Retrying:
		return StageBackoff
	}
	return StageDeciding
}

// Wait is the condition that a handoff waits for, in one word.
type Wait string

const (
	WaitNothing         Wait = "nothing"         // it is closed
	WaitApproval        Wait = "approval"        // of State.Gate.Approver
	WaitStartAt         Wait = "start_at"        // its start, Summary.StartAt
	WaitLimit           Wait = "limit"           // a place under a key, State.Gate.Key
	waitGate            Wait = "gate"            // State.Gate.Waits, the first of which is no approval
	WaitSource          Wait = "source"          // the completion of the handoff from which it follows
	WaitMembers         Wait = "members"         // of a group
	WaitStop            Wait = "stop"            // of its holder, whose end was requested
	WaitAgent           Wait = "agent"           // a fit one
	WaitPerson          Wait = "person"          // who takes it
	WaitTaker           Wait = "taker"           // a worker of its agent; Unavailable returns the obstacle
	WaitAcknowledgement Wait = "acknowledgement" // of its claim
	WaitStart           Wait = "start"           // of the accepted work
	WaitWork            Wait = "work"            // its result
	WaitAnswer          Wait = "answer"          // to the question of its agent
	WaitChildren        Wait = "children"        // its children
	WaitTime            Wait = "time"            // State.RetryAt
	WaitDecision        Wait = "decision"        // of a supervisor
)

// WaitingFor returns the condition that a handoff waits for, by its state alone.
func WaitingFor(s p.State) Wait {
	switch {
	case s.Phase == fresh, s.Closed:
		return WaitNothing
	case s.CancelRequested && s.Held():
		return WaitStop
	case s.CancelRequested:
		return WaitDecision
	case s.Aggregate != nil && s.Phase == p.Pending:
		return WaitMembers
	case isSuspended(s):
		return WaitChildren
	}
	switch s.Phase {
	case p.AwaitingApproval:
		switch s.Gate.First() {
		case p.GateApproval:
			return WaitApproval
		case p.GateStart:
			return WaitStartAt
		case p.GateLimit:
			return WaitLimit
		case "":
			return WaitDecision
		}
		return waitGate
	case p.AwaitingSource:
		return WaitSource
	case p.Pending:
		return waitingForTaker(s)
	case p.PhaseAccepted:
		return WaitStart
	case p.Working:
		return WaitWork
	case p.Conditional:
		if s.Conditions != nil {
			return WaitAnswer
		}
		return WaitTime
	case p.Retrying:
		return WaitTime
	case p.PhaseRejected:
		if s.Policy.OnNoTaker == p.NoTakerQueue {
			return WaitAgent
		}
	}
	return WaitDecision
}

// waitingForTaker returns the condition that a pending handoff waits for.
func waitingForTaker(s p.State) Wait {
	switch {
	case s.Held():
		return WaitAcknowledgement
	case s.Agent == p.Human:
		return WaitPerson
	case s.Agent == "":
		return WaitAgent
	}
	return WaitTaker
}
