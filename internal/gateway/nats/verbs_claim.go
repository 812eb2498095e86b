package natsgateway

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// withClaim runs do on a claim that the agent keeps.
func (g *Gateway) withClaim(ctx context.Context, agent string, ref *claimRef, do func(claim *broker.Claim, answer *claimAnswer) error) (any, error) {
	e, claim, done, err := g.claimOfRequest(ctx, agent, ref)
	if err != nil {
		return nil, err
	}
	defer done()
	answer := &claimAnswer{}
	if err := do(claim, answer); err != nil {
		if errors.Is(err, broker.ErrLeaseLost) && e != nil {
			g.cache.evict(e)
		}
		return nil, err
	}
	state := claim.State()
	answer.State = &state
	return answer, nil
}

// endClaim runs do, after which the agent no longer has the claim. wrote
// knows the event that it appends: a request that is repeated after that gets the same
// answer.
func (g *Gateway) endClaim(ctx context.Context, agent string, ref *claimRef, wrote func(protocol.Event) bool, do func(claim *broker.Claim) error) (any, error) {
	e, claim, done, err := g.claimOfRequest(ctx, agent, ref)
	if err == nil {
		err = do(claim)
		if e != nil && (err == nil || !claim.State().Held() || errors.Is(err, broker.ErrLeaseLost)) {
			g.cache.evict(e)
		}
		done()
		if err == nil {
			return &claimAnswer{}, nil
		}
	}
	if !errors.Is(err, broker.ErrLeaseLost) {
		return nil, err
	}
	before, endErr := g.endingOf(ctx, agent, ref)
	switch {
	case endErr != nil:
		return nil, endErr
	case before.Event != nil && wrote(before.Event):
		return &claimAnswer{}, nil
	}
	return nil, err
}

// endingOf is how the agent let go of the handoff under this fence; zero is not by itself.
func (g *Gateway) endingOf(ctx context.Context, agent string, ref *claimRef) (broker.Ending, error) {
	lease, err := g.leaseOf(agent, ref)
	if err != nil {
		return broker.Ending{}, err
	}
	ending, err := g.b.EndingOf(ctx, lease)
	if err != nil || ending.Fence != ref.Fence {
		return broker.Ending{}, err
	}
	return ending, nil
}

// isEvent reports whether an event is of one type.
func isEvent[E protocol.Event](e protocol.Event) bool {
	_, ok := e.(E)
	return ok
}

// hold keeps the offer from others, and returns the signal of the ledger.
func (g *Gateway) hold(ctx context.Context, agent string, r *claimRef) (any, error) {
	return g.withClaim(ctx, agent, r, func(claim *broker.Claim, answer *claimAnswer) error {
		signal, err := claim.Beat(ctx)
		answer.Signal = &signal
		return err
	})
}

func (g *Gateway) progress(ctx context.Context, agent string, r *progressRequest) (any, error) {
	progress, err := protocol.DecodeProgress(r.Progress)
	if err != nil {
		return nil, err
	}
	return g.withClaim(ctx, agent, r.ref(), func(claim *broker.Claim, _ *claimAnswer) error { return claim.Progress(ctx, progress) })
}

func (g *Gateway) spend(ctx context.Context, agent string, r *spendRequest) (any, error) {
	return g.withClaim(ctx, agent, r.ref(), func(claim *broker.Claim, _ *claimAnswer) error { return claim.Spend(ctx, r.Usage) })
}

func (g *Gateway) moreTime(ctx context.Context, agent string, r *moreTimeRequest) (any, error) {
	return g.withClaim(ctx, agent, r.ref(), func(claim *broker.Claim, _ *claimAnswer) error {
		if err := protocol.CheckExtension(r.ExtendMS); err != nil { // before it becomes a duration, which may not hold it
			return err
		}
		return claim.Extend(ctx, time.Duration(r.ExtendMS)*time.Millisecond, r.Reason)
	})
}

// complete hands in a result. One that cannot be read fails the attempt, like one
// that breaks the rules: its worker would try for ever.
func (g *Gateway) complete(ctx context.Context, agent string, r *completeRequest) (any, error) {
	result, err := protocol.DecodeResult(r.Result)
	unreadable := err
	mayLack := true                                        // hand-offs: not where the state says that it has all, and a repeated request has none
	repeated := func(protocol.Event) bool { return false } // its result is compared below
	answer, err := g.endClaim(ctx, agent, r.ref(), repeated, func(claim *broker.Claim) error {
		if unreadable == nil {
			err := claim.Complete(ctx, result)
			bar := claim.State().Barred
			mayLack = err != nil || bar != nil && bar.FellBack
			return err
		}
		failure, refusal := lifecycle.UnusableResult(unreadable)
		if err := claim.Fail(ctx, failure); err != nil {
			return err
		}
		return refusal
	})
	switch {
	case err == nil && mayLack:
		return g.barredAnswer(ctx, agent, r)
	case !errors.Is(err, broker.ErrLeaseLost):
		return answer, err
	}
	return g.lateAnswer(ctx, agent, r, result, unreadable == nil, err)
}

// barredAnswer lists the hand-offs that were refused with a result, and its status.
func (g *Gateway) barredAnswer(ctx context.Context, agent string, r *completeRequest) (any, error) {
	ending, err := g.endingOf(ctx, agent, r.ref())
	if err != nil {
		return nil, err
	}
	answer := &claimAnswer{}
	completed, ok := ending.Event.(*protocol.Completed)
	if !ok || len(ending.Barred) == 0 {
		return answer, nil
	}
	answer.Status = completed.Status
	for _, e := range ending.Barred {
		answer.Barred = append(answer.Barred, barredHandOff{To: e.To, Error: protocol.Error{Code: e.Code, Field: e.Field, Message: e.Words}})
	}
	return answer, nil
}

// resultCodes are the codes of attempts that failed because of their result.
var resultCodes = []protocol.Code{protocol.CodeOutputSchema, protocol.CodeBadResult, protocol.CodeMalformed, protocol.CodeInvalid,
	protocol.CodeMissing, protocol.CodeTooLarge, protocol.CodeUnknownAgent, protocol.CodeForbidden}

// lateAnswer answers a result whose lease is lost. It was submitted before, or refused before, when
// the attempt failed with it, or it is late, and is kept.
func (g *Gateway) lateAnswer(ctx context.Context, agent string, r *completeRequest, result protocol.Result, readable bool, lost error) (any, error) {
	ending, err := g.endingOf(ctx, agent, r.ref())
	if err != nil {
		return nil, err
	}
	if failed, ok := ending.Event.(*protocol.Failed); ok && slices.Contains(resultCodes, protocol.Code(failed.Code)) {
		return nil, &protocol.Error{Code: protocol.Code(failed.Code), Field: "result", Message: failed.Message}
	}
	lease, err := g.leaseOf(agent, r.ref())
	if err != nil || !readable {
		return nil, lost
	}
	late, err := g.b.ParkLate(ctx, lease.String(), result)
	switch {
	case err != nil && !errors.Is(err, broker.ErrNotFound):
		return nil, err
	case late == broker.LateRepeated:
		return g.barredAnswer(ctx, agent, r)
	}
	return nil, lost
}

func childOf(wire wireChild) (broker.Child, error) {
	pkg, err := protocol.DecodePackage(wire.Package)
	return broker.Child{Nth: wire.Nth, Package: pkg}, err
}

func (g *Gateway) fail(ctx context.Context, agent string, r *failRequest) (any, error) {
	if r.Code == "" {
		return nil, protocol.Errorf(protocol.CodeMissing, "code", "is missing: a word to count by")
	}
	if r.RetryAfterMS < 0 || r.RetryAfterMS > protocol.RetryAfterMaxMS {
		return nil, invalid("retry_after_ms", "is %d, must be 0 to %d", r.RetryAfterMS, protocol.RetryAfterMaxMS)
	}
	failure := broker.Failure{Code: r.Code, Message: r.Message, Retryable: r.Retryable, RetryAfter: time.Duration(r.RetryAfterMS) * time.Millisecond, Usage: r.Usage}
	return g.endClaim(ctx, agent, r.ref(), isEvent[*protocol.Failed], func(claim *broker.Claim) error { return claim.Fail(ctx, failure) })
}

// release keeps what comes with it of a result, also where the lease is lost.
func (g *Gateway) release(ctx context.Context, agent string, r *releaseRequest) (any, error) {
	partial, err := partialOf(r.Result)
	if err != nil {
		return nil, err
	}
	answer, err := g.endClaim(ctx, agent, r.ref(), isEvent[*protocol.Released], func(claim *broker.Claim) error { return claim.Release(ctx, r.Reason, partial) })
	if errors.Is(err, broker.ErrLeaseLost) && partial != nil {
		lease, unknown := g.leaseOf(agent, r.ref())
		if unknown != nil {
			return nil, err
		}
		partial.Status = protocol.Partial
		if _, unkept := g.b.ParkLate(ctx, lease.String(), *partial); unkept != nil && !errors.Is(unkept, broker.ErrNotFound) {
			return nil, unkept
		}
	}
	return answer, err
}

// partialOf reads what there is of a result; nil is nothing.
func partialOf(body json.RawMessage) (*protocol.Result, error) {
	if len(body) == 0 {
		return nil, nil
	}
	result, err := protocol.DecodeResult(body)
	return &result, err
}

// refuseClaim takes an acceptance back.
func (g *Gateway) refuseClaim(ctx context.Context, agent string, r *refuseRequest) (any, error) {
	ack, err := protocol.DecodeAck(r.Ack)
	if err != nil {
		return nil, err
	}
	if ack.Status == protocol.AckAccepted {
		return nil, invalid("ack.status", "is accepted, and the handoff is")
	}
	wrote := isEvent[*protocol.Rejected]
	if ack.Status == protocol.AckConditional {
		wrote = isEvent[*protocol.Conditioned]
	}
	return g.endClaim(ctx, agent, r.ref(), wrote, func(claim *broker.Claim) error { return claim.Acknowledge(ctx, ack, false) })
}

func (g *Gateway) decide(ctx context.Context, agent string, r *decideRequest) (any, error) {
	return g.withClaim(ctx, agent, r.ref(), func(claim *broker.Claim, _ *claimAnswer) error { return claim.Decide(ctx, r.Decision) })
}

// suspend may leave the agent its claim, where the children have closed already.
func (g *Gateway) suspend(ctx context.Context, agent string, r *suspendRequest) (any, error) {
	var still *protocol.State
	_, err := g.endClaim(ctx, agent, r.ref(), isEvent[*protocol.Suspended], func(claim *broker.Claim) error {
		suspended, err := claim.Suspend(ctx, r.Children...)
		if err == nil && !suspended {
			state := claim.State()
			still = &state
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return &claimAnswer{Suspended: still == nil, State: still}, nil // one that goes on does so by its lease
}

func (g *Gateway) escalate(ctx context.Context, agent string, r *escalateRequest) (any, error) {
	return g.endClaim(ctx, agent, r.ref(), isEvent[*protocol.Escalated], func(claim *broker.Claim) error { return claim.Escalate(ctx, r.Rationale, r.Assessment) })
}

// answerEscalation is what an authority says, for itself alone.
func (g *Gateway) answerEscalation(ctx context.Context, agent string, r *answerRequest) (any, error) {
	answer, err := protocol.DecodeAnswer(r.Answer)
	if err != nil {
		return nil, err
	}
	if answer.By != "" && answer.By != agent {
		return nil, forbidden("answer.by", "is %s, and %s answers", protocol.CutText(answer.By, 64), agent)
	}
	answer.By = agent
	if r.Ticket != "" {
		return g.answerTicket(ctx, agent, r, answer)
	}
	return g.endClaim(ctx, agent, r.ref(), isEvent[*protocol.Answered], func(claim *broker.Claim) error { return claim.Answer(ctx, answer) })
}

func (g *Gateway) rollBack(ctx context.Context, agent string, r *rollBackRequest) (any, error) {
	partial, err := partialOf(r.Result)
	if err != nil {
		return nil, err
	}
	return g.endClaim(ctx, agent, r.ref(), isEvent[*protocol.RolledBack], func(claim *broker.Claim) error { return claim.RollBack(ctx, r.Reason, partial) })
}

func (g *Gateway) handOff(ctx context.Context, agent string, r *childRequest) (any, error) {
	child, err := childOf(r.Child)
	if err != nil {
		return nil, err
	}
	if child.Nth < 0 || child.Nth > protocol.ChildrenMax {
		return nil, invalid("child.nth", "is %d, must be 0 to %d", child.Nth, protocol.ChildrenMax)
	}
	return g.withClaim(ctx, agent, r.ref(), func(claim *broker.Claim, answer *claimAnswer) (err error) {
		answer.Ticket, err = claim.HandOff(ctx, child)
		return err
	})
}

func (g *Gateway) handedOff(ctx context.Context, agent string, r *claimRef) (any, error) {
	return g.withClaim(ctx, agent, r, func(claim *broker.Claim, answer *claimAnswer) (err error) {
		answer.HandedOff, err = g.b.Children(ctx, claim.State())
		return err
	})
}

func (g *Gateway) returns(ctx context.Context, agent string, r *claimRef) (any, error) {
	return g.withClaim(ctx, agent, r, func(claim *broker.Claim, answer *claimAnswer) (err error) {
		answer.Returns, err = claim.Returns(ctx)
		return err
	})
}
