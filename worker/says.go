package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// What a handler may return in place of a result, beside a failure and a Refuse.

// awaiting is a handler's wish to be run again when children have closed.
type awaiting struct{ tickets []string }

func (a *awaiting) Error() string {
	if len(a.tickets) == 0 {
		return "waits for all that it has handed off"
	}
	return "waits for " + strings.Join(a.tickets, ", ")
}

// Await is what Handle returns to wait for handoffs that it has handed off
// (Handoff.HandOff): all of these, or all that it has handed off if none is
// named. It holds no slot meanwhile, no clock but the deadline's and its own
// return's runs, and no attempt is charged. When they have closed, however they
// ended, the handoff is offered to this agent again as the same attempt: Handle
// runs from its beginning, maybe in another process, makes the same calls of
// HandOff, and finds the ends in Handoff.Returns.
//
// It must not wait for what has not been handed off, such as a sequential
// handoff, which goes with the result, nor for what it has the return of: that
// is a failed attempt, with the code await.
func Await(tickets ...string) error { return &awaiting{tickets: tickets} }

// escalation is a handler's wish that somebody above decides.
type escalation struct{ rationale, assessment string }

func (e *escalation) Error() string { return "escalated: " + e.rationale }

// Escalate is what Handle returns to pass the handoff up the chain of authority:
// to the agent that this one escalates to, a person at last. The rationale says
// why and must not be empty; the assessment is what was found out so far. The
// authority answers (AnswerEscalation, handoff answer), and the handoff comes
// back here with the answer; or it does the work itself. Where nobody is above
// the handoff fails for good, with the code escalation_exhausted.
func Escalate(rationale, assessment string) error {
	return &escalation{rationale: rationale, assessment: assessment}
}

// verdict is an authority's answer.
type verdict struct{ answer protocol.Answer }

func (v *verdict) Error() string {
	if v.answer.Deny {
		return "denied: " + v.answer.DenyReason
	}
	return "answered: " + v.answer.Text
}

// AnswerEscalation is what the Handle of an authority returns to a handoff that
// was escalated to it: the handoff goes back to the agent that escalated it, with
// the answer among its Answers. Denied, it counts as refused by this agent. By is
// filled in. Trail and State().Chain say who escalated and why. Of a handoff that
// was not escalated it is a failed attempt, with the code answer.
func AnswerEscalation(answer protocol.Answer) error { return &verdict{answer: answer} }

// rollback is a handler's wish to give the work back to where it came from.
type rollback struct {
	reason  string
	partial *protocol.Result
}

func (b *rollback) Error() string { return "handed back: " + b.reason }

// Is makes a rollback what ErrReturned stands for.
func (b *rollback) Is(target error) bool { return target == ErrReturned }

// HandBack is what Handle returns to roll back: the handoff closes as rolled
// back, and its source gets the reason and what there is of a result. partial may
// be nil: then it is made of the last Progress. One that breaks the rules is left
// out, which the log tells. A Cleaner is called first.
func HandBack(reason string, partial *protocol.Result) error {
	return &rollback{reason: reason, partial: partial}
}

// says tells whether an error of a handler is a decision on the handoff, and not
// a failure: that counts though the worker shuts down.
func says(err error) bool {
	var (
		refused *refusal
		waits   *awaiting
		up      *escalation
		answer  *verdict
		back    *rollback
	)
	return errors.As(err, &refused) || errors.As(err, &waits) || errors.As(err, &up) ||
		errors.As(err, &answer) || errors.As(err, &back)
}

// rerunsMax is how often in one attempt a handler is run again at once because
// the ledger knew more of its children than it did.
const rerunsMax = 3

// suspend lets go of the handoff until children have closed. again says that
// they have by now, so that the handler is run again at once.
func (r *run) suspend(h Handoff, claim Claim, waits *awaiting) (again bool) {
	fail := func(err error) { r.fail(h, claim, &Failure{Code: "await", Err: err}) }
	children, err := awaited(claim.State(), waits.tickets, h.on)
	if err != nil {
		fail(err)
		return false
	}
	suspended := false
	err = r.send("suspend", func(ctx context.Context) (err error) {
		suspended, err = claim.Suspend(ctx, children...)
		return err
	})
	switch {
	case refused(err):
		fail(err)
	case err != nil || suspended:
		r.settled(h, "suspended", "suspend", waits, err)
	case r.see(claim).Children.Closed.Len() > len(h.Returns) && r.reruns < rerunsMax:
		r.reruns++
		return true
	default:
		fail(fmt.Errorf("%w, and has their returns", waits))
	}
	return false
}

// awaited are the ordinals of the children that a handler waits for.
func awaited(s protocol.State, tickets []string, on *handing) (children []int, err error) {
	ordinals := map[string]int{}
	if s.Children != nil {
		children = s.Children.Made.Without(s.Children.After).Numbers()
	}
	for _, n := range children {
		ordinals[protocol.ChildTicketN(s.Ticket, n)] = n
	}
	if len(tickets) == 0 {
		if len(children) == 0 {
			return nil, errors.New("waits, and has handed off nothing")
		}
		return children, nil
	}
	children = nil
	for _, ticket := range tickets {
		if canonical, err := protocol.ParseTicket(ticket); err == nil {
			ticket = canonical
		}
		n, made := ordinals[ticket]
		switch {
		case made:
			children = append(children, n)
		case on.isLate(ticket):
			return nil, laterError(ticket)
		default:
			return nil, fmt.Errorf("waits for %q, which it has not handed off", ticket)
		}
	}
	return children, nil
}

// escalate passes the handoff up.
func (r *run) escalate(h Handoff, claim Claim, up *escalation) {
	if strings.TrimSpace(up.rationale) == "" {
		r.fail(h, claim, &Failure{Code: "invalid_escalation", Err: errors.New("an escalation says why: its rationale is empty")})
		return
	}
	err := r.send("escalate", func(ctx context.Context) error { return claim.Escalate(ctx, up.rationale, up.assessment) })
	switch {
	case refused(err) && r.toEnd(claim):
		r.giveUp(h, claim, up)
	case refused(err):
		r.fail(h, claim, &Failure{Code: "escalation_exhausted", Permanent: true, Err: fmt.Errorf("%w; %s", err, up)})
	default:
		r.settled(h, "escalated", "escalate", up, err)
	}
}

// answer sends the handoff back to whoever escalated it.
func (r *run) answer(h Handoff, claim Claim, v *verdict) {
	err := r.send("answer", func(ctx context.Context) error { return claim.Answer(ctx, v.answer) })
	switch {
	case refused(err) && r.toEnd(claim):
		r.giveUp(h, claim, v)
	case refused(err):
		r.fail(h, claim, &Failure{Code: "answer", Err: err})
	default:
		r.settled(h, "answered", "answer", v, err)
	}
}

// refused tells whether a report is one that the core or the broker will not
// take, whoever asks again.
func refused(err error) bool {
	return err != nil && final(err) && !errors.Is(err, broker.ErrLeaseLost)
}

// toEnd asks the ledger whether the end of the handoff was asked for, which is
// why it refuses all that would prolong it.
func (r *run) toEnd(claim Claim) bool {
	err := r.send("beat", func(ctx context.Context) error {
		signal, err := claim.Beat(ctx)
		r.heed(signal)
		return err
	})
	return err == nil && r.ctx.Err() != nil
}
