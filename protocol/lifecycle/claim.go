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
	// Mine: this holder has it already; ignore the redelivery.
	Mine
	// LetGo: another holder has it; leave the offer alone.
	LetGo
)

// Claim judges an offer by the state of its handoff. With Take come the events
// that must go before the answer: the loss of the holder before. Where those
// end the handoff, or no attempt is left, the verdict is Drop with the events
// to append.
func Claim(s p.State, c Claimant, d *Directory, now time.Time) (Verdict, []p.Event) {
	switch {
	case s.Closed || s.Offer != c.Offer || s.Agent != c.Agent:
		return Drop, nil
	case s.Held() && s.Holder == c.Holder:
		return Mine, nil
	case s.Held() && !holderLost(s, d, now):
		return LetGo, nil
	case due(now, s.Deadline): // passed while nobody looked: it is not begun any more
		return Drop, Decide(s, d, now)
	case s.Held():
		return takeOver(s, c, now)
	case s.Phase != p.Pending: // refused, conditional, failed: this offer is over
		return Drop, nil
	case s.CancelRequested:
		return Drop, Decide(s, d, now)
	}
	return Take, nil
}

// takeOver is the claim of a successor on an offer whose holder is gone.
func takeOver(s p.State, c Claimant, now time.Time) (Verdict, []p.Event) {
	meta := p.Meta{At: now, By: c.Holder}
	lost := leaseLost(s, meta)
	switch {
	case s.CancelRequested:
		return Drop, []p.Event{lost, closed(meta, p.OutcomeCancelled, "cancelled", "cancelled on request; its worker was gone")}
	case s.Fence != 0 && s.Attempt >= s.Policy.MaxAttempts:
		after := s
		after.LeasesLost++
		return Drop, []p.Event{lost, exhausted(after, meta)}
	}
	return Take, []p.Event{lost}
}

// Acknowledge makes the events of an answer to an offer. start says that the
// work begins with the acceptance.
func Acknowledge(s p.State, c Claimant, ack p.Ack, start bool, now time.Time) []p.Event {
	meta := p.Meta{At: now, By: c.Holder}
	held := "" // named where the claimant holds it already
	if s.Holder == c.Holder {
		held = c.Holder
	}
	switch ack.Status {
	case p.AckRejected:
		return []p.Event{&p.Rejected{Meta: meta, Offer: c.Offer, Agent: c.Agent, Holder: held,
			ReasonCode: ack.ReasonCode, Reason: ack.Reason, Alternative: ack.SuggestedAlternative}}
	case p.AckConditional:
		return []p.Event{&p.Conditioned{Meta: meta, Offer: c.Offer, Agent: c.Agent, Holder: held, Reason: ack.Reason,
			NeedsContext: ack.NeedsContext, NeedsPermission: ack.NeedsPermission, RetryAfterMS: ack.RetryAfterMS}}
	}
	accepted := &p.Accepted{Meta: meta, Offer: c.Offer, Agent: c.Agent, Holder: c.Holder,
		LeaseMS: c.LeaseMS, Attempt: s.Attempt + 1}
	if ack.EstimatedCompletionMS > 0 {
		accepted.EstimatedCompletion = now.Add(millis(ack.EstimatedCompletionMS))
	}
	if !start {
		return []p.Event{accepted}
	}
	return []p.Event{accepted, &p.Started{Meta: meta}}
}

// Release makes the events by which a holder gives a handoff back without
// charge: a drain. It is offered to the same agent again at once; one that is to
// be cancelled closes instead, for nobody holds it any more.
func Release(s p.State, by, reason string, now time.Time) []p.Event {
	meta := p.Meta{At: now, By: by}
	released := &p.Released{Meta: meta, Holder: s.Holder, Fence: s.Fence, Reason: reason}
	if s.CancelRequested {
		return []p.Event{released, closed(meta, p.OutcomeCancelled, "cancelled", "cancelled on request")}
	}
	return []p.Event{released, &p.Offered{Meta: meta, Agent: s.Agent, Reason: "released"}}
}

// Cancel makes the events of a request to end a handoff: at once where nobody
// holds it.
func Cancel(s p.State, d *Directory, by, reason string, now time.Time) ([]p.Event, error) {
	if s.Closed {
		return nil, p.Errorf(p.CodeClosed, "ticket", "%s is closed already (%s)", s.Ticket, s.Outcome)
	}
	if s.CancelRequested {
		return nil, nil
	}
	events := []p.Event{&p.CancelRequested{Meta: p.Meta{At: now, By: by}, Reason: reason}}
	next, err := ApplyAll(s, events)
	if err != nil {
		return nil, err
	}
	return append(events, Decide(next, d, now)...), nil
}

// Answer makes the events of an answer to a conditional: the offer goes back to
// the same agent, or, denied, elsewhere.
func Answer(s p.State, d *Directory, answer p.Answer, now time.Time) ([]p.Event, error) {
	if s.Closed {
		return nil, p.Errorf(p.CodeClosed, "ticket", "%s is closed already (%s)", s.Ticket, s.Outcome)
	}
	if s.Phase != p.Conditional || s.Conditions == nil {
		return nil, p.Errorf(p.CodeIllegal, "ticket", "%s is %s and asks nothing; only a conditional handoff can be answered", s.Ticket, s.Phase)
	}
	if s.ConditionRounds > s.Policy.MaxConditions { // the next look gives it to somebody else
		return nil, p.Errorf(p.CodeIllegal, "ticket", "%s has asked %d times, %d are allowed; it is escalated instead", s.Agent, s.ConditionRounds, s.Policy.MaxConditions)
	}
	if len(s.Conditions.NeedsPermission) > 0 && !answer.Permit && !answer.Deny {
		return nil, p.Errorf(p.CodeMissing, "permit", "%s asks for permission (%s): permit or deny it", s.Ticket, s.Conditions.NeedsPermission[0])
	}
	meta := p.Meta{At: now, By: answer.By}
	events := []p.Event{&p.Answered{Meta: meta, Offer: s.Offer, Answer: answer}}
	if !answer.Deny {
		return append(events, &p.Offered{Meta: meta, Agent: s.Agent, Reason: "answer"}), nil
	}
	next, err := ApplyAll(s, events)
	if err != nil {
		return nil, err
	}
	return append(events, Decide(next, d, now)...), nil
}
