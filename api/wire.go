package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// The requests and answers of Operations in JSON, and the functions that adapt methods to them.
// Fields that are free data (packages, results, answers) are read by protocol's decoders.

type (
	noRequest     struct{}
	ticketRequest struct {
		Ticket string `json:"ticket"`
	}
	agentRequest struct {
		Agent string `json:"agent"`
	}
	nameRequest struct {
		Name string `json:"name"`
	}
)

func (r ticketRequest) arg() string { return r.Ticket }
func (r agentRequest) arg() string  { return r.Agent }
func (r nameRequest) arg() string   { return r.Name }

// one adapts a method of one argument to a request that has it.
func one[Q interface{ arg() string }, A any](do func(*Session, context.Context, string) (A, error)) func(*Session, context.Context, Q) (A, error) {
	return func(s *Session, ctx context.Context, r Q) (A, error) { return do(s, ctx, r.arg()) }
}

// two adapts a method of two arguments to a request that has them.
func two[Q interface{ args() (string, V) }, V, A any](do func(*Session, context.Context, string, V) (A, error)) func(*Session, context.Context, Q) (A, error) {
	return func(s *Session, ctx context.Context, r Q) (A, error) {
		subject, value := r.args()
		return do(s, ctx, subject, value)
	}
}

func bare[A any](do func(*Session, context.Context) (A, error)) func(*Session, context.Context, noRequest) (A, error) {
	return func(s *Session, ctx context.Context, _ noRequest) (A, error) { return do(s, ctx) }
}

type submitRequest struct {
	Package json.RawMessage `json:"package"`
}

type waitRequest struct {
	Ticket string `json:"ticket"`
	Until  Until  `json:"until,omitempty"`
	WaitMS int64  `json:"wait_ms"`
}

// Waited is the state of a handoff at the end of a wait. If it is not ready, the time was over.
type Waited struct {
	State protocol.State `json:"state"`
	Ready bool           `json:"ready"`
}

// waitFor waits for a handoff, or for the last one of its chain. Without a time it only reads.
func waitFor(chain bool) func(*Session, context.Context, waitRequest) (Waited, error) {
	operation, read := "Wait", (*Session).Status
	if chain {
		operation, read = "WaitChain", (*Session).LastOfChain
	}
	return func(s *Session, ctx context.Context, r waitRequest) (Waited, error) {
		limit, err := waitLimit(r.WaitMS)
		if err == nil {
			err = r.Until.check()
		}
		if err != nil {
			return Waited{}, err
		}
		if limit > 0 {
			waiting, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			state, err := s.follow(waiting, operation, r.Ticket, r.Until, chain, unseen)
			over := err != nil && waiting.Err() != nil && ctx.Err() == nil
			switch {
			case state.Ticket != "" && (over || errors.Is(err, ErrWaitEnded)):
				return Waited{State: *state}, nil
			case !over:
				return Waited{*state, err == nil}, err
			}
		}
		state, err := read(s, ctx, r.Ticket) // also after a wait that was too short to read anything
		return Waited{state, err == nil && r.Until.satisfied(&state) && !(chain && lifecycle.GoesOn(state))}, err
	}
}

// resultAnswer lacks a result that does not exist yet, or no longer: the state has the reason.
type resultAnswer struct {
	State  protocol.State   `json:"state"`
	Result *protocol.Result `json:"result,omitempty"`
}

func resultOf(do func(*Session, context.Context, string) (protocol.Result, protocol.State, error)) func(*Session, context.Context, ticketRequest) (resultAnswer, error) {
	return func(s *Session, ctx context.Context, r ticketRequest) (resultAnswer, error) {
		result, state, err := do(s, ctx, r.Ticket)
		if errors.Is(err, broker.ErrNotFound) && state.Ticket != "" {
			return resultAnswer{State: state}, nil
		}
		return resultAnswer{state, &result}, err
	}
}

type answerRequest struct {
	Ticket string          `json:"ticket"`
	Answer json.RawMessage `json:"answer"`
}

func answer(s *Session, ctx context.Context, r answerRequest) (protocol.State, error) {
	given, err := protocol.DecodeAnswer(r.Answer)
	return unless(err, func() (protocol.State, error) { return s.Answer(ctx, r.Ticket, given) })
}

type claimRequest struct {
	Agent       string `json:"agent"`
	WaitMS      int64  `json:"wait_ms,omitempty"`
	LeaseMS     int64  `json:"lease_ms"`
	Accept      bool   `json:"accept,omitempty"`
	AckWithinMS int64  `json:"ack_within_ms,omitempty"`
	Key         string `json:"key,omitempty"`
	Host        string `json:"host,omitempty"`
	Brief       bool   `json:"brief,omitempty"` // the answer has one
}

func claim(s *Session, ctx context.Context, r claimRequest) (Held, error) {
	wait, err1 := waitLimit(r.WaitMS)
	lease, err2 := millis("lease_ms", r.LeaseMS, protocol.LeaseMaxMS)
	within, err3 := millis("ack_within_ms", r.AckWithinMS, protocol.AckWithinMaxMS)
	if err := cmp.Or(err1, err2, err3); err != nil {
		return Held{}, err
	}
	if len(r.Host) > protocol.NameBytesMax {
		return Held{}, protocol.Errorf(protocol.CodeTooLarge, "host", "%s", protocol.OverSize(len(r.Host), protocol.NameBytesMax))
	}
	held, err := s.Claim(ctx, Claim{Agent: r.Agent, Wait: wait, Lease: lease, Accept: r.Accept, AckWithin: within, Key: r.Key, Host: r.Host})
	if err == nil && r.Brief {
		held.Brief, _ = held.Instructions() // of a package that was read just now
	}
	return held, err
}

// millis checks a duration before it is made: it may not hold the number.
func millis(field string, ms, most int64) (time.Duration, error) {
	if ms < 0 || ms > most {
		return 0, protocol.Errorf(protocol.CodeInvalid, field, "is %d, must be at most %d", ms, most)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

type leaseRequest struct {
	Lease string `json:"lease"`
}

func (r leaseRequest) arg() string { return r.Lease }

type acknowledgeRequest struct {
	Lease string          `json:"lease"`
	Ack   json.RawMessage `json:"ack"`
}

func acknowledge(s *Session, ctx context.Context, r acknowledgeRequest) (protocol.State, error) {
	ack, err := protocol.DecodeAck(r.Ack)
	return unless(err, func() (protocol.State, error) { return s.Acknowledge(ctx, r.Lease, ack) })
}

type heartbeatRequest struct {
	Lease    string `json:"lease"`
	ExtendMS int64  `json:"extend_ms,omitempty"`
	Reason   string `json:"reason,omitempty"`
}

func heartbeat(s *Session, ctx context.Context, r heartbeatRequest) (Beat, error) {
	if r.ExtendMS != 0 {
		if err := protocol.CheckExtension(r.ExtendMS); err != nil {
			return Beat{}, err
		}
	}
	return s.Heartbeat(ctx, Heartbeat{r.Lease, time.Duration(r.ExtendMS) * time.Millisecond, r.Reason})
}

type progressRequest struct {
	Lease    string          `json:"lease"`
	Progress json.RawMessage `json:"progress"`
}

func progress(s *Session, ctx context.Context, r progressRequest) (protocol.State, error) {
	reported, err := protocol.DecodeProgress(r.Progress)
	return unless(err, func() (protocol.State, error) { return s.Progress(ctx, r.Lease, reported) })
}

type decideRequest struct {
	Lease    string                `json:"lease"`
	Decision protocol.WorkDecision `json:"decision"`
}

func (r decideRequest) args() (string, protocol.WorkDecision) { return r.Lease, r.Decision }

type spendRequest struct {
	Lease string         `json:"lease"`
	Usage protocol.Usage `json:"usage"`
}

func (r spendRequest) args() (string, protocol.Usage) { return r.Lease, r.Usage }

type completeRequest struct {
	Lease  string          `json:"lease"`
	Result json.RawMessage `json:"result"`
}

// complete fails the attempt for a result that cannot be read, like one that breaks the rules: its
// worker would try for ever.
func complete(s *Session, ctx context.Context, r completeRequest) (protocol.State, error) {
	result, err := protocol.DecodeResult(r.Result)
	if err == nil {
		return s.Complete(ctx, r.Lease, result)
	}
	failure, refusal := lifecycle.UnusableResult(err)
	if state, err := s.Fail(ctx, r.Lease, failure); err != nil {
		return state, err
	}
	return protocol.State{}, refusal
}

type failRequest struct {
	Lease        string          `json:"lease"`
	Code         string          `json:"code"`
	Message      string          `json:"message,omitempty"`
	Retryable    bool            `json:"retryable,omitempty"`
	RetryAfterMS int64           `json:"retry_after_ms,omitempty"`
	LimitKey     string          `json:"limit_key,omitempty"` // paused until the retry
	Usage        *protocol.Usage `json:"usage,omitempty"`
}

func fail(s *Session, ctx context.Context, r failRequest) (protocol.State, error) {
	if r.Code == "" {
		return protocol.State{}, protocol.Errorf(protocol.CodeMissing, "code", "is missing: a word to count by")
	}
	after, err := millis("retry_after_ms", r.RetryAfterMS, protocol.RetryAfterMaxMS)
	if err != nil {
		return protocol.State{}, err
	}
	return s.Fail(ctx, r.Lease, broker.Failure{Code: r.Code, Message: r.Message, Retryable: r.Retryable, RetryAfter: after, LimitKey: r.LimitKey, Usage: r.Usage})
}

type releaseRequest struct {
	Lease  string          `json:"lease"`
	Reason string          `json:"reason,omitempty"`
	Result json.RawMessage `json:"result,omitempty"` // partial
}

func release(s *Session, ctx context.Context, r releaseRequest) (protocol.State, error) {
	partial, err := decodePartial(r.Result)
	return unless(err, func() (protocol.State, error) { return s.Release(ctx, r.Lease, r.Reason, partial) })
}

// decodePartial reads a partial result, if there is one.
func decodePartial(raw json.RawMessage) (*protocol.Result, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	partial, err := protocol.DecodeResult(raw)
	return &partial, err
}

// encodePartial writes a partial result, if there is one.
func encodePartial(partial *protocol.Result) (json.RawMessage, error) {
	if partial == nil {
		return nil, nil
	}
	return protocol.EncodeResult(*partial)
}

type answerHeldRequest struct {
	Lease  string          `json:"lease"`
	Answer json.RawMessage `json:"answer"`
}

func answerHeld(s *Session, ctx context.Context, r answerHeldRequest) (protocol.State, error) {
	given, err := protocol.DecodeAnswer(r.Answer)
	return unless(err, func() (protocol.State, error) { return s.AnswerHeld(ctx, r.Lease, given) })
}

type escalateRequest struct {
	Lease      string `json:"lease"`
	Rationale  string `json:"rationale"`
	Assessment string `json:"assessment,omitempty"`
}

func escalate(s *Session, ctx context.Context, r escalateRequest) (protocol.State, error) {
	return s.Escalate(ctx, r.Lease, r.Rationale, r.Assessment)
}

type rollBackHeldRequest struct {
	Lease  string          `json:"lease"`
	Reason string          `json:"reason"`
	Result json.RawMessage `json:"result,omitempty"` // partial
}

func rollBackHeld(s *Session, ctx context.Context, r rollBackHeldRequest) (protocol.State, error) {
	partial, err := decodePartial(r.Result)
	return unless(err, func() (protocol.State, error) { return s.RollBackHeld(ctx, r.Lease, r.Reason, partial) })
}

type handOffRequest struct {
	Lease   string          `json:"lease"`
	Package json.RawMessage `json:"package"`
	Nth     int             `json:"nth,omitempty"`
	AtOnce  bool            `json:"at_once,omitempty"`
	Waits   bool            `json:"waits,omitempty"`
}

func handOff(s *Session, ctx context.Context, r handOffRequest) (Child, error) {
	pkg, err := protocol.DecodePackage(r.Package)
	if err == nil && (r.Nth < 0 || r.Nth > protocol.ChildrenMax) {
		err = protocol.Errorf(protocol.CodeInvalid, "nth", "is %d, must be 0 to %d", r.Nth, protocol.ChildrenMax)
	}
	if err != nil {
		return Child{}, err
	}
	return s.HandOff(ctx, HandOff{r.Lease, pkg, r.Nth, r.AtOnce, r.Waits})
}

type awaitRequest struct {
	Lease   string   `json:"lease"`
	Tickets []string `json:"tickets,omitempty"`
}

func (r awaitRequest) args() (string, []string) { return r.Lease, r.Tickets }

type findRequest struct {
	Prefix string `json:"prefix"`
}

type ticketAnswer struct {
	Ticket string `json:"ticket"`
}

func find(s *Session, ctx context.Context, r findRequest) (ticketAnswer, error) {
	ticket, err := s.Find(ctx, r.Prefix)
	return ticketAnswer{ticket}, err
}

type whyRequest struct {
	Ticket string `json:"ticket"`
	Zone   string `json:"zone,omitempty"` // such as Europe/Berlin; UTC without one
}

func why(s *Session, ctx context.Context, r whyRequest) (explain.Explanation, error) {
	zone, err := time.LoadLocation(r.Zone)
	if err != nil {
		return explain.Explanation{}, protocol.Errorf(protocol.CodeInvalid, "zone", "is %q, which is no time zone", protocol.CutText(r.Zone, 64))
	}
	return s.Why(ctx, r.Ticket, zone)
}

type findAgentsRequest struct {
	Task string `json:"task"`
	Most int    `json:"most"`
}

func (r findAgentsRequest) args() (string, int) { return r.Task, r.Most }

type recommendRequest struct {
	From string `json:"from"`
	Task string `json:"task,omitempty"`
	Most int    `json:"most"`
}

func recommendAgents(s *Session, ctx context.Context, r recommendRequest) (Recommendations, error) {
	return s.RecommendAgents(ctx, r.From, r.Task, r.Most)
}

type profileRequest struct {
	Profile json.RawMessage `json:"profile"`
}

func putAgent(s *Session, ctx context.Context, r profileRequest) (protocol.Profile, error) {
	profile, err := protocol.DecodeProfile(r.Profile)
	return unless(err, func() (protocol.Profile, error) { return s.PutAgent(ctx, profile) })
}

type openRequest struct {
	Name   string                   `json:"name"`
	Limits protocol.WorkspaceLimits `json:"limits"`
}

func (r openRequest) args() (string, protocol.WorkspaceLimits) { return r.Name, r.Limits }

type resolveRequest struct {
	Name string `json:"name"`
	SetVariables
}

func (r resolveRequest) args() (string, SetVariables) { return r.Name, r.SetVariables }

type setVariablesRequest struct {
	Lease string `json:"lease"`
	SetVariables
}

func (r setVariablesRequest) args() (string, SetVariables) { return r.Lease, r.SetVariables }

type lockRequest struct {
	Lease  string              `json:"lease"`
	Paths  []protocol.LockPath `json:"paths"`
	WaitMS int64               `json:"wait_ms,omitempty"`
}

// lockAnswer grants the locks, or reports that the request waits: the caller is to repeat it.
type lockAnswer struct {
	Seq     uint64 `json:"seq,omitempty"`
	Waiting bool   `json:"waiting,omitempty"`
}

// lock asks for locks once, so that no answer is held back.
func lock(s *Session, ctx context.Context, r lockRequest) (answer lockAnswer, err error) {
	wait, err := protocol.CheckLockWait("wait_ms", r.WaitMS)
	if err != nil {
		return answer, err
	}
	_, err = s.report(ctx, "Lock", r.Lease, func(claim *broker.Claim) (err error) {
		answer.Seq, answer.Waiting, err = claim.TryLock(ctx, wait, r.Paths...)
		return err
	})
	return answer, err
}

type unlockRequest struct {
	Lease string              `json:"lease"`
	Paths []protocol.LockPath `json:"paths,omitempty"`
}

func (r unlockRequest) args() (string, []protocol.LockPath) { return r.Lease, r.Paths }

type interveneRequest struct {
	Ticket string `json:"ticket"`
	Reason string `json:"reason,omitempty"`
}

func (r interveneRequest) args() (string, string) { return r.Ticket, r.Reason }

type takeRequest struct {
	Ticket  string `json:"ticket"`
	Agent   string `json:"agent"`
	LeaseMS int64  `json:"lease_ms"`
	Reason  string `json:"reason,omitempty"`
	Host    string `json:"host,omitempty"`
}

func take(s *Session, ctx context.Context, r takeRequest) (Held, error) {
	lease, err := millis("lease_ms", r.LeaseMS, protocol.LeaseMaxMS)
	return unless(err, func() (Held, error) { return s.Take(ctx, Take{r.Ticket, r.Agent, lease, r.Reason, r.Host}) })
}

type raiseRequest struct {
	Ticket string           `json:"ticket"`
	More   protocol.Amounts `json:"more"`
}

func (r raiseRequest) args() (string, protocol.Amounts) { return r.Ticket, r.More }

type attentionRequest struct {
	Also []string `json:"also,omitempty"`
}

func attention(s *Session, ctx context.Context, r attentionRequest) (Attention, error) {
	return s.Attention(ctx, r.Also)
}

// Gateway sends an operation's request to a gateway and returns its answer, both in JSON. wait is
// how long the operation may take beyond its work. It repeats a request that got no answer, if that
// is harmless. Its errors are those of a Session.
type Gateway interface {
	Do(ctx context.Context, operation string, wait time.Duration, request []byte) (answer []byte, err error)
	// Patient reports whether a wait goes on after this error of a request.
	Patient(ctx context.Context, err error) bool
}

// AgentOperations are the operations of a program that speaks for an agent.
type AgentOperations interface {
	Source
	Holder
	Approver
	Sharer
	Decider
	Workers
}

// remote implements the operations of an agent over a gateway.
type remote struct{ g Gateway }

// Over returns the operations of an agent over a gateway. They are safe for concurrent use.
func Over(g Gateway) AgentOperations { return &remote{g} }

// askFor performs one operation.
func askFor[A any](ctx context.Context, c *remote, operation string, wait time.Duration, request any) (answer A, err error) {
	body, err := protocol.Marshal(request)
	if err != nil {
		return answer, protocol.Errorf(protocol.CodeMalformed, "request", "cannot be written: %v", err)
	}
	if most := OperationOf(operation).RequestBytesMax; len(body) > most {
		return answer, protocol.Errorf(protocol.CodeTooLarge, "request", "%s", protocol.OverSize(len(body), most))
	}
	if body, err = c.g.Do(ctx, operation, wait, body); err != nil {
		return answer, err
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return answer, fmt.Errorf("answer to %s: %w", operation, err)
	}
	return answer, nil
}

func (c *remote) state(ctx context.Context, operation string, request any) (protocol.State, error) {
	return askFor[protocol.State](ctx, c, operation, 0, request)
}

// Submit implements Source. A package without a key gets a random one, so that it may be repeated:
// until a gateway answers or ctx ends, unless there is no gateway at all.
func (c *remote) Submit(ctx context.Context, pkg protocol.Package) (protocol.State, error) {
	if pkg.Key == "" {
		pkg.Key = uuid.NewString()
	}
	raw, err := protocol.EncodePackage(pkg)
	if err != nil {
		return protocol.State{}, err
	}
	for {
		state, err := c.state(ctx, "Submit", submitRequest{raw})
		if err == nil || !c.g.Patient(ctx, err) {
			return state, err
		}
	}
}

func (c *remote) Status(ctx context.Context, ticket string) (protocol.State, error) {
	return c.state(ctx, "Status", ticketRequest{ticket})
}

func (c *remote) LastOfChain(ctx context.Context, ticket string) (protocol.State, error) {
	return c.state(ctx, "LastOfChain", ticketRequest{ticket})
}

// Wait implements Source. It waits for a gateway that becomes unreachable after the first answer.
func (c *remote) Wait(ctx context.Context, ticket string, until Until) (protocol.State, error) {
	return c.wait(ctx, "Wait", ticket, until)
}

// WaitChain implements Source, as Wait does.
func (c *remote) WaitChain(ctx context.Context, ticket string, until Until) (protocol.State, error) {
	return c.wait(ctx, "WaitChain", ticket, until)
}

func (c *remote) wait(ctx context.Context, operation, ticket string, until Until) (protocol.State, error) {
	last, err := askFor[Waited](ctx, c, operation, 0, waitRequest{Ticket: ticket, Until: until})
	if err != nil {
		return last.State, err
	}
	for !last.Ready {
		answer, err := askFor[Waited](ctx, c, operation, WaitMax, waitRequest{ticket, until, WaitMax.Milliseconds()})
		switch {
		case err == nil:
			last = answer
		case ctx.Err() != nil:
			return last.State, ctx.Err()
		case !c.g.Patient(ctx, err):
			return last.State, err
		}
	}
	return last.State, nil
}

func (c *remote) Result(ctx context.Context, ticket string) (protocol.Result, protocol.State, error) {
	return c.result(ctx, "Result", ticket)
}

func (c *remote) ChainResult(ctx context.Context, ticket string) (protocol.Result, protocol.State, error) {
	return c.result(ctx, "ChainResult", ticket)
}

func (c *remote) result(ctx context.Context, operation, ticket string) (protocol.Result, protocol.State, error) {
	answer, err := askFor[resultAnswer](ctx, c, operation, 0, ticketRequest{ticket})
	switch {
	case err != nil:
		return protocol.Result{}, answer.State, err
	case answer.Result == nil:
		return protocol.Result{}, answer.State, fmt.Errorf("result of %s: %w", answer.State.Ticket, broker.ErrNotFound)
	}
	return *answer.Result, answer.State, nil
}

func (c *remote) Return(ctx context.Context, ticket string) (protocol.Return, error) {
	return askFor[protocol.Return](ctx, c, "Return", 0, ticketRequest{ticket})
}

func (c *remote) Context(ctx context.Context, ticket string) (protocol.Context, error) {
	return askFor[protocol.Context](ctx, c, "Context", 0, ticketRequest{ticket})
}

func (c *remote) Cancel(ctx context.Context, r Cancel) (protocol.State, error) {
	return c.state(ctx, "Cancel", r)
}

func (c *remote) Answer(ctx context.Context, ticket string, given protocol.Answer) (protocol.State, error) {
	raw, err := encodeAnswer(given)
	return unless(err, func() (protocol.State, error) { return c.state(ctx, "Answer", answerRequest{ticket, raw}) })
}

func (c *remote) Approve(ctx context.Context, v Verdict) (protocol.State, error) {
	return c.state(ctx, "Approve", v)
}

func (c *remote) Deny(ctx context.Context, v Verdict) (protocol.State, error) {
	return c.state(ctx, "Deny", v)
}

func (c *remote) Approvals(ctx context.Context) ([]protocol.State, error) {
	return askFor[[]protocol.State](ctx, c, "Approvals", 0, noRequest{})
}

// Claim implements Holder. Skipped of the request is not called.
func (c *remote) Claim(ctx context.Context, r Claim) (Held, error) {
	if err := r.Validate(); err != nil {
		return Held{}, err
	}
	request := claimRequest{Agent: r.Agent, LeaseMS: r.Lease.Milliseconds(), Accept: r.Accept, AckWithinMS: r.AckWithin.Milliseconds(),
		Key: r.Key, Host: protocol.CutText(r.Host, protocol.NameBytesMax)}
	for until := time.Now().Add(r.Wait); ; {
		wait := max(0, min(time.Until(until), WaitMax))
		request.WaitMS = wait.Milliseconds()
		held, err := askFor[Held](ctx, c, "Claim", wait+pullMin, request)
		if err == nil && held.State == nil {
			return Held{}, errors.New("answer to Claim: state is missing")
		}
		if !errors.Is(err, &protocol.Error{Code: protocol.CodeNothingToClaim}) || ctx.Err() != nil || time.Until(until) <= 0 {
			return held, err
		}
	}
}

func (c *remote) Acknowledge(ctx context.Context, lease string, ack protocol.Ack) (protocol.State, error) {
	raw, err := encode(ack)
	return unless(err, func() (protocol.State, error) { return c.state(ctx, "Acknowledge", acknowledgeRequest{lease, raw}) })
}

func (c *remote) Heartbeat(ctx context.Context, r Heartbeat) (Beat, error) {
	return askFor[Beat](ctx, c, "Heartbeat", 0, heartbeatRequest{r.Lease, r.Extend.Milliseconds(), r.Reason})
}

func (c *remote) Progress(ctx context.Context, lease string, reported protocol.Progress) (protocol.State, error) {
	raw, err := encode(reported)
	return unless(err, func() (protocol.State, error) { return c.state(ctx, "Progress", progressRequest{lease, raw}) })
}

func (c *remote) Decide(ctx context.Context, lease string, decision protocol.WorkDecision) (protocol.State, error) {
	decision.Normalize()
	return unless(decision.Validate(), func() (protocol.State, error) { return c.state(ctx, "Decide", decideRequest{lease, decision}) })
}

func (c *remote) Spend(ctx context.Context, lease string, usage protocol.Usage) (protocol.State, error) {
	return c.state(ctx, "Spend", spendRequest{lease, usage})
}

// Complete implements Holder. A result that cannot be sent fails the attempt, as one that is
// refused does.
func (c *remote) Complete(ctx context.Context, lease string, result protocol.Result) (protocol.State, error) {
	raw, err := protocol.EncodeResult(result)
	if err == nil && len(raw) > protocol.ResultBytesMax {
		err = protocol.Errorf(protocol.CodeTooLarge, "result", "%s; hand large output over as an artifact", protocol.OverSize(len(raw), protocol.ResultBytesMax))
	}
	if err == nil {
		return c.state(ctx, "Complete", completeRequest{lease, raw})
	}
	failure, refusal := lifecycle.UnusableResult(err)
	failure.Usage = result.Usage
	if state, err := c.Fail(ctx, lease, failure); err != nil {
		return state, err
	}
	return protocol.State{}, refusal
}

func (c *remote) Fail(ctx context.Context, lease string, f broker.Failure) (protocol.State, error) {
	return c.state(ctx, "Fail", failRequest{lease, protocol.CutText(f.Code, protocol.NameBytesMax), protocol.CutText(f.Message, protocol.FailureBytesMax),
		f.Retryable, min(max(f.RetryAfter.Milliseconds(), 0), protocol.RetryAfterMaxMS), f.LimitKey, f.Usage})
}

func (c *remote) Release(ctx context.Context, lease, reason string, partial *protocol.Result) (protocol.State, error) {
	raw, err := encodePartial(partial)
	return unless(err, func() (protocol.State, error) {
		return c.state(ctx, "Release", releaseRequest{lease, cutReason(reason), raw})
	})
}

func (c *remote) AnswerHeld(ctx context.Context, lease string, given protocol.Answer) (protocol.State, error) {
	raw, err := encodeAnswer(given)
	return unless(err, func() (protocol.State, error) { return c.state(ctx, "AnswerHeld", answerHeldRequest{lease, raw}) })
}

// encodeAnswer writes an answer without its author, whom the gateway knows.
func encodeAnswer(given protocol.Answer) (json.RawMessage, error) {
	err := given.Validate()
	given.By = ""
	return unless(err, func() (json.RawMessage, error) { return protocol.Marshal(given) })
}

// encode writes free data that keeps its rules.
func encode(data interface{ Validate() error }) (json.RawMessage, error) {
	return unless(data.Validate(), func() (json.RawMessage, error) { return protocol.Marshal(data) })
}

func (c *remote) Escalate(ctx context.Context, lease, rationale, assessment string) (protocol.State, error) {
	return c.state(ctx, "Escalate", escalateRequest{lease, cutReason(rationale), cutReason(assessment)})
}

func (c *remote) RollBackHeld(ctx context.Context, lease, reason string, partial *protocol.Result) (protocol.State, error) {
	raw, err := encodePartial(partial)
	return unless(err, func() (protocol.State, error) {
		return c.state(ctx, "RollBackHeld", rollBackHeldRequest{lease, cutReason(reason), raw})
	})
}

// HandOff implements Holder. It numbers the child by the current state, so that the request may be
// repeated.
func (c *remote) HandOff(ctx context.Context, r HandOff) (Child, error) {
	key, err := protocol.ChildKeyOf(r.Package)
	if err != nil {
		return Child{}, err
	}
	raw, err := protocol.EncodePackage(r.Package)
	if err != nil {
		return Child{}, err
	}
	if r.Nth == 0 {
		beat, err := c.Heartbeat(ctx, Heartbeat{Lease: r.Lease})
		if err != nil {
			return Child{}, err
		}
		r.Nth = lifecycle.NextNth(beat.State, key)
	}
	return askFor[Child](ctx, c, "HandOff", 0, handOffRequest{r.Lease, raw, r.Nth, r.AtOnce, r.Waits})
}

func (c *remote) Await(ctx context.Context, lease string, tickets []string) (protocol.State, error) {
	return c.state(ctx, "Await", awaitRequest{lease, tickets})
}

// lockPoll is the interval at which a client asks for a lock that it waits for.
const lockPoll = 250 * time.Millisecond

func (c *remote) Lock(ctx context.Context, r Lock) (seq uint64, err error) {
	if err := r.Validate(); err != nil {
		return 0, err
	}
	for until := time.Now().Add(r.Wait); ; {
		answer, err := askFor[lockAnswer](ctx, c, "Lock", 0, lockRequest{r.Lease, r.Paths, max(0, time.Until(until)).Milliseconds()})
		if err != nil || !answer.Waiting {
			return answer.Seq, err
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err() // the request lapses with its time
		case <-time.After(lockPoll):
		}
	}
}

func (c *remote) Unlock(ctx context.Context, lease string, paths []protocol.LockPath) (protocol.State, error) {
	return c.state(ctx, "Unlock", unlockRequest{lease, paths})
}

func (c *remote) SetVariables(ctx context.Context, lease string, set SetVariables) (protocol.Workspace, error) {
	return unless(protocol.CheckVariables(set.Values), func() (protocol.Workspace, error) {
		return askFor[protocol.Workspace](ctx, c, "SetVariables", 0, setVariablesRequest{lease, set})
	})
}

func (c *remote) HeldWorkspace(ctx context.Context, lease string) (protocol.Workspace, error) {
	return askFor[protocol.Workspace](ctx, c, "HeldWorkspace", 0, leaseRequest{lease})
}
