package lifecycle

import (
	"errors"
	"maps"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// Claimant is a holder that has received an offer.
type Claimant struct {
	Agent   string
	Holder  string
	LeaseMS int64
	Offer   uint64
	// LimitKeys are the keys under which it has taken a place.
	LimitKeys []string
}

// Verdict is how a claimant may treat an offer from the queue.
type Verdict int

const (
	// Take: the offer is open, or its holder is lost; append the step of Claim, then the answer.
	Take Verdict = iota
	// Drop: the handoff is closed, or another offer is current; remove this one from the queue.
	Drop
	// Mine: this holder already has it. The offer was delivered again, or the confirmation of its
	// acceptance was lost: a holder that is not working on it continues.
	Mine
	// LetGo: another holder has it; leave the offer in the queue.
	LetGo
)

// Claim judges an offer by the state of its handoff. With Take it returns the step to append before
// the answer: the loss of the previous holder. If that ends the handoff, or no attempt is left, the
// verdict is Drop with the step to append.
func Claim(s p.State, c Claimant, q Query) (Verdict, Step, error) {
	switch {
	case s.Closed || s.Offer != c.Offer || s.Agent != c.Agent:
		return Drop, Step{State: s}, nil
	case s.Held() && s.Holder == c.Holder:
		return Mine, Step{State: s}, nil
	case s.Held() && !holderLost(s, q.Directory, q.Now) && !hasPassed(q.Now, ClaimDue(s)):
		return LetGo, Step{State: s}, nil
	case hasPassed(q.Now, Deadline(s)): // passed between two reconciles: the work no longer begins
		step, err := Decide(s, q)
		return Drop, step, err
	case s.Held() && lapsesOut(s): // a supervisor gives it to another agent
		return LetGo, Step{State: s}, nil
	case s.Held():
		return takeOver(s, c, q)
	case s.Phase != p.Pending: // refused, conditional, failed: this offer is over
		return Drop, Step{State: s}, nil
	case s.CancelRequested, c.Agent != p.Human && emptyBudget(&s) != "":
		step, err := Decide(s, q)
		return Drop, step, err
	}
	return Take, Step{State: s}, nil
}

// takeOver decides a claim on an offer whose holder is lost. The lost attempt is charged as Decide
// charges it. If no attempt is left, the next one does not begin.
func takeOver(s p.State, c Claimant, q Query) (Verdict, Step, error) {
	meta := p.Meta{At: q.Now, By: c.Holder}
	t := Step{State: s}
	if err := t.addDecided(append(estimate(&s, meta), claimLost(s, q.Directory, meta))...); err != nil {
		return Drop, Step{}, err
	}
	var end []p.Event
	switch budget := emptyBudget(&t.State); {
	case s.CancelRequested:
		end = []p.Event{endEvent(s, q.Directory, meta, causeWorkerGone)}
	case s.Fence != 0 && s.Attempt >= s.Policy.MaxAttempts:
		after := s
		after.LeasesLost++
		end = exhausted(after, q, meta)
	case budget != "":
		end = []p.Event{noAttempt(t.State, []p.Event{again(s, q, meta, OfferLeaseLost)}, budget, meta)}
	default:
		return Take, t, nil
	}
	if err := t.addDecided(end...); err != nil {
		return Drop, Step{}, err
	}
	return Drop, t, nil
}

// Acknowledge answers an offer. start means that the work begins with the acceptance.
func Acknowledge(s p.State, c Claimant, ack p.Ack, start bool, now time.Time) (Step, error) {
	meta := p.Meta{At: now, By: c.Holder}
	held := "" // set if the claimant already holds it
	if s.Holder == c.Holder {
		held = c.Holder
	}
	switch ack.Status {
	case p.AckRejected:
		return StepOf(s, &p.Rejected{Meta: meta, Offer: c.Offer, Agent: c.Agent, Holder: held,
			ReasonCode: ack.ReasonCode, Reason: ack.Reason, Alternative: ack.SuggestedAlternative})
	case p.AckConditional:
		return StepOf(s, &p.Conditioned{Meta: meta, Offer: c.Offer, Agent: c.Agent, Holder: held, Reason: ack.Reason,
			NeedsContext: ack.NeedsContext, NeedsPermission: ack.NeedsPermission, RetryAfterMS: ack.RetryAfterMS,
			EstimatedCompletionMS: ack.EstimatedCompletionMS})
	}
	if budget := emptyBudget(&s); budget != "" && c.Agent != p.Human { // used up since the claim
		return Step{}, p.Errorf(p.CodeBudget, "limits."+budget, "%s has nothing left to work with", s.Ticket)
	}
	accepted := &p.Accepted{Meta: meta, Offer: c.Offer, Agent: c.Agent, Holder: c.Holder,
		LeaseMS: c.LeaseMS, Attempt: s.Attempt + 1, LimitKeys: c.LimitKeys}
	if ack.EstimatedCompletionMS > 0 {
		accepted.EstimatedCompletion = now.Add(millis(ack.EstimatedCompletionMS))
	}
	if !start {
		return StepOf(s, accepted)
	}
	return StepOf(s, accepted, &p.Started{Meta: meta})
}

// Release puts a handoff back into the queue without charge: a drain. It is offered to the same
// agent again at once; if its end was requested it closes instead, since it has no holder. late is
// the partial result, nil without one; it is kept with the history.
func Release(s p.State, q Query, by, reason string, late *p.ResultParked) (Step, error) {
	meta := p.Meta{At: q.Now, By: by}
	t, err := StepOf(s, &p.Released{Meta: meta, Holder: s.Holder, Fence: s.Fence, Reason: reason})
	switch {
	case err != nil:
		return t, err
	case s.CancelRequested:
		err = t.add(endEvent(s, q.Directory, meta, ""))
	default:
		err = t.add(withinBudget(t.State, []p.Event{&p.Offered{Meta: meta, Agent: s.Agent, Reason: OfferReleased}}, q.Now)...)
	}
	if err == nil && late != nil && s.Fence != 0 && len(s.LateFences) < p.LateResultsMax {
		kept := *late
		kept.Meta, kept.Holder, kept.Fence, kept.Attempt = meta, s.Holder, s.Fence, s.Attempt
		err = t.add(&kept)
	}
	return t, err
}

// Reports of a holder besides its result, and of a supervisor about itself.

// Failure describes how an attempt ended without a result.
type Failure struct {
	Code       string `flag:"code" doc:"the reason as a word to count by"` // handler, panic, exit_3, …
	Message    string `flag:"reason" doc:"why"`
	Retryable  bool
	RetryAfter time.Duration `flag:"retry-after,,signed" doc:"the next attempt comes no sooner"`
	// LimitKey is a key under which the handoff has a place, and whose provider throttles. It is paused for
	// RetryAfter.
	LimitKey string   `flag:"limit-key" doc:"the {KEY} of a limit whose provider throttles: it is paused for all until the retry, 10 minutes at most"`
	Usage    *p.Usage // of the attempt, if known
}

// Validate checks the usage in a failure.
func (f Failure) Validate() error {
	if f.Usage == nil || f.Usage.IsZero() {
		return nil
	}
	return f.Usage.Validate()
}

// UnusableResult returns the failure of an attempt whose result is refused, and the refusal.
// Another attempt may do better, unless the output schema itself is unusable.
func UnusableResult(err error) (Failure, *p.Error) {
	var refusal *p.Error
	if !errors.As(err, &refusal) {
		refusal = p.Errorf(p.CodeMalformed, "result", "%v", err)
	}
	schemaUnusable := refusal.Code == p.CodeOutputSchema && refusal.Field == p.FieldOutputSchema
	return Failure{Code: string(refusal.Code), Message: refusal.Error(), Retryable: !schemaUnusable && !Bars(refusal.Code)}, refusal
}

// MalformedResult ends the attempt of a holder whose result is malformed. body keeps the submitted
// result or its address. Another attempt follows only if the policy asks for one: the work was
// done, and repeating it costs as much again.
func MalformedResult(s p.State, holder, why string, body p.Failed, now time.Time) (Step, error) {
	body.Meta, body.Fence, body.Attempt = p.Meta{At: now, By: holder}, s.Fence, s.Attempt
	body.Code, body.Message = string(p.CodeBadResult), p.CutText(why, p.FailureBytesMax)
	body.Retryable = s.Policy.OnMalformed == p.MalformedRetry
	return StepOf(s, &body)
}

// UnreadablePackage returns the answer to an offer whose package cannot be read.
func UnreadablePackage(err error) p.Ack {
	return p.Ack{Status: p.AckRejected, ReasonCode: p.ReasonUnreadable, Reason: p.CutText(err.Error(), p.FailureBytesMax)}
}

// ClaimOnly claims an offer for a holder that polls and acknowledges later, within ackWithinMS; 0
// is the handoff's own timeout.
func ClaimOnly(s p.State, c Claimant, ackWithinMS int64, now time.Time) (Step, error) {
	return StepOf(s, &p.Claimed{Meta: p.Meta{At: now, By: c.Holder}, Offer: c.Offer, Agent: c.Agent, Holder: c.Holder,
		LeaseMS: c.LeaseMS, AckWithinMS: ackWithinMS, LimitKeys: c.LimitKeys})
}

// Progress records a report of progress.
func Progress(s p.State, holder string, progress p.Progress, now time.Time) (Step, error) {
	return reported(s, &p.Progressed{Meta: p.Meta{At: now, By: holder}, Fence: s.Fence, Progress: progress})
}

// Fail ends the attempt of a holder without a result.
func Fail(s p.State, holder string, f Failure, now time.Time) (Step, error) {
	return StepOf(s, &p.Failed{Meta: p.Meta{At: now, By: holder}, Fence: s.Fence, Attempt: s.Attempt,
		Code: p.CutText(f.Code, p.NameBytesMax), Message: p.CutText(f.Message, p.FailureBytesMax),
		Retryable: f.Retryable, RetryAfterMS: f.RetryAfter.Milliseconds(), LimitKey: p.CutText(f.LimitKey, p.LimitKeyBytesMax), Usage: f.Usage})
}

// RecordStuck records that supervisors cannot process a handoff; the step is empty for a closed
// one.
func RecordStuck(s p.State, cause error, now time.Time) (Step, error) {
	if s.Closed {
		return Step{}, nil
	}
	return StepOf(s, &p.Stuck{Meta: p.Meta{At: now, By: By}, Reason: cause.Error()})
}

// SettleReturn records that the return of a closed handoff has arrived, or never will. The step is
// empty if that is already recorded.
func SettleReturn(s p.State, delivered bool, reason string, now time.Time) (Step, error) {
	if !s.ReturnedAt.IsZero() {
		return Step{}, nil
	}
	return StepOf(s, &p.Returned{Meta: p.Meta{At: now, By: By}, Delivered: delivered, Reason: reason})
}

// SlotGrace is how long a slot counts for an acceptance that is not yet in the ledger. An
// acceptance that arrives later exceeds the limit by one.
const SlotGrace = time.Minute

// Room returns how many more handoffs an agent may hold. limit is its max_concurrency; 0 is none.
func Room(limit int, slots p.Slots) int { return max(limit-len(slots), 0) }

// TakeSlot gives a holder a slot for a handoff, if the agent has room. An existing slot for the
// same handoff must have been found vacant.
func TakeSlot(slots p.Slots, limit int, ticket string, slot p.Slot) (p.Slots, bool) {
	others := len(slots)
	if _, has := slots[ticket]; has { // a holder that was thought gone may have exceeded the limit
		others--
	}
	if others >= limit {
		return slots, false
	}
	return KeepSlot(slots, ticket, slot), true
}

// KeepSlot gives a slot to a holder that already has the handoff, whatever the limit: one that was
// thought gone, or that took it by hand.
func KeepSlot(slots p.Slots, ticket string, slot p.Slot) p.Slots {
	next := maps.Clone(slots)
	if next == nil {
		next = p.Slots{}
	}
	next[ticket] = slot
	return next
}

// FreeSlot takes the slot of a handoff back from a holder. It returns false if the holder does not
// have it by this offer.
func FreeSlot(slots p.Slots, ticket string, slot p.Slot) (p.Slots, bool) {
	if !SameSlot(slots[ticket], slot) {
		return slots, false
	}
	next := maps.Clone(slots)
	delete(next, ticket)
	return next, true
}

// SameSlot reports whether two slots have the same holder and offer.
func SameSlot(a, b p.Slot) bool { return a.Holder == b.Holder && a.Offer == b.Offer }

// SlotVacant reports whether a slot of an agent no longer counts: its holder is gone, or the
// handoff, which is in the state s, is not held by that offer, and will not be within SlotGrace of
// the slot. present reports whether the holder is present.
func SlotVacant(slot p.Slot, s p.State, agent string, present bool, now time.Time) bool {
	switch {
	case !present || s.Closed || s.Offer != slot.Offer || s.Agent != agent:
		return true
	case s.Holder == slot.Holder:
		return false
	}
	return !now.Before(slot.At.Add(SlotGrace)) // the acceptance may be on its way, also from a holder that is gone
}
