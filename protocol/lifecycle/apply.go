package lifecycle

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	p "github.com/agenthandoff/handoff/protocol"
)

var (
	// ErrStale: a duplicate, or an event of an overtaken attempt. Normal; drop it quietly.
	ErrStale = errors.New("stale event")
	// ErrIllegal: an event that cannot be in this phase. Somebody's bug.
	ErrIllegal = errors.New("illegal event")
)

// MessageBytesMax is how much of an error's or a refusal's words the State
// keeps, counted in JSON; the event keeps all of them.
const MessageBytesMax = 2 << 10

// listMax bounds the lists of agents in a State; beyond it the oldest go.
const listMax = 48

// conditionsKept is how many needs of either kind the State keeps, each cut to
// 128 bytes; the event keeps all of them.
const conditionsKept = 16

// Apply returns the state after one more fact. The given state is not changed.
// It returns ErrStale or ErrIllegal (wrapped) and the state as it was when the
// event does not apply: staleness is checked before legality.
func Apply(s p.State, e p.Event) (p.State, error) {
	next := s
	if err := advance(&next, e); err != nil {
		return s, err
	}
	return next, nil
}

// ApplyAll applies events in order, all or none.
func ApplyAll(s p.State, events []p.Event) (p.State, error) {
	next := s // once: a state is two kilobytes
	if err := Advance(&next, events); err != nil {
		return s, err
	}
	return next, nil
}

// Advance is ApplyAll in place, for who has a copy already. After an error the
// state is of no use.
func Advance(s *p.State, events []p.Event) error {
	for _, e := range events {
		if err := advance(s, e); err != nil {
			return err
		}
	}
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
	if err := checkStale(s, e); err != nil {
		return err
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

func applySubmitted(s *p.State, ev p.Event) error {
	e := ev.(*p.Submitted)
	if e.Ticket == "" {
		return fmt.Errorf("%w: submitted without a ticket", ErrIllegal)
	}
	if a := e.Summary.Aggregate; a != nil && (a.Size < 1 || a.Size > p.ChildrenMax) {
		return fmt.Errorf("%w: submitted as a group of %d", ErrIllegal, a.Size)
	}
	s.Ticket, s.Summary, s.Policy = e.Ticket, e.Summary, e.Policy
	s.SubmittedAt, s.PackageSeq = e.At, p.Self
	s.EscalationLevel = levelOf(s)
	s.Refused = slices.Clone(e.Summary.Excluded)
	switch {
	case s.AwaitsSource:
		s.Phase = p.AwaitingSource
	case s.ReturnExpected:
		s.ReturnSince = e.At
	}
	if s.Aggregate != nil { // the members of a group are its children
		s.Children = &p.Children{Count: s.Aggregate.Size, Made: p.AllBits(s.Aggregate.Size)}
	}
	if s.Deadline.IsZero() { // nothing may stay open for ever
		s.Deadline = e.At.Add(millis(p.DeadlineDefaultMS))
	}
	return nil
}

// levelOf is how far up a handoff is: the length of its chain, and one more where
// it was submitted as an escalation, which begins at the first authority.
func levelOf(s *p.State) int {
	if s.Type == p.Escalation {
		return len(s.Chain) + 1
	}
	return len(s.Chain)
}

func applyOffered(s *p.State, ev p.Event) error {
	e := ev.(*p.Offered)
	if s.Held() {
		return fmt.Errorf("%w: offered while holder %s has it", ErrIllegal, s.Holder)
	}
	if e.Agent == "" || s.Aggregate != nil {
		return fmt.Errorf("%w: offered to %q", ErrIllegal, e.Agent)
	}
	moveTo(s, e.Agent)
	if e.Policy != nil {
		s.Policy = *e.Policy
	}
	s.Offer, s.OfferedAt = p.Self, e.At
	s.Alternative, s.Conditions, s.RetryAt, s.TimedOut = "", nil, p.Time{}, ""
	awaitNothing(s)
	s.ClaimedAt, s.AcceptedAt, s.StartedAt = p.Time{}, p.Time{}, p.Time{}
	unreminded(s)
	s.Retryable, s.RetryAfterMS = false, 0
	return nil
}

// moveTo gives the handoff to an agent. Attempts and conditions are counted
// anew at each one, and what stood in another's queue is void.
func moveTo(s *p.State, agent string) {
	if agent == s.Agent {
		return
	}
	dropAfter(s)
	s.Agent, s.Offer, s.EstimatedCompletionMS = agent, 0, 0
	s.Attempt, s.LeasesLost, s.ConditionRounds = 0, 0, 0
	s.Tried = appendAgent(s.Tried, agent)
	acknowledged(s)
}

func applyClaimed(s *p.State, ev p.Event) error {
	e := ev.(*p.Claimed)
	if e.Holder == "" {
		return fmt.Errorf("%w: claimed by nobody", ErrIllegal)
	}
	s.Holder, s.LeaseMS, s.Fence, s.ClaimedAt = e.Holder, e.LeaseMS, 0, e.At
	s.AckWithinMS = e.AckWithinMS
	return nil
}

func applyAccepted(s *p.State, ev p.Event) error {
	e := ev.(*p.Accepted)
	if e.Holder == "" {
		return fmt.Errorf("%w: accepted by nobody", ErrIllegal)
	}
	s.Attempt++
	s.AttemptsTotal++
	if !s.Held() { // taken without a claim before it; an earlier holder's is not this one's
		s.ClaimedAt = p.Time{}
	}
	s.Holder, s.LeaseMS, s.Fence, s.AcceptedAt = e.Holder, e.LeaseMS, p.Self, e.At
	s.EstimatedCompletion, s.EstimatedCompletionMS, s.Progress = e.EstimatedCompletion, 0, nil
	s.StartedAt, s.ProgressAt = p.Time{}, p.Time{} // of the attempt before, on the same offer
	unreminded(s)
	s.Reason, s.StuckReason = "", ""
	acknowledged(s)
	return nil
}

func applyStarted(s *p.State, ev p.Event) error {
	s.StartedAt = ev.When()
	return nil
}

func applyProgressed(s *p.State, ev p.Event) error {
	progress := ev.(*p.Progressed).Progress
	progress.Message = cut(progress.Message)
	if len(progress.Details) > MessageBytesMax { // the event keeps them
		progress.Details = nil
	}
	s.Progress, s.ProgressAt = &progress, ev.When()
	return nil
}

func applyCompleted(s *p.State, ev p.Event) error {
	e := ev.(*p.Completed)
	outcome := p.OutcomeSuccess
	if e.Status == p.Partial {
		outcome = p.OutcomePartial
	}
	s.ResultSeq, s.Message = p.Self, ""
	s.Tokens += e.Tokens
	setFree(s)
	closeAs(s, outcome, "", e.At)
	return nil
}

func applyFailed(s *p.State, ev p.Event) error {
	e := ev.(*p.Failed)
	s.Reason, s.Message = cutCode(e.Code), cut(e.Message)
	s.Retryable, s.RetryAfterMS = e.Retryable, e.RetryAfterMS
	letGo(s)
	return nil
}

func applyRejected(s *p.State, ev p.Event) error {
	e := ev.(*p.Rejected)
	uncharge(s)
	s.Refused = appendAgent(s.Refused, s.Agent)
	s.Alternative = cutTo(e.Alternative, p.IDBytesMax)
	s.Reason, s.Message = cutCode(e.ReasonCode), cut(e.Reason)
	acknowledged(s)
	letGo(s)
	return nil
}

func applyConditioned(s *p.State, ev p.Event) error {
	e := ev.(*p.Conditioned)
	uncharge(s)
	s.ConditionRounds++
	s.ConditionedAt = e.At
	s.Reason, s.Message = "condition", cut(e.Reason)
	s.EstimatedCompletionMS = e.EstimatedCompletionMS
	if len(e.NeedsContext)+len(e.NeedsPermission) > 0 {
		s.Conditions = &p.Conditions{NeedsContext: cutAll(e.NeedsContext), NeedsPermission: cutAll(e.NeedsPermission), Reason: cut(e.Reason)}
	} else {
		s.Reason = "deferred"
		s.Conditions = nil
		s.RetryAt = e.At.Add(millis(e.RetryAfterMS))
	}
	acknowledged(s)
	letGo(s)
	return nil
}

func applyAnswered(s *p.State, ev p.Event) error {
	e := ev.(*p.Answered)
	asked := s.Phase == p.Conditional
	s.Conditions = nil // a second answer finds nothing asked
	acknowledged(s)
	if s.Held() {
		uncharge(s)
		letGo(s)
	}
	switch {
	case e.Answer.Deny: // whoever asked and was denied cannot do it: to the routing that is a refusal
		s.Phase = p.PhaseRejected
		s.Refused = appendAgent(s.Refused, s.Agent)
		s.Reason, s.Message = "denied", cut(e.Answer.DenyReason)
		return nil
	case asked:
		s.RetryAt = e.At // should no Offered follow in the append, Decide makes it
	default: // an authority has resolved an escalation: it goes on where it was
		last := len(s.Chain) - 1
		for last > 0 && (s.Chain[last] == s.Chain[last-1] || slices.Contains(s.Refused, s.Chain[last])) { // who did not want it need not carry it down
			last--
		}
		back := s.Chain[last]
		takeAuthorityTime(s, e.At)
		s.Chain = slices.Clone(s.Chain[:last])
		s.EscalationLevel = levelOf(s)
		s.Refused = withoutAgent(s.Refused, back)
		moveTo(s, back)
		s.Phase, s.Offer = p.Pending, 0
		if back == "" { // no agent had been found when it went up: it has no offer yet
			s.OfferedAt = p.Time{}
		}
	}
	s.Supplements++
	s.Reason = "answer"
	return nil
}

func applyRetryScheduled(s *p.State, ev p.Event) error {
	s.RetryAt, s.TimedOut = ev.(*p.RetryScheduled).Due, "" // what follows the time-out is decided
	return nil
}

func applyRerouted(s *p.State, ev p.Event) error {
	e := ev.(*p.Rerouted)
	undecided := s.Phase == p.PhaseRejected || s.Phase == p.PhaseTimeout
	switch {
	case s.Aggregate != nil || e.To == "":
		return fmt.Errorf("%w: rerouted to %q", ErrIllegal, e.To)
	case !e.Manual && !undecided:
		return fmt.Errorf("%w: rerouted in phase %q without being asked to", ErrIllegal, s.Phase)
	case !e.Manual:
		s.Reroutes++
		moveTo(s, e.To)
		return nil
	}
	if s.Fence != 0 {
		s.Phase = p.Pending
	}
	uncharge(s)
	acknowledged(s)
	takeAuthorityTime(s, e.At)
	letGo(s)
	s.Refused = withoutAgent(s.Refused, e.To)
	moveTo(s, e.To)
	s.Offer = 0
	if !e.Deadline.IsZero() {
		s.Deadline, s.OverdueSince = e.Deadline, p.Time{}
		if s.ReturnExpected { // its clock stood still
			s.ReturnSince = e.At
		}
	}
	return nil
}

func applyEscalated(s *p.State, ev p.Event) error {
	e := ev.(*p.Escalated)
	if e.Level != s.EscalationLevel+1 || e.To == "" || s.Aggregate != nil {
		return fmt.Errorf("%w: escalated to %q at level %d from level %d", ErrIllegal, e.To, e.Level, s.EscalationLevel)
	}
	if s.Fence != 0 { // its holder passes it up
		s.Phase, s.Reason, s.Message = p.Pending, "escalated", cut(e.Reason)
	} else if e.ReasonCode != "" && (e.Facts == nil || len(e.Facts.Causes) == 0) { // else the cause stays
		s.Reason = cutCode(e.ReasonCode)
	}
	letGo(s)
	giveAuthorityTime(s, e.At)
	s.Escalations++
	s.EscalationLevel = e.Level
	from := e.From
	if last := len(s.Chain) - 1; last >= 0 && s.Phase == p.PhaseTimeout && (s.TimedOut == p.ClockAcknowledge || s.TimedOut == p.ClockQueue) {
		from = s.Chain[last] // an authority that never took it has nothing to pass down: an answer goes past it
	}
	s.Chain = append(slices.Clone(s.Chain), from)
	moveTo(s, e.To)
	s.Offer, s.TimedOut = 0, "" // what followed the clock is decided
	return nil
}

func applyLeaseLost(s *p.State, ev p.Event) error {
	if !s.Held() {
		return fmt.Errorf("%w: lease lost and nobody holds it", ErrIllegal)
	}
	if s.Fence != 0 {
		s.LeasesLost++
		s.Reason, s.Message = "lease_lost", "the worker that had it is gone"
	}
	unclaimed(s)
	letGo(s)
	return nil
}

func applyReleased(s *p.State, ev p.Event) error {
	if !s.Held() {
		return fmt.Errorf("%w: released and nobody holds it", ErrIllegal)
	}
	uncharge(s)
	unclaimed(s)
	letGo(s)
	return nil
}

func applyTimedOut(s *p.State, ev p.Event) error {
	e := ev.(*p.TimedOut)
	decided := s.TimedOut == "" // no other clock ran out before, whose end it is
	s.TimedOut, s.Reason = e.Clock, string(e.Clock)+"_timeout"
	s.Conditions = nil
	if e.Clock == p.ClockReturn { // what follows has as long again
		s.ReturnTimeouts++
		s.ReturnSince, s.ReturnMS = e.At, 0
	}
	if e.Clock == p.ClockDeadline {
		if decided && groupGoesOn(*s, e.At) {
			s.Phase, s.TimedOut = p.Pending, ""
		}
		if s.OverdueSince.IsZero() {
			s.OverdueSince = e.At
		}
	}
	awaitNothing(s)
	dropAfter(s)
	acknowledged(s)
	letGo(s)
	return nil
}

func applyCancelRequested(s *p.State, ev p.Event) error {
	e := ev.(*p.CancelRequested)
	if !s.CancelRequested {
		s.CancelRequested, s.CancelRequestedAt = true, e.At
	}
	s.CancelReturn = s.CancelReturn || e.Return
	s.CancelChildren = s.CancelChildren || e.Children
	askedForEnd(s, e.By, e.Reason)
	return nil
}

// askedForEnd keeps who asked for the end, and why; the first word stands. What
// its holder says of the end is the message, and does not replace it.
func askedForEnd(s *p.State, by, reason string) {
	if s.CancelReason == "" {
		s.CancelBy, s.CancelReason = cutTo(by, p.IDBytesMax), cut(reason)
	}
}

func applyClosed(s *p.State, ev p.Event) error {
	e := ev.(*p.Closed)
	phase, ok := closedPhase[e.Outcome]
	if !ok || phase == p.Complete && s.Aggregate == nil { // only a group succeeds by a decision
		return fmt.Errorf("%w: closed as %q", ErrIllegal, e.Outcome)
	}
	s.Phase, s.Inbox = phase, e.Inbox
	if e.Message != "" {
		s.Message = cut(e.Message)
	}
	letGo(s)
	closeAs(s, e.Outcome, cutCode(e.Reason), e.At)
	return nil
}

func applyStuck(s *p.State, ev p.Event) error {
	s.StuckReason = cut(ev.(*p.Stuck).Reason)
	return nil
}

// closeAs is the only place that closes a handoff.
func closeAs(s *p.State, o p.Outcome, reason string, at p.Time) {
	s.Closed, s.Outcome, s.Reason, s.ClosedAt = true, o, reason, at
	if o != p.OutcomeSuccess && o != p.OutcomePartial {
		dropAfter(s)
	}
	s.RetryAt, s.Conditions = p.Time{}, nil
	acknowledged(s)
	awaitNothing(s)
}

// letGo ends the attempt of a holder that had accepted, or the claim of one that
// had not: what was to begin with its result is dropped.
func letGo(s *p.State) {
	if s.Fence != 0 {
		dropAfter(s)
	}
	setFree(s)
}

// setFree frees the handoff from its holder.
func setFree(s *p.State) {
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

// appendAgent adds to a list without touching the array under an older State.
func appendAgent(list []string, agent string) []string {
	if agent == "" || slices.Contains(list, agent) {
		return list
	}
	next := append(slices.Clip(slices.Clone(list)), agent)
	if len(next) > listMax {
		next = next[len(next)-listMax:]
	}
	return next
}

// withoutAgent is the list without an agent, in an array of its own.
func withoutAgent(list []string, agent string) []string {
	if !slices.Contains(list, agent) {
		return list
	}
	return slices.DeleteFunc(slices.Clone(list), func(a string) bool { return a == agent })
}

func cutAll(list []string) []string {
	if len(list) == 0 {
		return nil
	}
	if len(list) > conditionsKept {
		list = list[:conditionsKept]
	}
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = cutTo(s, 128)
	}
	return out
}

func cut(s string) string { return cutTo(s, MessageBytesMax) }

// cutCode bounds what should be a short machine-readable word.
func cutCode(s string) string { return cutTo(s, 128) }

// cutTo keeps the beginning of a text that takes at most so many bytes in JSON:
// it is there that StateBytesMax counts, and a control character is six of them.
func cutTo(s string, most int) string {
	const escaped = len(`\u0000`)
	if len(s) <= most/escaped {
		return s
	}
	if len(s) > most+utf8.UTFMax {
		s = s[:most+utf8.UTFMax]
	}
	s = strings.ToValidUTF8(s, "\uFFFD")
	size := 0
	for i, r := range s {
		switch {
		case strings.ContainsRune("\"\\\b\f\n\r\t", r):
			size += 2
		case r < ' ' || r == '\u2028' || r == '\u2029':
			size += escaped
		default:
			size += utf8.RuneLen(r)
		}
		if size > most {
			return strings.TrimSpace(s[:i]) + "…"
		}
	}
	return s
}
