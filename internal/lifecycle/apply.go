package lifecycle

import (
	"errors"
	"fmt"
	"slices"

	p "github.com/agenthandoff/handoff/protocol"
)

var (
	// ErrStale marks a duplicate, or an event of an outdated attempt. It is normal: drop the event
	// quietly.
	ErrStale = errors.New("stale event")
	// ErrIllegal marks an event that is impossible in this phase. It is a bug of its writer.
	ErrIllegal = errors.New("illegal event")
)

// ApplyAll returns the state after events. They apply in order, all or none. The given state is not
// changed. If an event does not apply, it returns a wrapped ErrStale or ErrIllegal and the unchanged
// state. Staleness is checked before legality.
func ApplyAll(s p.State, events []p.Event) (p.State, error) {
	err := applyAll(&s, events)
	return s, err
}

// applyAll changes the state in place: a state has two kilobytes, and a copy shows in a profile.
func applyAll(s *p.State, events []p.Event) error {
	next := s.Scratch() // a call through the table moves its argument to the heap
	defer next.Discard()
	for _, e := range events {
		if err := advance(next, e); err != nil {
			return err
		}
	}
	*s = *next
	return nil
}

// advance applies an event to a state. After an error the state is unusable.
func advance(s *p.State, e p.Event) error {
	kind := e.EventType()
	rule, known := table[kind]
	if !known {
		return fmt.Errorf("%w: %s", ErrIllegal, kind)
	}
	if s.Closed && rule.after == nil {
		return fmt.Errorf("%w: %s after the handoff closed", ErrStale, kind)
	}
	if s.Phase != fresh { // a writer that read an old "not found" is not stale
		if why := rule.stale(s, e); why != "" {
			return fmt.Errorf("%w: %s: %s", ErrStale, kind, why)
		}
	}
	if !rule.legal(s.Phase, s.Closed) {
		return fmt.Errorf("%w: %s in phase %q, closed %t", ErrIllegal, kind, s.Phase, s.Closed)
	}
	if rule.to != stay {
		s.Phase = rule.to
	}
	if err := rule.apply(s, e); err != nil {
		return err
	}
	if at := e.When(); at.After(s.UpdatedAt) {
		s.UpdatedAt = at
	}
	return nil
}

func applySubmitted(s *p.State, e *p.Submitted) error {
	if e.Ticket == "" {
		return fmt.Errorf("%w: submitted without a ticket", ErrIllegal)
	}
	if a := e.Summary.Aggregate; a != nil && (a.Size < 1 || a.Size > p.ChildrenMax) {
		return fmt.Errorf("%w: submitted as a group of %d", ErrIllegal, a.Size)
	}
	s.Ticket, s.Summary, s.Policy = e.Ticket, e.Summary, e.Policy
	s.SubmittedAt, s.PackageSeq = e.At, p.Self
	s.EscalationLevel = authorityLevel(s)
	s.Refused = slices.Clone(e.Summary.Excluded)
	switch {
	case s.AwaitsSource:
		s.Phase = p.AwaitingSource
	case s.ChainOf != "" && !s.ReturnFrom.IsZero():
		s.ReturnSince = clocksFrom(&s.Summary, s.ReturnFrom)
	case s.ChainOf == "" && s.ReturnExpected:
		s.ReturnSince = clocksFrom(&s.Summary, e.At)
	}
	if s.Aggregate != nil { // the members of a group are its children
		s.Children = &p.Children{Count: s.Aggregate.Size, Made: p.AllBits(s.Aggregate.Size)}
	}
	openAccount(s)
	if s.Deadline.IsZero() { // no handoff may stay open for ever
		s.Deadline = clocksFrom(&s.Summary, e.At).Add(millis(p.DeadlineDefaultMS))
	}
	return nil
}

// authorityLevel returns the number of authorities that a handoff has passed on its way up: the
// length of its chain, plus one if it was submitted as an escalation, which begins at the first
// authority.
func authorityLevel(s *p.State) int {
	if s.Type == p.Escalation {
		return len(s.Chain) + 1
	}
	return len(s.Chain)
}

func applyOffered(s *p.State, e *p.Offered) error {
	if s.Held() {
		return fmt.Errorf("%w: offered while holder %s has it", ErrIllegal, s.Holder)
	}
	if e.Agent == "" || s.Aggregate != nil {
		return fmt.Errorf("%w: offered to %q", ErrIllegal, e.Agent)
	}
	if err := checkBehindGate(s, e.Agent); err != nil {
		return err
	}
	s.Gate = nil
	moveTo(s, e.Agent)
	if e.Breaker != "" {
		s.Breaker = e.Breaker
	}
	if e.Policy != nil {
		s.Policy = *e.Policy
	}
	beginOffer(s, e.At)
	return nil
}

// beginOffer begins an offer, which ends the waits of the one before.
func beginOffer(s *p.State, at p.Time) {
	s.Offer, s.OfferedAt = p.Self, at
	s.Alternative, s.Conditions, s.RetryAt, s.TimedOut = "", nil, p.Time{}, ""
	endAwait(s)
	s.ClaimedAt, s.AcceptedAt, s.StartedAt = p.Time{}, p.Time{}, p.Time{}
	clearReminder(s)
	s.Retryable, s.RetryAfterMS = false, 0
}

// moveTo moves the handoff to an agent. Attempts and conditions restart at each agent, and the plans
// for another agent's queue are void.
func moveTo(s *p.State, agent string) {
	if agent == s.Agent {
		return
	}
	dropPending(s)
	s.Usage = s.Usage.Leaves(s.Agent)
	s.Agent, s.Offer, s.EstimatedCompletionMS = agent, 0, 0
	s.Attempt, s.LeasesLost, s.Retries, s.ConditionRounds, s.LapsedClaims, s.Breaker = 0, 0, 0, 0, 0, ""
	s.Tried = appendAgent(s.Tried, agent)
	if slices.ContainsFunc(s.Absent, func(a p.Absence) bool { return a.Agent == agent }) { // it is with that agent again
		s.Absent = slices.DeleteFunc(slices.Clone(s.Absent), func(a p.Absence) bool { return a.Agent == agent })
	}
	endQueueClock(s)
}

func applyClaimed(s *p.State, e *p.Claimed) error {
	if e.Holder == "" {
		return fmt.Errorf("%w: claimed without a holder", ErrIllegal)
	}
	s.Holder, s.LeaseMS, s.Fence, s.ClaimedAt = e.Holder, e.LeaseMS, 0, e.At
	s.AckWithinMS, s.LimitKeys = e.AckWithinMS, e.LimitKeys
	receiveEnds(s)
	return nil
}

func applyAccepted(s *p.State, e *p.Accepted) error {
	if e.Holder == "" {
		return fmt.Errorf("%w: accepted without a holder", ErrIllegal)
	}
	s.Attempt++
	s.AttemptsTotal++
	if !s.Held() { // accepted without a claim: drop an earlier holder's
		s.ClaimedAt, s.LimitKeys = p.Time{}, e.LimitKeys
		receiveEnds(s)
	}
	beginAsking(s)
	s.Holder, s.LeaseMS, s.Fence, s.AcceptedAt = e.Holder, e.LeaseMS, p.Self, e.At
	s.EstimatedCompletion, s.EstimatedCompletionMS, s.Progress = e.EstimatedCompletion, 0, nil
	s.StartedAt, s.ProgressAt = p.Time{}, p.Time{} // of the previous attempt on the same offer
	clearReminder(s)
	s.Reason, s.StuckReason = "", ""
	s.Absent, s.LapsedClaims = nil, 0
	endQueueClock(s)
	return nil
}

func applyStarted(s *p.State, e *p.Started) {
	s.StartedAt = e.When()
}

func applyProgressed(s *p.State, e *p.Progressed) {
	progress := e.Progress
	progress.Message = cut(progress.Message)
	if len(progress.Details) > messageBytesMax { // the event keeps them
		progress.Details = nil
	}
	use(s, e.Fence, progress.Usage)
	progress.Usage = nil
	s.Progress, s.ProgressAt = &progress, e.When()
}

func applyCompleted(s *p.State, e *p.Completed) {
	outcome := p.OutcomeSuccess
	if e.Status == p.Partial {
		outcome = p.OutcomePartial
	}
	s.ResultSeq, s.Message, s.SetAside, s.Vote = p.Self, "", cut(e.SetAside), e.Vote
	useLast(s, e.Fence, e.Usage)
	clearHolder(s)
	if s.Barred == nil || !s.Barred.FellBack {
		closeAs(s, outcome, "", e.At)
		return
	}
	closeAs(s, outcome, barredReason(s.Barred.Code), e.At)
	s.Inbox = p.Human
}

func applyFailed(s *p.State, e *p.Failed) {
	s.Reason, s.Message = cutCode(e.Code), cut(e.Message)
	s.Retryable, s.RetryAfterMS = e.Retryable, e.RetryAfterMS
	useLast(s, e.Fence, e.Usage)
	if len(e.Result) > 0 || e.Blob != nil {
		s.ResultSeq = p.Self
	}
	endAttempt(s)
}

func applyRejected(s *p.State, e *p.Rejected) {
	uncharge(s)
	s.Refused = appendAgent(s.Refused, s.Agent)
	s.Alternative = cutTo(e.Alternative, p.IDBytesMax)
	s.Reason, s.Message = cutCode(e.ReasonCode), cut(e.Reason)
	endQueueClock(s)
	endProbe(s)
	endAttempt(s)
}

func applyConditioned(s *p.State, e *p.Conditioned) {
	uncharge(s)
	s.ConditionRounds++
	s.LapsedClaims = 0
	s.ConditionedAt = e.At
	s.Reason, s.Message = "condition", cut(e.Reason)
	s.EstimatedCompletionMS = e.EstimatedCompletionMS
	if len(e.NeedsContext)+len(e.NeedsPermission) > 0 {
		s.Absent = nil // its agent has taken it up
		s.Conditions = &p.Conditions{Question: ask(s), NeedsContext: cutAll(e.NeedsContext), NeedsPermission: cutAll(e.NeedsPermission), Reason: cut(e.Reason)}
	} else {
		s.Reason = "deferred"
		s.Conditions = nil
		s.RetryAt = e.At.Add(later(s.Ticket, s.ConditionRounds, s.Policy.BackoffSpreadPct, millis(e.RetryAfterMS)))
	}
	endQueueClock(s)
	endProbe(s)
	endAttempt(s)
}

func applyCancelRequested(s *p.State, e *p.CancelRequested) {
	if !s.CancelRequested {
		s.CancelRequested, s.CancelRequestedAt = true, e.At
	}
	s.CancelReturn = s.CancelReturn || e.Return
	s.CancelChildren = s.CancelChildren || e.Children
	recordEndRequest(s, e.By, e.Reason)
}

// recordEndRequest records the requester of the end and the reason; only the first request counts.
// The holder's own words about the end are the message and do not replace the reason.
func recordEndRequest(s *p.State, by, reason string) {
	if s.CancelReason == "" {
		s.CancelBy, s.CancelReason = cutTo(by, p.IDBytesMax), cut(reason)
	}
}

func applyClosed(s *p.State, e *p.Closed) error {
	phase, ok := closedPhase[e.Outcome]
	if !ok || phase == p.Complete && s.Aggregate == nil && e.Reason != ReasonLedgerDamaged { // a decision makes only groups succeed
		return fmt.Errorf("%w: closed as %q", ErrIllegal, e.Outcome)
	}
	s.Phase, s.Inbox = phase, e.Inbox
	if e.Message != "" {
		s.Message = cut(e.Message)
	}
	endAttempt(s)
	closeAs(s, e.Outcome, cutCode(e.Reason), e.At)
	return nil
}

func applyStuck(s *p.State, e *p.Stuck) {
	s.StuckReason = cut(e.Reason)
}

// closeAs is the only place that closes a handoff.
func closeAs(s *p.State, o p.Outcome, reason string, at p.Time) {
	s.Closed, s.Outcome, s.Reason, s.ClosedAt = true, o, reason, at
	if o != p.OutcomeSuccess && o != p.OutcomePartial {
		dropPending(s)
	}
	if s.CallOf != "" { // no person is asked about a call, since others bid
		s.Inbox = ""
	}
	s.RetryAt, s.Conditions, s.Gate = p.Time{}, nil, nil
	endQueueClock(s)
	endAwait(s)
}

// endAttempt ends the attempt of a holder that had accepted, or the claim of one that had not.
// Handoffs that were to begin with its result are dropped.
func endAttempt(s *p.State) {
	if s.Fence != 0 {
		dropPending(s)
		endProbe(s)
	}
	clearHolder(s)
}

// endProbe records that the handoff no longer tests whether its agent has recovered.
func endProbe(s *p.State) {
	if s.Breaker == p.BreakerProbe {
		s.Breaker = p.BreakerCounts
	}
}

// clearHolder removes the holder from the handoff.
func clearHolder(s *p.State) {
	s.Holder, s.LeaseMS, s.Fence, s.AckWithinMS, s.LimitKeys = "", 0, 0, 0, nil
}

// uncharge removes the attempt that an acceptance began: a refusal, a condition and a drain do not
// count as attempts.
func uncharge(s *p.State) {
	if s.Fence != 0 {
		s.Attempt--
		s.AttemptsTotal--
	}
}

// Turns: an answer, the next attempt, another agent, an authority, a lost holder.

func applyAnswered(s *p.State, e *p.Answered) {
	asked := s.Phase == p.Conditional
	s.Conditions = nil // a second answer finds no question
	endQueueClock(s)
	if s.Held() {
		uncharge(s)
		endAttempt(s)
	}
	switch {
	case e.Answer.Deny:
		deny(s, e.Answer)
		return
	case asked:
		s.RetryAt = e.At // if no Offered follows in the append, Decide makes it
	default: // an authority has resolved an escalation: the handoff goes back to the agent below
		last := len(s.Chain) - 1
		for last > 0 && (s.Chain[last] == s.Chain[last-1] || slices.Contains(s.Refused, s.Chain[last])) { // skip an authority that refused it
			last--
		}
		back := s.Chain[last]
		takeAuthorityTime(s, e.At)
		s.Chain = slices.Clone(s.Chain[:last])
		s.EscalationLevel = authorityLevel(s)
		askAuthority(s)
		s.Refused = withoutAgent(s.Refused, back)
		moveTo(s, back)
		s.Phase, s.Offer = p.Pending, 0
		if back == "" { // it went up before an agent was found: it has no offer yet, and its target may be a person
			s.OfferedAt, s.Refused = p.Time{}, withoutAgent(s.Refused, p.Human)
		}
	}
	s.Supplements++
	s.Reason, s.Denied, s.Absent = "answer", "", nil
}

func applyRetryScheduled(s *p.State, e *p.RetryScheduled) {
	if s.TimedOut == p.ClockReturn { // the retry gets the full time again
		s.ReturnSince = e.Due
	}
	s.RetryAt, s.TimedOut = e.Due, "" // the reaction to the time-out is decided
	s.Retries++
}

func applyRerouted(s *p.State, e *p.Rerouted) error {
	undecided := s.Phase == p.PhaseRejected || s.Phase == p.PhaseTimeout || s.Phase == p.AwaitingApproval ||
		e.ReasonCode == ReasonBreakerOpen && !s.Held()
	if first := s.Gate.First(); e.Manual && (first == p.GateStart || first == p.GateLimit) { // the next offer meets both again
		s.Gate, s.Phase = nil, p.Pending
	}
	if err := checkBehindGate(s, e.To); err != nil {
		return err
	}
	switch {
	case e.ReasonCode == ReasonAgentBack && !e.Manual && !s.Held() && s.Phase == p.Pending:
		return applyGoneBack(s, e)
	case s.Aggregate != nil || e.To == "":
		return fmt.Errorf("%w: rerouted to %q", ErrIllegal, e.To)
	case !e.Manual && !undecided:
		return fmt.Errorf("%w: rerouted in phase %q without being asked to", ErrIllegal, s.Phase)
	case !e.Manual:
		recordAbsence(s, e.At)
		s.Reroutes++
		moveTo(s, e.To)
		return nil
	}
	if s.Fence != 0 {
		s.Phase = p.Pending
	}
	uncharge(s)
	endQueueClock(s)
	takeAuthorityTime(s, e.At)
	endAttempt(s)
	s.Refused, s.Denied = withoutAgent(s.Refused, e.To), ""
	s.Absent, s.Override = nil, nil
	if len(e.Override) > 0 {
		s.Override = &p.Override{Agent: e.To, By: e.By, Rules: e.Override}
	}
	if s.Reason == ReasonUndelivered {
		s.Reason, s.Message = "", ""
	}
	moveTo(s, e.To)
	s.Offer = 0
	if !e.Deadline.IsZero() {
		s.Deadline, s.OverdueSince = e.Deadline, p.Time{}
		if !s.ReturnSince.IsZero() { // its clock was stopped
			s.ReturnSince = e.At
		}
	}
	return nil
}

func applyEscalated(s *p.State, e *p.Escalated) error {
	if e.Level != s.EscalationLevel+1 || e.To == "" || s.Aggregate != nil {
		return fmt.Errorf("%w: escalated to %q at level %d from level %d", ErrIllegal, e.To, e.Level, s.EscalationLevel)
	}
	recordAbsence(s, e.At)
	if s.Fence != 0 { // its holder passes it up
		s.Phase, s.Reason, s.Message = p.Pending, reasonEscalated, cut(e.Reason)
	} else if e.ReasonCode != "" && (e.Facts == nil || len(e.Facts.Causes) == 0) { // else the cause stays
		s.Reason = cutCode(e.ReasonCode)
	}
	if e.ReasonCode == ReasonUndelivered { // no earlier event records the reason
		s.Message, s.Absent = cut(e.Reason), []p.Absence{{}}
	}
	endAttempt(s)
	giveAuthorityTime(s, e)
	s.Escalations++
	s.EscalationLevel = e.Level
	from := e.From
	if last := len(s.Chain) - 1; last >= 0 && s.Phase == p.PhaseTimeout && (s.TimedOut == p.ClockAcknowledge || s.TimedOut == p.ClockQueue) {
		from = s.Chain[last] // an authority that never took it has nothing to pass down: an answer skips it
	}
	s.Chain = append(slices.Clone(s.Chain), from)
	askAuthority(s)
	if s.Denied != "" { // a decider is asked once
		s.Refused = appendAgent(s.Refused, e.From)
	}
	moveTo(s, e.To)
	s.Offer, s.TimedOut = 0, "" // the reaction to the clock is decided
	return nil
}

func applyLeaseLost(s *p.State, e *p.LeaseLost) error {
	if !s.Held() {
		return fmt.Errorf("%w: lease lost without a holder", ErrIllegal)
	}
	if s.Fence != 0 {
		s.LeasesLost++
		s.Retries++
		s.Reason, s.Message = "lease_lost", "the worker that had it is gone"
	} else {
		s.LapsedClaims++
	}
	endClaim(s)
	endAttempt(s)
	return nil
}

func applyReleased(s *p.State, e *p.Released) error {
	if !s.Held() {
		return fmt.Errorf("%w: released without a holder", ErrIllegal)
	}
	uncharge(s)
	endClaim(s)
	endAttempt(s)
	s.LapsedClaims = 0
	return nil
}

func applyTimedOut(s *p.State, e *p.TimedOut) {
	if e.Clock == p.ClockReturn { // the next step gets the full time again
		waits := waitsOn(s)
		s.ReturnTimeouts++
		s.ReturnSince, s.ReturnMS = e.At, 0
		if waits {
			return
		}
	}
	s.Phase, s.TimedOut, s.Reason = p.PhaseTimeout, e.Clock, string(e.Clock)+"_timeout"
	if e.Clock == p.ClockAcknowledge && s.LapsedClaims >= LapsedClaimsMax {
		s.Reason = ReasonClaimsLapsed
	}
	s.Conditions, s.Gate = nil, nil
	endProbe(s)
	if e.Clock == p.ClockDeadline && s.Aggregate == nil && s.OverdueSince.IsZero() {
		s.OverdueSince = e.At
	}
	endAwait(s)
	dropPending(s)
	endQueueClock(s)
	endAttempt(s)
}

// Clocks of a holder: its reminders and extensions, and the queue's clock.

func applyReminded(s *p.State, e *p.Reminded) {
	s.RemindedAt = e.When()
}

// applyExtended sets the work's clock, once per attempt and never past the clocks of those who
// wait. The holder is reminded of the new limit too.
func applyExtended(s *p.State, e *p.Extended) error {
	due := workDue(*s)
	if last, _ := waiterLimit(*s); due.IsZero() || !e.Until.After(due) || e.Until.After(last) {
		return fmt.Errorf("%w: extended until %s", ErrIllegal, e.Until)
	}
	s.ExtendedAt, s.ExtendedUntil, s.RemindedAt = e.At, e.Until, p.Time{}
	return nil
}

// clearReminder clears the reminder and the extension of an earlier attempt.
func clearReminder(s *p.State) {
	s.RemindedAt, s.ExtendedAt, s.ExtendedUntil = p.Time{}, p.Time{}, p.Time{}
}

// endClaim keeps the queue's clock running when a claim ends without an acknowledgement: the next
// offer is not the first.
func endClaim(s *p.State) {
	if s.Fence == 0 && s.QueuedSince.IsZero() {
		s.QueuedSince = s.OfferedAt
	}
}

// endQueueClock ends the queue's clock. The next offer begins another.
func endQueueClock(s *p.State) { s.QueuedSince, s.AckWithinMS = p.Time{}, 0 }

// Children: the hand-offs of a handoff, its waits for them, and their ends.

// own gives the state a copy of one of its parts, which it may change.
func own[T any](part **T) *T {
	copied := new(T)
	if *part != nil {
		*copied = **part
	}
	*part = copied
	return copied
}

// beginAsking begins an attempt, which has asked for no child yet.
func beginAsking(s *p.State) {
	if s.Children != nil && s.Children.Asked != "" {
		own(&s.Children).Asked = ""
	}
}

// receiveEnds records that a worker receives the ends of all closed children with its claim.
func receiveEnds(s *p.State) {
	if s.Children != nil && s.Children.Closed.Without(s.Children.Received) != "" {
		own(&s.Children).Received = s.Children.Closed
	}
}

// endAwait ends the wait for children.
func endAwait(s *p.State) {
	if s.Children != nil && s.Children.Awaited != "" {
		own(&s.Children).Awaited = ""
	}
}

func applyHandedOff(s *p.State, e *p.HandedOff) error {
	if e.N < 0 || e.N >= p.ChildrenMax || e.Ticket == "" {
		return fmt.Errorf("%w: handed off as child %d, ticket %q", ErrIllegal, e.N, e.Ticket)
	}
	c := own(&s.Children)
	if e.Cell != "" {
		if n, taken := c.ByCell(e.Cell); taken || len(e.Cell) != len(p.ChildKey{}.Cell(0)) {
			return fmt.Errorf("%w: handed off as child %d with the key of child %d", ErrIllegal, e.N, n)
		}
		c.SetCell(e.N, e.Cell)
	}
	c.Made, c.Count, c.Asked = c.Made.With(e.N), max(c.Count, e.N+1), c.Asked.With(e.N)
	if e.After {
		c.After = c.After.With(e.N)
	}
	if e.Returns {
		c.Returning = c.Returning.With(e.N)
	}
	if e.Goto {
		if c.Next != 0 {
			return fmt.Errorf("%w: the chain goes on with child %d, and with child %d", ErrIllegal, c.Next-1, e.N)
		}
		c.Next = e.N + 1
	}
	if e.Undelivered != "" {
		c.Undelivered = c.Undelivered.With(e.N)
	}
	setAside(s, e)
	return nil
}

func applyAdopted(s *p.State, e *p.Adopted) error {
	c := own(&s.Children)
	adopted := p.Bits("").With(e.Children...)
	if adopted == "" || adopted.Without(c.Made) != "" || adopted.And(c.Dropped) != "" {
		return fmt.Errorf("%w: adopts children %v, which it has not, or that were dropped", ErrIllegal, e.Children)
	}
	c.Asked = c.Asked.Or(adopted)
	return nil
}

func applySuspended(s *p.State, e *p.Suspended) error {
	c := own(&s.Children)
	awaited := p.Bits("").With(e.Children...)
	if awaited.Without(c.Received) == "" || awaited.Without(c.Made) != "" || awaited.And(c.After) != "" {
		return fmt.Errorf("%w: suspended for children %v: some do not exist, have already reported their ends, or begin only with the result", ErrIllegal, e.Children)
	}
	uncharge(s)
	c.Awaited = awaited
	s.ConditionedAt, s.Reason, s.Message = e.At, "awaiting_returns", ""
	s.Conditions, s.RetryAt = nil, p.Time{}
	// The same attempt continues: handoffs that begin with its result stay.
	endProbe(s)
	clearHolder(s)
	return nil
}

// dropPending drops the handoffs that were to begin with the result of an attempt that ended
// without a result.
func dropPending(s *p.State) {
	if c := s.Children; c != nil && (c.After != "" || c.Next != 0) {
		c = own(&s.Children)
		c.Dropped, c.After, c.Next = c.Dropped.Or(c.After), "", 0
	}
}

// applySourceCompleted begins a handoff that awaited its source, and starts the clock of its
// return.
func applySourceCompleted(s *p.State, e *p.SourceCompleted) {
	if s.ReturnExpected {
		s.ReturnSince = e.When()
	}
}

func applyChildrenClosed(s *p.State, e *p.ChildrenClosed) {
	c := own(&s.Children)
	for _, child := range e.Children {
		if !c.Made.Has(child.N) || c.Closed.Has(child.N) {
			continue
		}
		c.Closed = c.Closed.With(child.N)
		settleChild(s, child)
		switch child.Outcome {
		case p.OutcomeSuccess, p.OutcomePartial:
			if !votesAgainst(s, child) {
				c.Succeeded = c.Succeeded.With(child.N)
			}
		case p.OutcomeCancelled:
			c.Cancelled = c.Cancelled.With(child.N)
		}
	}
}

// Interventions: an agent takes a handoff, or rolls it back.

func applyTaken(s *p.State, e *p.Taken) error {
	if e.Agent == "" || e.Holder == "" || s.Aggregate != nil {
		return fmt.Errorf("%w: taken by holder %q of agent %q", ErrIllegal, e.Holder, e.Agent)
	}
	if s.Gate != nil && s.Gate.First() != p.GateLimit && (s.Gate.First() != p.GateBudget || e.Agent != p.Human) {
		return fmt.Errorf("%w: taken by %q from behind a gate that waits for %v", ErrIllegal, e.Agent, s.Gate.Waits)
	}
	s.Gate = nil
	s.Refused = withoutAgent(s.Refused, e.Agent)
	moveTo(s, e.Agent)
	dropPending(s)
	s.Attempt, s.LeasesLost, s.Retries, s.Denied = 0, 0, 0, ""
	clearHolder(s)
	beginOffer(s, e.At)
	return applyAccepted(s, &p.Accepted{Meta: e.Meta, Holder: e.Holder, LeaseMS: e.LeaseMS})
}

func applyRolledBack(s *p.State, e *p.RolledBack) {
	if len(e.Result) > 0 || e.Blob != nil {
		s.ResultSeq = p.Self
	}
	useLast(s, e.Fence, e.Usage)
	s.Message, s.Inbox = cut(e.Reason), e.Inbox
	if e.Fence == 0 {
		recordEndRequest(s, e.By, e.Reason)
	}
	endAttempt(s)
	reason := reasonReturned
	if stoppedAtBudget(s) {
		reason = ReasonBudgetExhausted
	}
	closeAs(s, p.OutcomeRolledBack, reason, e.At)
}

// Late results.

func applyResultParked(s *p.State, e *p.ResultParked) error {
	if e.Fence == 0 || e.Fence == s.Fence || s.Aggregate != nil {
		return fmt.Errorf("%w: a result parked under fence %d, which is not a lost one", ErrIllegal, e.Fence)
	}
	s.LateFences = append(slices.Clone(s.LateFences), e.Fence)
	if e.Agent == "" || e.Agent == s.Agent {
		use(s, e.Fence, e.Usage)
	} else if e.Usage != nil { // another agent now has the handoff, and has not used that
		var more p.Usage
		s.Usage, more = s.Usage.AddFor(e.Agent, e.Fence, *e.Usage)
		charge(s, more)
	}
	if e.Malformed == "" {
		s.LateSeq, s.LateStatus = p.Self, e.Status
		s.LateVote, s.LateSetAside = e.Vote, cut(e.SetAside)
	}
	return nil
}

func applyLateResultUsed(s *p.State, e *p.LateResultUsed) error {
	if s.LateSeq == 0 || s.Held() {
		return fmt.Errorf("%w: a late result used, and there is none, or a holder is at work", ErrIllegal)
	}
	outcome := p.OutcomeSuccess
	if s.LateStatus == p.Partial {
		outcome = p.OutcomePartial
	}
	s.ResultSeq, s.Message, s.SetAside, s.Vote = s.LateSeq, "", s.LateSetAside, s.LateVote
	dropPending(s)
	closeAs(s, outcome, "late_result", e.At)
	return nil
}

// After the end.

func applyReturnSent(s *p.State, e *p.ReturnSent) error {
	if !hasReturnDue(*s) || e.Ticket == "" {
		return fmt.Errorf("%w: a return sent that is not expected", ErrIllegal)
	}
	s.ReturnTicket = e.Ticket
	return nil
}

func applyReturned(s *p.State, e *p.Returned) error {
	if !hasReturnDue(*s) {
		return fmt.Errorf("%w: returned, and no return is expected", ErrIllegal)
	}
	s.ReturnedAt = e.At
	if e.Delivered {
		s.Phase = p.PhaseReturned
	}
	if e.Inbox != "" {
		s.Inbox = e.Inbox
	}
	return nil
}

func applyRedriven(s *p.State, e *p.Redriven) error {
	if e.Ticket == "" || s.Outcome == p.OutcomeSuccess || s.Outcome == p.OutcomePartial { // a success whose return has arrived is in phase returned
		return fmt.Errorf("%w: redriven as %q after outcome %s", ErrIllegal, e.Ticket, s.Outcome)
	}
	s.RedrivenAs, s.Inbox = e.Ticket, ""
	return nil
}

func applyDismissed(s *p.State, _ *p.Dismissed) {
	s.Inbox = ""
}
