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

// decision is an error of a handler that decides on the handoff, and is no failure: it counts
// though the worker shuts down. report appends it.
type decision interface {
	error
	report(r *run, c contexts, h Handoff, claim Claim)
}

// awaitError is a handler's wish to be run again when children have closed.
type awaitError struct{ tickets []string }

func (await *awaitError) Error() string {
	if len(await.tickets) == 0 {
		return "waits for all that it has handed off"
	}
	return "waits for " + strings.Join(await.tickets, ", ")
}

// Await is what Handle returns to wait for handoffs that it has handed off
// (Handoff.HandOff): all of these, or all that this run has handed off if none is
// named. It holds no slot meanwhile, no clock but the deadline's and its own
// return's runs, and no attempt is charged. When they have closed, however they
// ended, the handoff is offered to this agent again as the same attempt: Handle
// runs from its beginning, maybe in another process, makes the same calls of
// HandOff, and finds the ends in Handoff.Returns.
//
// It must not wait for what has not been handed off, such as a sequential
// handoff, which goes with the result, nor for what it has the return of: that
// is a failed attempt, with the code await.
func Await(tickets ...string) error { return &awaitError{tickets: tickets} }

// escalateError is a handler's wish that its authority decides.
type escalateError struct{ rationale, assessment string }

func (escalated *escalateError) Error() string { return "escalated: " + escalated.rationale }

// Escalate is what Handle returns to pass the handoff up the chain of authority:
// to the agent that this one escalates to, a person at last. The rationale says
// why and must not be empty; the assessment is what was found out so far. The
// authority answers (AnswerEscalation, handoff answer), and the handoff comes
// back here with the answer; or it does the work itself. Without an authority
// the handoff fails for good, with the code escalation_exhausted.
func Escalate(rationale, assessment string) error {
	return &escalateError{rationale: rationale, assessment: assessment}
}

// answerError is an authority's answer.
type answerError struct{ answer protocol.Answer }

func (answered *answerError) Error() string {
	if answered.answer.Deny {
		return "denied: " + answered.answer.DenyReason
	}
	return "answered: " + answered.answer.Text
}

// AnswerEscalation is what the Handle of an authority returns to a handoff that
// was escalated to it: the handoff goes back to the agent that escalated it, with
// the answer among its Answers. Denied, it counts as refused by this agent. By is
// filled in. Trail and State().Chain name the agents that escalated, and their reasons. Of a handoff that
// was not escalated it is a failed attempt, with the code answer.
func AnswerEscalation(answer protocol.Answer) error { return &answerError{answer: answer} }

// rollBackError is a handler's wish to roll the work back to its source.
type rollBackError struct {
	reason  string
	partial *protocol.Result
}

func (rolledBack *rollBackError) Error() string { return "rolled back: " + rolledBack.reason }

// Is makes a rollback what ErrReturned stands for.
func (rolledBack *rollBackError) Is(target error) bool { return target == ErrReturned }

// RollBack is what Handle returns to roll back: the handoff closes as rolled
// back, and its source gets the reason and what there is of a result. partial may
// be nil: then it is made of the last Progress. One that breaks the rules is left
// out, which the log tells. A Cleaner is called first.
func RollBack(reason string, partial *protocol.Result) error {
	return &rollBackError{reason: reason, partial: partial}
}

// report lets go of the handoff until children have closed.
func (await *awaitError) report(r *run, c contexts, h Handoff, claim Claim) {
	fail := func(err error) { r.fail(c, h, claim, &Failure{Code: "await", Err: err}) }
	children, err := awaitedChildren(*claim.LastState(), await.tickets, h.calls)
	if err != nil {
		fail(err)
		return
	}
	suspended := false
	err = r.send(c, "suspend", func(ctx context.Context) (err error) {
		suspended, err = claim.Suspend(ctx, children...)
		return err
	})
	switch {
	case isRefused(err):
		fail(err)
	case err != nil || suspended:
		r.finishReport(c, h, "suspended", "suspend", await, err)
	default:
		fail(fmt.Errorf("%w, and has their returns", await))
	}
}

// awaitedChildren are the ordinals of the children that a handler waits for.
func awaitedChildren(s protocol.State, tickets []string, calls *childCalls) (children []int, err error) {
	ordinals := map[string]int{}
	if s.Children != nil {
		children = s.Children.Asked.Without(s.Children.After).Numbers()
		for _, n := range s.Children.Made.Without(s.Children.After).Numbers() {
			ordinals[s.ChildTicket(n)] = n
		}
	}
	if len(tickets) == 0 {
		if len(children) == 0 {
			return nil, errors.New("waits, and this attempt has handed off nothing")
		}
		return children, nil
	}
	children = nil
	for _, ticket := range tickets {
		if canonical, err := protocol.ParseTicket(ticket); err == nil {
			ticket = canonical
		}
		n, handedOff := ordinals[ticket]
		switch {
		case handedOff:
			children = append(children, n)
		case calls.goesWithResult(ticket):
			return nil, withResultError(ticket)
		default:
			return nil, fmt.Errorf("waits for %q, which it has not handed off", ticket)
		}
	}
	return children, nil
}

// report passes the handoff up.
func (escalated *escalateError) report(r *run, c contexts, h Handoff, claim Claim) {
	if strings.TrimSpace(escalated.rationale) == "" {
		r.fail(c, h, claim, &Failure{Code: "invalid_escalation", Err: errors.New("an escalation says why: its rationale is empty")})
		return
	}
	err := r.send(c, "escalate", func(ctx context.Context) error { return claim.Escalate(ctx, escalated.rationale, escalated.assessment) })
	switch {
	case isRefused(err) && r.endRequested(c, claim):
		r.reportCancelled(c, h, claim, protocol.Result{}, escalated)
	case isRefused(err):
		r.fail(c, h, claim, &Failure{Code: "escalation_exhausted", Permanent: true, Err: fmt.Errorf("%w; %s", err, escalated)})
	default:
		r.finishReport(c, h, "escalated", "escalate", escalated, err)
	}
}

// report sends the handoff back to the agent that escalated it.
func (answered *answerError) report(r *run, c contexts, h Handoff, claim Claim) {
	err := r.send(c, "answer", func(ctx context.Context) error { return claim.Answer(ctx, answered.answer) })
	switch {
	case isRefused(err) && r.endRequested(c, claim):
		r.reportCancelled(c, h, claim, protocol.Result{}, answered)
	case isRefused(err):
		r.fail(c, h, claim, &Failure{Code: "answer", Err: err})
	default:
		r.finishReport(c, h, "answered", "answer", answered, err)
	}
}

// isRefused tells whether a report is one that the core or the broker will not
// take, however often it is sent.
func isRefused(err error) bool {
	return err != nil && isFinal(err) && !errors.Is(err, broker.ErrLeaseLost)
}

// endRequested asks the ledger whether the end of the handoff was asked for, which is
// why it refuses all that would prolong it.
func (r *run) endRequested(c contexts, claim Claim) bool {
	err := r.send(c, "beat", func(ctx context.Context) error {
		signal, err := claim.Beat(ctx)
		r.applySignal(signal)
		return err
	})
	return err == nil && r.ctx.Err() != nil
}
