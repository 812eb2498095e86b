package lifecycle

import (
	"errors"
	"fmt"
	"slices"

	p "github.com/agenthandoff/handoff/protocol"
)

var (
	// ErrStale: a duplicate, or an event of an overtaken attempt. Normal; drop it quietly.
	ErrStale = errors.New("stale event")
	// ErrIllegal: an event that cannot be in this phase: a bug of its writer.
	ErrIllegal = errors.New("illegal event")
)

// Apply returns the state after one more event. The given state is not changed.
// It returns ErrStale or ErrIllegal (wrapped) and the state as it was when the
// event does not apply: staleness is checked before legality.
func Apply(s p.State, e p.Event) (p.State, error) {
	return ApplyAll(s, []p.Event{e})
}

// ApplyAll returns the state after events, which apply in order, all or none.
func ApplyAll(s p.State, events []p.Event) (p.State, error) {
	err := applyAll(&s, events)
	return s, err
}

// applyAll changes the state itself: a state is two kilobytes, and a copy shows in a profile.
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

// advance applies an event to a state. After an error the state is of no use.
func advance(s *p.State, e p.Event) error {
	kind := e.EventType()
	rule, known := table[kind]
	if !known {
		return fmt.Errorf("%w: %s", ErrIllegal, kind)
	}
	if s.Closed && rule.after == nil {
		return fmt.Errorf("%w: %s after the handoff closed", ErrStale, kind)
	}
	if s.Phase != fresh { // nothing is stale that a reader of an old "not found" writes
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
	case s.ChainOf != "":
		s.ReturnSince = s.ReturnFrom
	case s.ReturnExpected:
		s.ReturnSince = e.At
	}
	if s.Aggregate != nil { // the members of a group are its children
		s.Children = &p.Children{Count: s.Aggregate.Size, Made: p.AllBits(s.Aggregate.Size)}
	}
	openAccount(s)
	if s.Deadline.IsZero() { // nothing may stay open for ever
		s.Deadline = e.At.Add(millis(p.DeadlineDefaultMS))
	}
	return nil
}

// authorityLevel is how far up a handoff is: the length of its chain, and one more where
// it was submitted as an escalation, which begins at the first authority.
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
	s.Offer, s.OfferedAt = p.Self, e.At
	s.Alternative, s.Conditions, s.RetryAt, s.TimedOut = "", nil, p.Time{}, ""
	endAwait(s)
	s.ClaimedAt, s.AcceptedAt, s.StartedAt = p.Time{}, p.Time{}, p.Time{}
	clearReminder(s)
	s.Retryable, s.RetryAfterMS = false, 0
	return nil
}

// moveTo gives the handoff to an agent. Attempts and conditions are counted
// anew at each one, and what stood in another's queue is void.
func moveTo(s *p.State, agent string) {
	if agent == s.Agent {
		return
	}
	dropPending(s)
	s.Usage = s.Usage.Leaves(s.Agent)
	s.Agent, s.Offer, s.EstimatedCompletionMS = agent, 0, 0
	s.Attempt, s.LeasesLost, s.Retries, s.ConditionRounds, s.LapsedClaims, s.Breaker = 0, 0, 0, 0, 0, ""
	s.Tried = appendAgent(s.Tried, agent)
	if slices.ContainsFunc(s.Absent, func(a p.Absence) bool { return a.Agent == agent }) { // it is with that one again
		s.Absent = slices.DeleteFunc(slices.Clone(s.Absent), func(a p.Absence) bool { return a.Agent == agent })
	}
	endQueueClock(s)
}

func applyClaimed(s *p.State, e *p.Claimed) error {
	if e.Holder == "" {
		return fmt.Errorf("%w: claimed without a holder", ErrIllegal)
	}
	s.Holder, s.LeaseMS, s.Fence, s.ClaimedAt = e.Holder, e.LeaseMS, 0, e.At
	s.AckWithinMS = e.AckWithinMS
	receiveEnds(s)
	return nil
}

func applyAccepted(s *p.State, e *p.Accepted) error {
	if e.Holder == "" {
		return fmt.Errorf("%w: accepted without a holder", ErrIllegal)
	}
	s.Attempt++
	s.AttemptsTotal++
	if !s.Held() { // taken without a claim before it; an earlier holder's is not this one's
		s.ClaimedAt = p.Time{}
		receiveEnds(s)
	}
	beginAsking(s)
	s.Holder, s.LeaseMS, s.Fence, s.AcceptedAt = e.Holder, e.LeaseMS, p.Self, e.At
	s.EstimatedCompletion, s.EstimatedCompletionMS, s.Progress = e.EstimatedCompletion, 0, nil
	s.StartedAt, s.ProgressAt = p.Time{}, p.Time{} // of the attempt before, on the same offer
	clearReminder(s)
	s.Reason, s.StuckReason = "", ""
	s.Absent, s.LapsedClaims = nil, 0
	endQueueClock(s)
	return nil
}

func applyStarted(s *p.State, e *p.Started) error {
	s.StartedAt = e.When()
	return nil
}

func applyProgressed(s *p.State, e *p.Progressed) error {
	progress := e.Progress
	progress.Message = cut(progress.Message)
	if len(progress.Details) > MessageBytesMax { // the event keeps them
		progress.Details = nil
	}
	use(s, e.Fence, progress.Usage)
	progress.Usage = nil
	s.Progress, s.ProgressAt = &progress, e.When()
	return nil
}

func applyCompleted(s *p.State, e *p.Completed) error {
	outcome := p.OutcomeSuccess
	if e.Status == p.Partial {
		outcome = p.OutcomePartial
	}
	s.ResultSeq, s.Message, s.SetAside, s.Vote = p.Self, "", cut(e.SetAside), e.Vote
	useLast(s, e.Fence, e.Usage)
	clearHolder(s)
	if s.Barred == nil || !s.Barred.FellBack {
		closeAs(s, outcome, "", e.At)
		return nil
	}
	closeAs(s, outcome, barredReason(s.Barred.Code), e.At)
	s.Inbox = p.Human
	return nil
}

func applyFailed(s *p.State, e *p.Failed) error {
	s.Reason, s.Message = cutCode(e.Code), cut(e.Message)
	s.Retryable, s.RetryAfterMS = e.Retryable, e.RetryAfterMS
	useLast(s, e.Fence, e.Usage)
	if len(e.Result) > 0 || e.Blob != nil {
		s.ResultSeq = p.Self
	}
	endAttempt(s)
	return nil
}

func applyRejected(s *p.State, e *p.Rejected) error {
	uncharge(s)
	s.Refused = appendAgent(s.Refused, s.Agent)
	s.Alternative = cutTo(e.Alternative, p.IDBytesMax)
	s.Reason, s.Message = cutCode(e.ReasonCode), cut(e.Reason)
	endQueueClock(s)
	endProbe(s)
	endAttempt(s)
	return nil
}

func applyConditioned(s *p.State, e *p.Conditioned) error {
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
		s.RetryAt = e.At.Add(millis(e.RetryAfterMS))
	}
	endQueueClock(s)
	endProbe(s)
	endAttempt(s)
	return nil
}

func applyCancelRequested(s *p.State, e *p.CancelRequested) error {
	if !s.CancelRequested {
		s.CancelRequested, s.CancelRequestedAt = true, e.At
	}
	s.CancelReturn = s.CancelReturn || e.Return
	s.CancelChildren = s.CancelChildren || e.Children
	recordEndRequest(s, e.By, e.Reason)
	return nil
}

// recordEndRequest keeps who asked for the end, and why; the first word stands. What
// its holder says of the end is the message, and does not replace it.
func recordEndRequest(s *p.State, by, reason string) {
	if s.CancelReason == "" {
		s.CancelBy, s.CancelReason = cutTo(by, p.IDBytesMax), cut(reason)
	}
}

func applyClosed(s *p.State, e *p.Closed) error {
	phase, ok := closedPhase[e.Outcome]
	if !ok || phase == p.Complete && s.Aggregate == nil { // only a group succeeds by a decision
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

func applyStuck(s *p.State, e *p.Stuck) error {
	s.StuckReason = cut(e.Reason)
	return nil
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

// endAttempt ends the attempt of a holder that had accepted, or the claim of one that
// had not: what was to begin with its result is dropped.
func endAttempt(s *p.State) {
	if s.Fence != 0 {
		dropPending(s)
		endProbe(s)
	}
	clearHolder(s)
}

// endProbe says that the handoff no longer tries whether its agent has recovered.
func endProbe(s *p.State) {
	if s.Breaker == p.BreakerProbe {
		s.Breaker = p.BreakerCounts
	}
}

// clearHolder frees the handoff from its holder.
func clearHolder(s *p.State) {
	s.Holder, s.LeaseMS, s.Fence, s.AckWithinMS = "", 0, 0, 0
}

// uncharge takes back the attempt that an acceptance had begun: a refusal, a
// condition and a drain are no attempts.
func uncharge(s *p.State) {
	if s.Fence != 0 {
		s.Attempt--
		s.AttemptsTotal--
	}
}
