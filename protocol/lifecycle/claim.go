package lifecycle

import (
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// Claimant is a holder with an offer in its hands.
type Claimant struct {
	Agent   string
	Holder  string
	LeaseMS int64
	Offer   uint64
}

// Verdict is what a claimant may do with an offer that the queue gave it.
type Verdict int

const (
	// Take: the offer stands, or its holder is gone; append what Claim says, then the answer.
	Take Verdict = iota
	// Drop: the handoff is closed, or another offer is current; remove this one from the queue.
	Drop
	// Mine: this holder has it already. The offer is delivered again, or the answer to the
	// holder's acceptance was lost: a holder that does not work on it goes on with it.
	Mine
	// LetGo: another holder has it; leave the offer alone.
	LetGo
)

// Claim judges an offer by the state of its handoff. With Take comes the step that
// must go before the answer: the loss of the holder before. Where that ends the
// handoff, or no attempt is left, the verdict is Drop with the step to append.
func Claim(s p.State, c Claimant, d *Directory, now time.Time) (Verdict, Step) {
	switch {
	case s.Closed || s.Offer != c.Offer || s.Agent != c.Agent:
		return Drop, Step{State: s}
	case s.Held() && s.Holder == c.Holder:
		return Mine, Step{State: s}
	case s.Held() && !holderLost(s, d, now) && !hasPassed(now, ClaimDue(s)):
		return LetGo, Step{State: s}
	case hasPassed(now, Deadline(s)): // passed between two reconciles: the work is not begun any more
		return Drop, Decide(s, d, now)
	case s.Held() && lapsesOut(s): // a supervisor gives it to another agent
		return LetGo, Step{State: s}
	case s.Held():
		return takeOver(s, c, d, now)
	case s.Phase != p.Pending: // refused, conditional, failed: this offer is over
		return Drop, Step{State: s}
	case s.CancelRequested:
		return Drop, Decide(s, d, now)
	}
	return Take, Step{State: s}
}

// takeOver is the claim of a successor on an offer whose holder is gone. The lost attempt is charged
// as Decide charges it, and with nothing left the next one does not begin.
func takeOver(s p.State, c Claimant, d *Directory, now time.Time) (Verdict, Step) {
	meta := p.Meta{At: now, By: c.Holder}
	t := Step{State: s}
	t.mustAdd(append(estimate(&s, meta), claimLost(s, d, meta))...)
	switch budget := exhaustedBudget(&t.State); {
	case s.CancelRequested:
		t.mustAdd(endEvent(s, d, meta, causeWorkerGone))
	case s.Fence != 0 && s.Attempt >= s.Policy.MaxAttempts:
		after := s
		after.LeasesLost++
		t.mustAdd(exhausted(after, d, meta)...)
	case budget != "":
		t.mustAdd(noAttempt(t.State, []p.Event{again(s, d, meta, OfferLeaseLost)}, budget, meta))
	default:
		return Take, t
	}
	return Drop, t
}

// Acknowledge answers an offer. start says that the work begins with the acceptance.
func Acknowledge(s p.State, c Claimant, ack p.Ack, start bool, now time.Time) (Step, error) {
	meta := p.Meta{At: now, By: c.Holder}
	held := "" // named where the claimant holds it already
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
	accepted := &p.Accepted{Meta: meta, Offer: c.Offer, Agent: c.Agent, Holder: c.Holder,
		LeaseMS: c.LeaseMS, Attempt: s.Attempt + 1}
	if ack.EstimatedCompletionMS > 0 {
		accepted.EstimatedCompletion = now.Add(millis(ack.EstimatedCompletionMS))
	}
	if !start {
		return StepOf(s, accepted)
	}
	return StepOf(s, accepted, &p.Started{Meta: meta})
}

// Release puts a handoff back into the queue without charge: a drain. It is offered to
// the same agent again at once; one that is to be cancelled closes instead: it has no
// holder any more. late is what there is of a result, and nil where there is nothing: it is
// kept beside the history.
func Release(s p.State, d *Directory, by, reason string, late *p.ResultParked, now time.Time) (Step, error) {
	meta := p.Meta{At: now, By: by}
	t, err := StepOf(s, &p.Released{Meta: meta, Holder: s.Holder, Fence: s.Fence, Reason: reason})
	switch {
	case err != nil:
		return t, err
	case s.CancelRequested:
		err = t.add(endEvent(s, d, meta, ""))
	default:
		err = t.add(withinBudget(t.State, d, []p.Event{&p.Offered{Meta: meta, Agent: s.Agent, Reason: OfferReleased}}, now)...)
	}
	if err == nil && late != nil && s.Fence != 0 && len(s.LateFences) < p.LateResultsMax {
		kept := *late
		kept.Meta, kept.Holder, kept.Fence, kept.Attempt = meta, s.Holder, s.Fence, s.Attempt
		err = t.add(&kept)
	}
	return t, err
}
