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
// keeps; the event keeps all of them.
const MessageBytesMax = 2 << 10

// listMax bounds the lists of agents in a State; beyond it the oldest go.
const listMax = 64

// conditionsKept is how many needs of either kind the State keeps, each cut to
// 128 bytes; the event keeps all of them.
const conditionsKept = 16

// Apply returns the state after one more fact. The given state is not changed.
// It returns ErrStale or ErrIllegal (wrapped) and the state as it was when the
// event does not apply: staleness is checked before legality.
func Apply(s p.State, e p.Event) (p.State, error) {
	rule, known := table[e.EventType()]
	if !known {
		return s, fmt.Errorf("%w: %s", ErrIllegal, e.EventType())
	}
	if s.Closed {
		return s, fmt.Errorf("%w: %s after the handoff closed", ErrStale, e.EventType())
	}
	if err := checkStale(s, e); err != nil {
		return s, err
	}
	if !slices.Contains(rule.from, s.Phase) {
		return s, fmt.Errorf("%w: %s in phase %q", ErrIllegal, e.EventType(), s.Phase)
	}
	next := s
	if rule.to != stay {
		next.Phase = rule.to
	}
	if err := rule.apply(&next, e); err != nil {
		return s, err
	}
	if at := e.When(); at.After(next.UpdatedAt) {
		next.UpdatedAt = at
	}
	return next, nil
}

// ApplyAll applies events in order, all or none.
func ApplyAll(s p.State, events []p.Event) (p.State, error) {
	next := s
	for _, e := range events {
		var err error
		if next, err = Apply(next, e); err != nil {
			return s, err
		}
	}
	return next, nil
}

// checkStale is the fence: an event names the offer, the holder, the fence or
// the attempt it is about, and is stale when that is not the current one.
func checkStale(s p.State, e p.Event) error {
	stale := func(what string, args ...any) error {
		return fmt.Errorf("%w: %s of %s", ErrStale, e.EventType(), fmt.Sprintf(what, args...))
	}
	offer, holder, fence := uint64(0), "", uint64(0)
	fenced := false
	switch e := e.(type) {
	case *p.Submitted:
		if s.Ticket != "" {
			return stale("a handoff that was submitted already")
		}
	case *p.Claimed:
		if s.Held() && s.Offer == e.Offer {
			return stale("an offer that is held")
		}
		offer = e.Offer
	case *p.Accepted:
		if s.Held() && s.Offer == e.Offer && (s.Holder != e.Holder || s.Fence != 0) {
			return stale("an offer that is held")
		}
		offer = e.Offer
	case *p.Rejected:
		offer, holder = e.Offer, e.Holder
	case *p.Conditioned:
		offer, holder = e.Offer, e.Holder
	case *p.Started:
		fence, fenced = e.Fence, true
		if fence == 0 && s.Fence == p.Self { // in the append that accepts
			fence = p.Self
		}
		if s.Phase == p.Working && fence == s.Fence {
			return stale("work that was started already")
		}
	case *p.Progressed:
		fence, fenced = e.Fence, true
	case *p.Completed:
		fence, fenced = e.Fence, true
	case *p.Failed:
		fence, fenced = e.Fence, true
	case *p.Reminded:
		fence, fenced = e.Fence, true
	case *p.LeaseLost:
		if e.Holder != s.Holder || e.Fence != s.Fence {
			return stale("holder %s", e.Holder)
		}
	case *p.Released:
		if e.Holder != s.Holder || e.Fence != s.Fence {
			return stale("holder %s", e.Holder)
		}
	case *p.RetryScheduled:
		if e.Attempt != s.Attempt {
			return stale("attempt %d", e.Attempt)
		}
	}
	if offer != 0 && offer != s.Offer {
		return stale("offer %d, the current one is %d", offer, s.Offer)
	}
	if holder != "" && holder != s.Holder || holder == "" && offer != 0 && s.Held() && !sameClaim(s, e) {
		return stale("holder %q", holder)
	}
	if fenced && (fence != s.Fence || s.Fence == 0) {
		return stale("fence %d, the current one is %d", fence, s.Fence)
	}
	return nil
}

// sameClaim lets the holder that polls go on from claimed to accepted.
func sameClaim(s p.State, e p.Event) bool {
	a, ok := e.(*p.Accepted)
	return ok && a.Holder == s.Holder && s.Fence == 0
}

func applySubmitted(s *p.State, ev p.Event) error {
	e := ev.(*p.Submitted)
	if e.Ticket == "" {
		return fmt.Errorf("%w: submitted without a ticket", ErrIllegal)
	}
	s.Ticket, s.Summary, s.Policy = e.Ticket, e.Summary, e.Policy
	s.SubmittedAt, s.PackageSeq = e.At, p.Self
	return nil
}

func applyOffered(s *p.State, ev p.Event) error {
	e := ev.(*p.Offered)
	if s.Held() {
		return fmt.Errorf("%w: offered while holder %s has it", ErrIllegal, s.Holder)
	}
	if e.Agent != s.Agent { // attempts and conditions are counted anew at each agent
		s.Attempt, s.LeasesLost, s.ConditionRounds = 0, 0, 0
		s.Tried = appendAgent(s.Tried, e.Agent)
	}
	if e.Policy != nil {
		s.Policy = *e.Policy
	}
	s.Agent, s.Offer, s.OfferedAt = e.Agent, p.Self, e.At
	s.Alternative, s.Conditions, s.RetryAt, s.TimedOut = "", nil, p.Time{}, ""
	s.AcceptedAt, s.StartedAt, s.RemindedAt = p.Time{}, p.Time{}, p.Time{}
	s.Retryable, s.RetryAfterMS = false, 0
	return nil
}

func applyClaimed(s *p.State, ev p.Event) error {
	e := ev.(*p.Claimed)
	s.Holder, s.LeaseMS, s.Fence, s.ClaimedAt = e.Holder, e.LeaseMS, 0, e.At
	return nil
}

func applyAccepted(s *p.State, ev p.Event) error {
	e := ev.(*p.Accepted)
	s.Attempt++
	s.AttemptsTotal++
	s.Holder, s.LeaseMS, s.Fence, s.AcceptedAt = e.Holder, e.LeaseMS, p.Self, e.At
	s.EstimatedCompletion, s.Progress, s.RemindedAt = e.EstimatedCompletion, nil, p.Time{}
	s.Reason, s.StuckReason = "", ""
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
	s.Progress = &progress
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
	letGo(s)
	closeAs(s, outcome, "", e.At)
	return nil
}

func applyFailed(s *p.State, ev p.Event) error {
	e := ev.(*p.Failed)
	s.Reason, s.Message = e.Code, cut(e.Message)
	s.Retryable, s.RetryAfterMS = e.Retryable, e.RetryAfterMS
	letGo(s)
	return nil
}

func applyRejected(s *p.State, ev p.Event) error {
	e := ev.(*p.Rejected)
	uncharge(s)
	s.Refused = appendAgent(s.Refused, e.Agent)
	s.Alternative = e.Alternative
	s.Reason, s.Message = e.ReasonCode, cut(e.Reason)
	letGo(s)
	return nil
}

func applyConditioned(s *p.State, ev p.Event) error {
	e := ev.(*p.Conditioned)
	uncharge(s)
	s.ConditionRounds++
	s.ConditionedAt = e.At
	s.Reason, s.Message = "condition", cut(e.Reason)
	if len(e.NeedsContext)+len(e.NeedsPermission) > 0 {
		s.Conditions = &p.Conditions{NeedsContext: cutAll(e.NeedsContext), NeedsPermission: cutAll(e.NeedsPermission), Reason: cut(e.Reason)}
	} else {
		s.Reason = "deferred"
		s.Conditions = nil
		s.RetryAt = e.At.Add(millis(e.RetryAfterMS))
	}
	letGo(s)
	return nil
}

func applyAnswered(s *p.State, ev p.Event) error {
	e := ev.(*p.Answered)
	if !e.Answer.Deny {
		s.Supplements++
		return nil
	}
	// Whoever asked and was denied cannot do it: to the routing that is a refusal.
	s.Phase = p.PhaseRejected
	s.Refused = appendAgent(s.Refused, s.Agent)
	s.Reason, s.Message, s.Conditions = "denied", cut(e.Answer.DenyReason), nil
	return nil
}

func applyRetryScheduled(s *p.State, ev p.Event) error {
	s.RetryAt = ev.(*p.RetryScheduled).Due
	return nil
}

func applyRerouted(s *p.State, ev p.Event) error {
	s.Reroutes++
	return nil
}

func applyEscalated(s *p.State, ev p.Event) error {
	e := ev.(*p.Escalated)
	s.EscalationLevel = e.Level
	s.Chain = appendAgent(s.Chain, e.From)
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
	letGo(s)
	return nil
}

func applyReleased(s *p.State, ev p.Event) error {
	if !s.Held() {
		return fmt.Errorf("%w: released and nobody holds it", ErrIllegal)
	}
	uncharge(s)
	letGo(s)
	return nil
}

func applyReminded(s *p.State, ev p.Event) error {
	s.RemindedAt = ev.When()
	return nil
}

func applyTimedOut(s *p.State, ev p.Event) error {
	e := ev.(*p.TimedOut)
	s.TimedOut, s.Reason = e.Clock, string(e.Clock)+"_timeout"
	s.Conditions = nil
	letGo(s)
	return nil
}

func applyCancelRequested(s *p.State, ev p.Event) error {
	if !s.CancelRequested {
		s.CancelRequested, s.CancelRequestedAt = true, ev.When()
	}
	return nil
}

func applyClosed(s *p.State, ev p.Event) error {
	e := ev.(*p.Closed)
	phase, ok := closedPhase[e.Outcome]
	if !ok || phase == p.Complete {
		return fmt.Errorf("%w: closed as %q", ErrIllegal, e.Outcome)
	}
	s.Phase = phase
	if e.Message != "" {
		s.Message = cut(e.Message)
	}
	letGo(s)
	closeAs(s, e.Outcome, e.Reason, e.At)
	return nil
}

func applyStuck(s *p.State, ev p.Event) error {
	s.StuckReason = cut(ev.(*p.Stuck).Reason)
	return nil
}

// closeAs is the only place that closes a handoff.
func closeAs(s *p.State, o p.Outcome, reason string, at p.Time) {
	s.Closed, s.Outcome, s.Reason, s.ClosedAt = true, o, reason, at
	s.RetryAt, s.Conditions = p.Time{}, nil
}

// letGo frees the handoff from its holder.
func letGo(s *p.State) {
	s.Holder, s.LeaseMS, s.Fence, s.ClaimedAt = "", 0, 0, p.Time{}
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
	if slices.Contains(list, agent) {
		return list
	}
	next := append(slices.Clip(slices.Clone(list)), agent)
	if len(next) > listMax {
		next = next[len(next)-listMax:]
	}
	return next
}

func cutAll(list []string) []string {
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

func cutTo(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return strings.TrimSpace(s[:most]) + "…"
}
