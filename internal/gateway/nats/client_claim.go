package natsgateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// claim is a handoff that this client holds. Its lease and fence are good at every
// gateway.
type claim struct {
	c   *Client
	ref claimRef

	mu      sync.Mutex      // guards what follows; never held across a request
	gateway string          // that has it cached
	state   *protocol.State // never changed
}

func (c *claim) State() protocol.State { return *c.LastState() }

// LastState implements worker.Claim.
func (c *claim) LastState() *protocol.State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

func (c *claim) currentGateway() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gateway
}

// claimRequest is a request about a claim.
type claimRequest interface{ ref() *claimRef }

// ask asks the gateway that has the claim, or else any. An answer names the gateway that has it now.
func (c *claim) ask(ctx context.Context, verb string, request claimRequest) (*claimAnswer, error) {
	*request.ref() = c.ref
	answer := new(claimAnswer)
	by, err := c.c.call(ctx, c.currentGateway(), verb, false, 0, request, answer)
	if errors.Is(err, &protocol.Error{Code: protocol.CodeLeaseInvalid}) { // of a worker, it is lost
		err = fmt.Errorf("%w: %w", broker.ErrLeaseLost, err)
	}
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gateway = by; answer.State != nil {
		c.state = answer.State
	}
	return answer, nil
}

// send is ask for requests whose answer has no content.
func (c *claim) send(ctx context.Context, verb string, request claimRequest) error {
	_, err := c.ask(ctx, verb, request)
	return err
}

func (c *claim) Beat(ctx context.Context) (broker.Signal, error) {
	answer, err := c.ask(ctx, verbHold, &claimRef{})
	if err != nil || answer.Signal == nil {
		return broker.Signal{}, err
	}
	return *answer.Signal, nil
}

func (c *claim) Acknowledge(ctx context.Context, ack protocol.Ack, _ bool) error {
	if err := ack.Validate(); err != nil {
		return err
	}
	if ack.Status == protocol.AckAccepted {
		return nil // it is: saying it twice is harmless
	}
	said, err := protocol.Marshal(ack)
	if err != nil {
		return err
	}
	return c.send(ctx, verbRefuse, &refuseRequest{Ack: said})
}

func (c *claim) Progress(ctx context.Context, progress protocol.Progress) error {
	if err := progress.Validate(); err != nil {
		return err
	}
	said, err := protocol.Marshal(progress)
	if err != nil {
		return err
	}
	return c.send(ctx, verbProgress, &progressRequest{Progress: said})
}

func (c *claim) Spend(ctx context.Context, usage protocol.Usage) error {
	if err := usage.Validate(); err != nil {
		return err
	}
	return c.send(ctx, verbSpend, &spendRequest{Usage: usage})
}

func (c *claim) Decide(ctx context.Context, decision protocol.WorkDecision) error {
	decision.Normalize()
	if err := decision.Validate(); err != nil {
		return err
	}
	return c.send(ctx, verbDecide, &decideRequest{Decision: decision})
}

func (c *claim) Extend(ctx context.Context, by time.Duration, reason string) error {
	return c.send(ctx, verbMoreTime, &moreTimeRequest{ExtendMS: by.Milliseconds(), Reason: reason})
}

// Complete is broker.Claim's. What cannot even be sent fails the attempt, too.
func (c *claim) Complete(ctx context.Context, result protocol.Result, _ ...broker.Child) error {
	request, err := completion(result)
	if err == nil {
		err = c.send(ctx, verbComplete, request)
	}
	var refusal *unsendableError
	if !errors.As(err, &refusal) {
		return err
	}
	refused := refusal.why
	failure, _ := lifecycle.UnusableResult(refused)
	failure.Usage = result.Usage
	if err := c.Fail(ctx, failure); err != nil {
		return fmt.Errorf("fail for its result (%v): %w", refused, err)
	}
	return refused
}

// unsendableError is a refusal of our own: no gateway has heard of it.
type unsendableError struct{ why *protocol.Error }

func (u *unsendableError) Error() string { return u.why.Error() }

func unsendableWith(code protocol.Code, err error) error {
	var refused *protocol.Error
	if !errors.As(err, &refused) {
		refused = protocol.Errorf(code, "result", "%v", err)
	}
	return &unsendableError{refused}
}

// completion makes the request. A result whose body alone is too large is measured
// before it is sent.
func completion(result protocol.Result) (*completeRequest, error) {
	body, err := protocol.EncodeResult(result)
	if err != nil {
		return nil, unsendableWith(protocol.CodeMalformed, err)
	}
	if size, most := len(body), CallBytesMax-64<<10; size > most { // some is around it
		return nil, unsendableWith("", protocol.Errorf(protocol.CodeTooLarge, "result", "is %d bytes, at most %d go through a gateway; hand large output over as an artifact", size, most))
	}
	return &completeRequest{Result: body}, nil
}

func (c *claim) Fail(ctx context.Context, f broker.Failure) error {
	return c.send(ctx, verbFail, &failRequest{Code: protocol.CutText(f.Code, protocol.NameBytesMax), Message: protocol.CutText(f.Message, protocol.FailureBytesMax),
		Retryable: f.Retryable, RetryAfterMS: min(max(f.RetryAfter.Milliseconds(), 0), protocol.RetryAfterMaxMS), Usage: f.Usage})
}

func cutReason(s string) string { return protocol.CutText(s, protocol.ReasonBytesMax) }

func (c *claim) Release(ctx context.Context, reason string, partial *protocol.Result) error {
	body, err := encodePartial(partial)
	if err != nil {
		return err
	}
	return c.send(ctx, verbRelease, &releaseRequest{Reason: cutReason(reason), Result: body})
}

func (c *claim) HandOff(ctx context.Context, child broker.Child) (ticket string, err error) {
	pkg, err := protocol.EncodePackage(child.Package)
	if err != nil {
		return "", err
	}
	answer, err := c.ask(ctx, verbHandOff, &childRequest{Child: wireChild{Nth: child.Nth, Package: pkg}})
	if err != nil {
		return "", err
	}
	return answer.Ticket, nil
}

func (c *claim) Suspend(ctx context.Context, children ...int) (suspended bool, err error) {
	answer, err := c.ask(ctx, verbSuspend, &suspendRequest{Children: children})
	return err == nil && answer.Suspended, err
}

func (c *claim) Escalate(ctx context.Context, rationale, assessment string) error {
	return c.send(ctx, verbEscalate, &escalateRequest{Rationale: cutReason(rationale), Assessment: cutReason(assessment)})
}

func (c *claim) Answer(ctx context.Context, answer protocol.Answer) error {
	if err := answer.Validate(); err != nil {
		return err
	}
	answer.By = "" // the gateway knows the caller
	said, err := protocol.Marshal(answer)
	if err != nil {
		return err
	}
	return c.send(ctx, verbAnswer, &answerRequest{Answer: said})
}

func (c *claim) RollBack(ctx context.Context, reason string, partial *protocol.Result) error {
	body, err := encodePartial(partial)
	if err != nil {
		return err
	}
	return c.send(ctx, verbRollBack, &rollBackRequest{Reason: cutReason(reason), Result: body})
}

// encodePartial writes what there is of a result; nil is nothing.
func encodePartial(partial *protocol.Result) (json.RawMessage, error) {
	if partial == nil {
		return nil, nil
	}
	return protocol.EncodeResult(*partial)
}

// WorkerLease implements worker.Claim. The key of a worker's holder stays with it.
func (c *claim) WorkerLease() string { return "" }

func (c *claim) Returns(ctx context.Context) ([]protocol.Return, error) {
	answer, err := c.ask(ctx, verbReturns, &claimRef{})
	if err != nil {
		return nil, err
	}
	return answer.Returns, nil
}
