package api

import (
	"cmp"
	"container/list"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brief"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// mayWork refuses a caller that may not hold handoffs of an agent.
func (c *Session) mayWork(operation, agent string) error {
	if err := c.may(operation); err != nil {
		return err
	}
	if !c.caller.worksAs(agent) {
		return forbidden("agent", "is %s, and %s works", protocol.CutText(agent, 64), c.caller.Name)
	}
	return nil
}

// polling returns the holder of one claim. Its id is the secret of the lease: random, or made of a key
// that cannot be guessed.
func polling(agent, key, host string, lease time.Duration) protocol.Holder {
	id := HolderID(agent, cmp.Or(key, uuid.NewString()))
	return protocol.Holder{ID: id, Agent: agent, LeaseMS: lease.Milliseconds(), Slots: 1, Busy: 1, Polling: true,
		Host: host, StartedAt: time.Now().UTC()}
}

// Claim implements Holder.
func (c *Session) Claim(ctx context.Context, request Claim) (Held, error) {
	if err := request.Validate(); err != nil {
		return Held{}, err
	}
	if err := c.mayWork("Claim", request.Agent); err != nil {
		return Held{}, err
	}
	if err := c.claimable(ctx, request.Agent); err != nil {
		return Held{}, err
	}
	holder := polling(request.Agent, request.Key, request.Host, request.Lease)
	claim, err := c.claimOf(ctx, request, holder)
	if err == nil && claim == nil {
		claim, err = c.claimNext(ctx, request, holder)
	}
	if err != nil {
		return Held{}, err
	}
	return c.s.hold(ctx, claim), nil
}

// claimOf returns the claim that an earlier request with the same key made, or nil. The index knows the
// holders of handoffs.
func (c *Session) claimOf(ctx context.Context, request Claim, holder protocol.Holder) (*broker.Claim, error) {
	if request.Key == "" {
		return nil, nil
	}
	directory, err := c.s.b.Directory(ctx)
	if err != nil {
		return nil, err
	}
	profile, _ := directory.Agent(request.Agent)
	open, query := true, ask.ListQuery{Limit: ask.PageMax}
	for query.Filter = (ask.Filter{Agent: []string{request.Agent}, Open: &open}); ; {
		page, err := c.s.cfg.Index.List(ctx, query)
		if err != nil {
			return nil, err
		}
		for _, row := range page.Handoffs {
			if row.Holder != holder.ID {
				continue
			}
			state, err := c.s.b.Status(ctx, row.Ticket)
			if err != nil || state.Holder != holder.ID {
				return nil, err
			}
			lease := broker.LeaseToken{Ticket: row.Ticket, Agent: holder.Agent, Offer: state.Offer, Holder: holder.ID, Slot: profile.MaxConcurrency > 0, Suited: true}
			return c.s.b.Resume(ctx, lease.String())
		}
		if query.Cursor = page.Cursor; query.Cursor == "" {
			return nil, nil
		}
	}
}

// claimable refuses an agent that is not registered or is paused. It records the poll of an agent
// that is registered.
func (c *Session) claimable(ctx context.Context, agent string) error {
	if agent == protocol.Human {
		return nil
	}
	profile, err := c.s.b.Profile(ctx, agent)
	switch {
	case errors.Is(err, broker.ErrNotFound):
		return protocol.Errorf(protocol.CodeUnknownAgent, "agent", "no agent is called %s; register it", agent)
	case err != nil:
		return err
	}
	if err := c.s.b.RecordPoll(ctx, profile); err != nil {
		return err
	}
	if profile.Paused {
		return protocol.Errorf(protocol.CodeNothingToClaim, "agent", "%s is paused, and its offers wait until it is resumed", agent)
	}
	return nil
}

// claimNext claims one offer for a holder. It first records the holder's presence, so that no
// supervisor considers the holder gone, and ends the presence if nothing was claimed.
func (c *Session) claimNext(ctx context.Context, request Claim, holder protocol.Holder) (claim *broker.Claim, err error) {
	defer func() {
		if claim == nil { // also where ctx ended in the first beat: it may be stored
			c.leave(ctx, holder)
		}
	}()
	if err := c.s.b.Beat(ctx, holder); err != nil {
		return nil, err
	}
	if _, known := c.s.queues.Load(holder.Agent); !known { // a pull recreates one that is lost later
		if err := c.s.b.EnsureQueue(ctx, holder.Agent); err != nil {
			return nil, err
		}
		c.s.queues.Store(holder.Agent, true)
	}
	_ = c.s.cfg.CountOn(ctx, holder.Agent) // if it fails, the most urgent offer is claimed
	for beaten, until := time.Now(), time.Now().Add(request.Wait); ; {
		offers, err := c.pull(ctx, holder.Agent, 1, pullWait(holder, time.Until(until)))
		if errors.Is(err, ErrWaitEnded) {
			return nil, c.nothingFor(ctx, holder.Agent)
		}
		if err != nil {
			return nil, err
		}
		for _, offer := range offers {
			if ctx.Err() != nil { // the caller is gone: another one gets it at once
				_ = offer.Release()
				return nil, ctx.Err()
			}
			claim, err := claimOffer(ctx, offer, holder, request)
			if err == nil || !skip(ctx, offer, holder, err, request.Skipped) {
				return claim, err
			}
		}
		if len(offers) == 0 && time.Now().After(until) {
			return nil, c.nothingFor(ctx, holder.Agent)
		}
		if time.Since(beaten)+pullMax <= time.Duration(holder.LeaseMS)*time.Millisecond/2 {
			continue
		}
		if err := c.s.b.Beat(ctx, holder); err != nil { // a long wait outlives a short lease
			return nil, err
		}
		beaten = time.Now()
	}
}

// pull waits for offers, as long as the gateway lets it wait.
func (c *Session) pull(ctx context.Context, agent string, most int, wait time.Duration) (offers []*broker.Offer, err error) {
	c.s.cfg.Pause(ctx, func(pausing context.Context) {
		offers, err = c.s.b.Pull(pausing, agent, most, wait)
		if err != nil && pausing.Err() != nil && ctx.Err() == nil {
			err = ErrWaitEnded
		}
	})
	return offers, err
}

func claimOffer(ctx context.Context, offer *broker.Offer, holder protocol.Holder, request Claim) (*broker.Claim, error) {
	if request.Accept {
		return offer.Acknowledge(ctx, holder, protocol.Ack{Status: protocol.AckAccepted}, true)
	}
	return offer.Claim(ctx, holder, request.AckWithin)
}

// skip reports whether a claim tries the next offer after one that it could not take. A package
// that is gone or damaged is refused for its agent. A person has no next agent: such an offer, like
// every other skipped one, comes again after the ack wait.
func skip(ctx context.Context, offer *broker.Offer, holder protocol.Holder, err error, skipped func(ticket string, refused bool, err error)) bool {
	switch {
	case errors.Is(err, broker.ErrOfferGone):
		return true
	case ctx.Err() != nil, errors.Is(err, broker.ErrUnreachable), errors.Is(err, context.DeadlineExceeded), errors.Is(err, broker.ErrNotAllowed):
		return false
	}
	refused := false
	if errors.Is(err, broker.ErrNotFound) && holder.Agent != protocol.Human {
		_, refusal := offer.Acknowledge(ctx, holder, lifecycle.UnreadablePackage(err), false)
		refused = refusal == nil
	}
	if skipped != nil {
		skipped(offer.Ticket, refused, err)
	}
	return true
}

// nothingFor explains why there is nothing to claim: the queue is empty, or the agent is at
// capacity.
func (c *Session) nothingFor(ctx context.Context, agent string) error {
	inHand, limit, err := c.s.b.Capacity(ctx, agent)
	if err == nil && limit > 0 && inHand >= limit {
		return protocol.Errorf(protocol.CodeNothingToClaim, "max_concurrency", "%s: %s works on %s, and takes no more at a time", protocol.ReasonAtCapacity, agent, explain.Count(inHand, "handoff"))
	}
	return protocol.Errorf(protocol.CodeNothingToClaim, "", "nothing to claim for %s", agent)
}

const (
	// pullMin is the time for an existing offer to arrive, for a claim that does not wait.
	pullMin = 500 * time.Millisecond
	// pullMax bounds one pull, after which the claim checks again whether offers may be claimed.
	pullMax = 5 * time.Second
)

// pullWait is how long to wait for an offer before the next beat is due.
func pullWait(holder protocol.Holder, left time.Duration) time.Duration {
	beat := time.Duration(holder.LeaseMS) * time.Millisecond / 3
	return max(min(left, beat, pullMax), pullMin)
}

// hold returns a new claim for its holder, and keeps it, so that reports by its lease read nothing.
func (s *Service) hold(ctx context.Context, claim *broker.Claim) Held {
	kept := keptClaim{lease: claim.WorkerLease(), claim: claim}
	most := s.cfg.Claims
	switch {
	case claim.Holder.Polling:
		kept.lease = claim.Lease()
	case s.cfg.Remote:
	default:
		most = 0
	}
	if s.cfg.Remote {
		kept.lease = broker.RemoteLease(kept.lease, s.cfg.Gateway)
		if !claim.Holder.Polling && !claim.Again { // one that came again may be reported on elsewhere
			kept.unheard = s.awaitReport(kept.lease, claim)
		}
	}
	h := Held{Lease: kept.lease, Agent: claim.Agent, State: claim.LastState(), Expires: expiry(claim.Holder),
		Package: claim.Package, Answers: claim.Answers, Trail: claim.Trail}
	s.claims.keep(kept, most)
	h.Returns, h.ReturnsErr = s.b.ChildReturns(ctx, *h.State)
	if h.ReturnsErr == nil {
		h.Children, h.ReturnsErr = s.b.Children(ctx, *h.State)
	}
	if s.cfg.Remote && sizeOf(h.Returns) > remoteBytesMax {
		h.Returns = nil
	}
	return h
}

// sizeOf returns the size of the results in returns, in bytes.
func sizeOf(returns []protocol.Return) (size int) {
	for _, r := range returns {
		if r.Result != nil {
			size += len(r.Result.Body)
		}
	}
	return size
}

// Take gives an open handoff to an agent, as accepted. The caller must be allowed to work as the agent.
func (c *Session) Take(ctx context.Context, request Take) (Held, error) {
	ticket, err := protocol.ParseTicket(request.Ticket)
	if err == nil {
		err = CheckLease(request.Lease)
	}
	if err == nil {
		err = c.mayWork("Take", request.Agent)
	}
	if err != nil {
		return Held{}, err
	}
	holder := polling(request.Agent, "", request.Host, request.Lease)
	var claim *broker.Claim
	if err = c.s.b.Beat(ctx, holder); err == nil { // presence first, so that no supervisor considers it gone
		claim, err = c.s.b.Take(ctx, ticket, holder, request.Reason)
	}
	if err != nil {
		c.leave(ctx, holder)
		return Held{}, err
	}
	return c.s.hold(ctx, claim), nil
}

// Decider records the decisions of a holder, and its answer as an authority.
type Decider interface {
	// Decide records a decision that the holder makes during the work. If its risk exceeds that of
	// the agent or the package, the error has CodeAutonomy and nothing is recorded.
	Decide(ctx context.Context, lease string, decision protocol.WorkDecision) (protocol.State, error)
	// AnswerHeld answers a handoff that was escalated to the agent: it returns to the agent that
	// escalated it. The agent is recorded as the author.
	AnswerHeld(ctx context.Context, lease string, answer protocol.Answer) (protocol.State, error)
}

// Holder claims handoffs for agents and reports on them.
//
// It serves workers that keep only a lease between two calls. Every call with a lease renews the
// presence of its holder for the length of the lease. A report with a lost lease returns
// broker.ErrLeaseLost, and changes nothing. A report that ended the claim may be repeated, because
// its answer was lost: it returns the state and changes nothing.
type Holder interface {
	// Claim takes the most urgent offer of an agent. Without an offer the error has
	// CodeNothingToClaim.
	Claim(ctx context.Context, request Claim) (Held, error)
	// Acknowledge answers an offer: accepted, rejected or conditional.
	Acknowledge(ctx context.Context, lease string, ack protocol.Ack) (protocol.State, error)
	// Heartbeat keeps a lease and returns the changes.
	Heartbeat(ctx context.Context, request Heartbeat) (Beat, error)
	// Progress records the progress of the work.
	Progress(ctx context.Context, lease string, progress protocol.Progress) (protocol.State, error)
	// Spend records the usage of the attempt so far. Only the increase over the last report counts.
	Spend(ctx context.Context, lease string, usage protocol.Usage) (protocol.State, error)
	// Complete closes a handoff with a result. An invalid result fails the attempt. A result after
	// the loss of its lease is stored with the handoff, and the error is a *LateResultError. The
	// same result again, because the answer was lost, returns the state.
	Complete(ctx context.Context, lease string, result protocol.Result) (protocol.State, error)
	// Fail ends an attempt without a result.
	Fail(ctx context.Context, lease string, failure broker.Failure) (protocol.State, error)
	// Release puts a handoff back into its queue without charging an attempt. A partial result, if
	// any, is kept as a late one, even under a lost lease.
	Release(ctx context.Context, lease, reason string, partial *protocol.Result) (protocol.State, error)
	// Escalate passes a handoff to the authority above its agent.
	Escalate(ctx context.Context, lease, rationale, assessment string) (protocol.State, error)
	// RollBackHeld returns a handoff to its source, undone, with a partial result, if any.
	RollBackHeld(ctx context.Context, lease, reason string, partial *protocol.Result) (protocol.State, error)
	// HandOff hands off part of the work to another agent and records it as a child.
	HandOff(ctx context.Context, request HandOff) (Child, error)
	// Await releases a handoff until children have closed: those named, or all of them.
	Await(ctx context.Context, lease string, tickets []string) (protocol.State, error)
}

// Claim is the request to claim an offer.
type Claim struct {
	// Agent is the agent whose queue is read.
	Agent string `flag:"agent" doc:"the {AGENT} to claim for (default $HANDOFF_AGENT)"`
	// Wait is how long to wait for an offer; 0 takes only an offer that exists.
	Wait time.Duration `flag:"wait" doc:"wait this long for an offer (default: take an offer that exists now)"`
	// Lease is the time that the claim lasts without a heartbeat.
	Lease time.Duration `flag:"lease" doc:"how long the claim lives without a heartbeat"`
	// Accept accepts the offer at once.
	Accept bool `flag:"accept" doc:"accept at once and begin, without a separate ack"`
	// Key makes the claim repeatable: a repeat with the same key returns the handoff that the first one
	// claimed, while that is held. It has 16 characters at least, which cannot be guessed. It needs an index.
	Key string
	// Host names the machine of the holder, for people.
	Host string
	// AckWithin is the time to acknowledge without Accept; 0 uses the handoff's own.
	AckWithin time.Duration `flag:"ack-within,,signed" doc:"acknowledge within this, at most 1h (default: the handoff's ack_timeout_ms, 30s; 1h for human)"`
	// Skipped, if not nil, is called for each offer that could not be claimed. refused reports that
	// the offer was refused as unreadable; otherwise it comes again.
	Skipped func(ticket string, refused bool, err error)
}

// Validate checks the request. Claim calls it first.
func (r Claim) Validate() error {
	if err := protocol.CheckAgent("agent", r.Agent); err != nil {
		return err
	}
	if err := CheckLease(r.Lease); err != nil {
		return err
	}
	if r.Key != "" {
		if _, err := holderOf(r.Agent, r.Key, r.Lease.Milliseconds()); err != nil {
			return err
		}
	}
	return protocol.CheckAckWithin(r.AckWithin.Milliseconds())
}

// CheckLease checks the length of a lease.
func CheckLease(lease time.Duration) error {
	if ms := lease.Milliseconds(); ms < protocol.LeaseMinMS || ms > protocol.LeaseMaxMS {
		return protocol.Errorf(protocol.CodeInvalid, "lease", "is %v; a lease is between %v and %v",
			explain.Duration(lease), explain.Millis(protocol.LeaseMinMS), explain.Millis(protocol.LeaseMaxMS))
	}
	return nil
}

// Held is a handoff that was claimed or taken.
type Held struct {
	// Lease identifies the claim in all calls about the handoff. It is a secret of its holder.
	Lease   string                `json:"lease"`
	Agent   string                `json:"agent"`
	State   *protocol.State       `json:"state"`   // not to be changed: others may read the same
	Expires time.Time             `json:"expires"` // of the lease, unless renewed
	Package json.RawMessage       `json:"package"`
	Answers []protocol.Answer     `json:"answers,omitempty"` // to conditions, oldest first
	Trail   []protocol.TrailEntry `json:"trail,omitempty"`   // earlier refusals, questions and failures, oldest first
	// Returns are the ends of the children that it waited for. ReturnsErr is the error of reading
	// them. A gateway leaves out ends of more than 4 MiB together; each can be read by its own ticket.
	Returns    []protocol.Return `json:"returns,omitempty"`
	ReturnsErr error             `json:"-"`
	// Children are its children, including those of earlier attempts. An attempt adopts a child if
	// it hands off the same again or waits for it, or else may cancel it.
	Children []broker.HandedOff `json:"children,omitempty"`
	// Brief is the handoff as instructions for a model, if the claim at a gateway asked for it.
	Brief string `json:"brief,omitempty"`
}

// Instructions returns the handoff as instructions for a model, in Markdown.
func (h *Held) Instructions() (string, error) {
	pkg, err := protocol.DecodePackage(h.Package)
	if err != nil {
		return "", err
	}
	return brief.Markdown(&pkg, *h.State, brief.Since{Answers: h.Answers, Trail: h.Trail, Returns: h.Returns}), nil
}

// Heartbeat is the request to keep a lease, and to extend the time if Extend is not zero.
type Heartbeat struct {
	Lease  string
	Extend time.Duration `flag:"extend,,signed" doc:"the work takes this much longer; granted once, up to the return's clock and the deadline"`
	Reason string        `flag:"reason" doc:"why it takes longer; required to extend"`
}

// Beat is the answer to a heartbeat.
type Beat struct {
	broker.Signal
	State   protocol.State `json:"state"`
	Expires time.Time      `json:"expires"` // of the lease, unless renewed
}

// HandOff is the request to hand off part of the work on a handoff.
type HandOff struct {
	Lease string
	// Package is compared with the handoff's children, by its key or, without a key, by its
	// content. If an earlier attempt handed off the same, HandOff returns that child.
	Package protocol.Package
	// Nth is the number among equal children of this attempt, from 1, so that the call may be
	// repeated; 0 is the next.
	Nth int
	// AtOnce begins a sequential child at once and not with the result of this handoff.
	AtOnce bool
	// Waits records that the program keeps its slot while it waits for the child. Such waits in a
	// circle are a deadlock.
	Waits bool
}

// Child is a handoff that was handed off from the work on another.
type Child struct {
	Ticket string         `json:"ticket"`
	Parent protocol.State `json:"parent"`
}

// Take is the request to give a handoff to an agent.
type Take struct {
	Ticket string
	Agent  string `flag:"agent" doc:"the {AGENT} that takes it (default $HANDOFF_AGENT, else human)"`
	// Lease is the time that the agent keeps the handoff without a heartbeat.
	Lease  time.Duration `flag:"lease" doc:"how long it stays yours without a heartbeat"`
	Reason string        `flag:"reason" doc:"why"`
	// Host names the machine of the holder, for people.
	Host string
}

// leaveTimeout bounds the removal of a presence, which otherwise expires with its lease.
const leaveTimeout = 3 * time.Second

// report resumes the claim of a lease, reports on it, and returns the new state. Each report renews
// the holder's presence. The lease of another agent is refused before anything is read.
func (c *Session) report(ctx context.Context, operation, lease string, report func(claim *broker.Claim) error) (protocol.State, error) {
	if err := c.may(operation); err != nil {
		return protocol.State{}, err
	}
	claim, agent := c.s.claims.get(lease), ""
	if claim != nil {
		agent = claim.Agent
	} else {
		token, err := broker.ParseLease(lease)
		if err != nil {
			return protocol.State{}, err
		}
		agent = token.Agent
	}
	if !c.caller.worksAs(agent) {
		return protocol.State{}, protocol.Errorf(protocol.CodeLeaseInvalid, "lease", "is of an agent that %s does not work as", c.caller.Name)
	}
	if claim == nil {
		var err error
		if claim, err = c.s.b.Resume(ctx, lease); err != nil {
			return protocol.State{}, err
		}
		c.s.claims.keep(keptClaim{lease: lease, claim: claim}, c.s.cfg.Claims)
	}
	if claim.Holder.Polling { // a worker sends its own heartbeats, with more details
		if err := c.s.b.Beat(ctx, claim.Holder); err != nil {
			return protocol.State{}, err
		}
	}
	err := report(claim)
	state := claim.State()
	if state.Holder != claim.Holder.ID || errors.Is(err, broker.ErrLeaseLost) {
		c.s.claims.drop(lease)
		if claim.Holder.Polling {
			c.leave(ctx, claim.Holder)
		}
	}
	return state, err
}

// end is report for a report that ends the claim. Repeated, because its answer was lost, it returns
// the state: ended reports whether an event of the ledger is this report.
func (c *Session) end(ctx context.Context, operation, lease string, ended func(protocol.Event) bool, report func(claim *broker.Claim) error) (protocol.State, error) {
	state, err := c.report(ctx, operation, lease, report)
	if !errors.Is(err, broker.ErrLeaseLost) {
		return state, err
	}
	token, _ := broker.ParseLease(lease)
	ending, unread := c.s.b.EndingOf(ctx, token)
	switch {
	case unread != nil:
		return state, unread
	case ending.Event == nil || !ended(ending.Event):
		return state, err
	}
	return c.s.b.Status(ctx, token.Ticket)
}

// isEvent reports whether an event is of one type.
func isEvent[E protocol.Event](e protocol.Event) bool {
	_, ok := e.(E)
	return ok
}

// leave ends the presence of a holder that holds nothing, even after ctx has ended.
func (c *Session) leave(ctx context.Context, holder protocol.Holder) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	_ = c.s.b.EndPolling(ctx, holder)
}

// Acknowledge implements Holder.
func (c *Session) Acknowledge(ctx context.Context, lease string, ack protocol.Ack) (protocol.State, error) {
	answered := func(e protocol.Event) bool {
		return ack.Status == protocol.AckRejected && isEvent[*protocol.Rejected](e) ||
			ack.Status == protocol.AckConditional && isEvent[*protocol.Conditioned](e)
	}
	return c.end(ctx, "Acknowledge", lease, answered, func(claim *broker.Claim) error { return claim.Acknowledge(ctx, ack, true) })
}

// Heartbeat implements Holder.
func (c *Session) Heartbeat(ctx context.Context, request Heartbeat) (Beat, error) {
	var beat Beat
	state, err := c.report(ctx, "Heartbeat", request.Lease, func(claim *broker.Claim) (err error) {
		if request.Extend != 0 {
			if err := claim.Extend(ctx, request.Extend, request.Reason); err != nil {
				return err
			}
		}
		beat.Signal, err = claim.Beat(ctx)
		beat.Expires = expiry(claim.Holder)
		return err
	})
	beat.State = state
	return beat, err
}

// expiry returns the end of a lease that was just renewed.
func expiry(h protocol.Holder) time.Time {
	return time.Now().Add(time.Duration(h.LeaseMS) * time.Millisecond).UTC().Truncate(time.Second)
}

// Progress implements Holder.
func (c *Session) Progress(ctx context.Context, lease string, progress protocol.Progress) (protocol.State, error) {
	return c.report(ctx, "Progress", lease, func(claim *broker.Claim) error { return claim.Progress(ctx, progress) })
}

// Decide implements Decider.
func (c *Session) Decide(ctx context.Context, lease string, decision protocol.WorkDecision) (protocol.State, error) {
	return c.report(ctx, "Decide", lease, func(claim *broker.Claim) error { return claim.Decide(ctx, decision) })
}

// Spend implements Holder.
func (c *Session) Spend(ctx context.Context, lease string, usage protocol.Usage) (protocol.State, error) {
	return c.report(ctx, "Spend", lease, func(claim *broker.Claim) error { return claim.Spend(ctx, usage) })
}

// Complete implements Holder.
func (c *Session) Complete(ctx context.Context, lease string, result protocol.Result) (protocol.State, error) {
	ctx = c.bound(ctx)
	state, err := c.report(ctx, "Complete", lease, func(claim *broker.Claim) error { return claim.Complete(ctx, result) })
	if !errors.Is(err, broker.ErrLeaseLost) {
		return state, err
	}
	token, _ := broker.ParseLease(lease)
	ending, unread := c.s.b.EndingOf(ctx, token)
	if unread != nil {
		return state, unread
	}
	if failed, ok := ending.Event.(*protocol.Failed); ok && slices.Contains(resultCodes, protocol.Code(failed.Code)) {
		return state, &protocol.Error{Code: protocol.Code(failed.Code), Field: "result", Message: failed.Message} // as the first time
	}
	late, unkept := c.s.b.ParkLate(ctx, lease, result)
	switch {
	case unkept != nil:
		return state, &LateResultError{err, unkept}
	case late == broker.LateKept:
		return state, &LateResultError{Lost: err}
	case late == broker.LateRepeated:
		return c.s.b.Status(ctx, token.Ticket)
	}
	return state, err
}

// resultCodes are the codes of attempts that failed because of their result.
var resultCodes = []protocol.Code{protocol.CodeOutputSchema, protocol.CodeBadResult, protocol.CodeMalformed, protocol.CodeInvalid,
	protocol.CodeMissing, protocol.CodeTooLarge, protocol.CodeUnknownAgent, protocol.CodeForbidden}

// Fail implements Holder.
func (c *Session) Fail(ctx context.Context, lease string, failure broker.Failure) (protocol.State, error) {
	return c.end(ctx, "Fail", lease, isEvent[*protocol.Failed], func(claim *broker.Claim) error { return claim.Fail(ctx, failure) })
}

// Release implements Holder.
func (c *Session) Release(ctx context.Context, lease, reason string, partial *protocol.Result) (protocol.State, error) {
	state, err := c.end(ctx, "Release", lease, isEvent[*protocol.Released], func(claim *broker.Claim) error { return claim.Release(ctx, reason, partial) })
	if partial == nil || !errors.Is(err, broker.ErrLeaseLost) {
		return state, err
	}
	late := *partial
	late.Status = protocol.Partial
	switch kept, unkept := c.s.b.ParkLate(ctx, lease, late); {
	case unkept != nil:
		return state, &LateResultError{err, unkept}
	case kept == broker.LateKept:
		return state, &LateResultError{Lost: err}
	}
	return state, err
}

// AnswerHeld implements Decider.
func (c *Session) AnswerHeld(ctx context.Context, lease string, answer protocol.Answer) (protocol.State, error) {
	return c.end(ctx, "AnswerHeld", lease, isEvent[*protocol.Answered], func(claim *broker.Claim) error { return claim.Answer(ctx, answer) })
}

// Escalate implements Holder.
func (c *Session) Escalate(ctx context.Context, lease, rationale, assessment string) (protocol.State, error) {
	return c.end(ctx, "Escalate", lease, isEvent[*protocol.Escalated], func(claim *broker.Claim) error {
		return claim.Escalate(ctx, rationale, assessment)
	})
}

// RollBackHeld implements Holder.
func (c *Session) RollBackHeld(ctx context.Context, lease, reason string, partial *protocol.Result) (protocol.State, error) {
	return c.end(ctx, "RollBackHeld", lease, isEvent[*protocol.RolledBack], func(claim *broker.Claim) error { return claim.RollBack(ctx, reason, partial) })
}

// HandOff implements Holder.
func (c *Session) HandOff(ctx context.Context, request HandOff) (child Child, err error) {
	ctx = c.bound(ctx)
	child.Parent, err = c.report(ctx, "HandOff", request.Lease, func(claim *broker.Claim) (err error) {
		child.Ticket, err = claim.HandOff(ctx, broker.Child{Nth: request.Nth, Package: request.Package, AtOnce: request.AtOnce, Waits: request.Waits})
		return err
	})
	return child, err
}

// Await implements Holder.
func (c *Session) Await(ctx context.Context, lease string, tickets []string) (protocol.State, error) {
	return c.end(ctx, "Await", lease, isEvent[*protocol.Suspended], func(claim *broker.Claim) error {
		children, err := awaited(claim.State(), tickets)
		if err != nil {
			return err
		}
		suspended, err := claim.Suspend(ctx, children...)
		if err == nil && !suspended {
			err = ErrAwaited
		}
		return err
	})
}

// ErrAwaited reports that the claim already contained the ends of all awaited children. The holder
// keeps its lease.
var ErrAwaited = protocol.Errorf(protocol.CodeConflict, "ticket", "all awaited handoffs have ended, and your claim has their ends; you still have the lease")

// awaited returns the ordinals of children by their tickets. Without tickets it returns those that
// this attempt handed off.
func awaited(s protocol.State, tickets []string) ([]int, error) {
	made, asked := protocol.Bits(""), protocol.Bits("")
	if c := s.Children; c != nil {
		made, asked = c.Made.Without(c.After), c.Asked.Without(c.After)
	}
	switch {
	case made == "":
		return nil, protocol.Errorf(protocol.CodeIllegal, "children", "%s has handed off nothing yet; hand off under its lease", s.Ticket)
	case len(tickets) == 0 && asked == "":
		return nil, protocol.Errorf(protocol.CodeIllegal, "children", "this attempt at %s has handed off nothing; name those of its earlier children that it waits for", s.Ticket)
	case len(tickets) == 0:
		return asked.Numbers(), nil
	}
	byTicket := map[string]int{}
	for _, n := range made.Numbers() {
		byTicket[s.ChildTicket(n)] = n
	}
	var children []int
	for _, ticket := range tickets {
		n, ok := byTicket[ticket]
		if !ok {
			return nil, protocol.Errorf(protocol.CodeIllegal, "ticket", "%s was not handed off from %s", ticket, s.Ticket)
		}
		children = append(children, n)
	}
	return children, nil
}

const (
	// claimsDefault is the default of Config.Claims, and claimBytesMax bounds their packages.
	claimsDefault = 1024
	claimBytesMax = 64 << 20
)

// claims keeps claims by their leases, so that a report reads nothing. Those of this process's own
// workers stay until they end. The others are only a cache: a claim that is not in it is read from
// the ledger.
type claims struct {
	mu      sync.Mutex
	byLease map[string]*keptClaim
	recent  list.List // of *keptClaim that may be dropped, the last used first
	bytes   int       // of their packages
}

type keptClaim struct {
	lease string
	claim *broker.Claim
	place *list.Element // nil: it is kept until it is dropped
	// unheard releases the claim if no report comes; nil once one came, and for claims without it.
	unheard *time.Timer
}

// get returns the claim of a lease, or nil.
func (c *claims) get(lease string) *broker.Claim {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := c.byLease[lease]
	if kept == nil {
		return nil
	}
	if kept.unheard != nil {
		kept.unheard.Stop()
		kept.unheard = nil
	}
	if kept.place != nil {
		c.recent.MoveToFront(kept.place)
	}
	return kept.claim
}

// keep adds a claim. Beyond most of them, those that were used least recently are dropped; most 0
// keeps this one until it is dropped.
func (c *claims) keep(kept keptClaim, most int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byLease == nil {
		c.byLease = map[string]*keptClaim{}
	}
	if c.byLease[kept.lease] != nil { // another request has read it, too
		return
	}
	c.byLease[kept.lease] = &kept
	if most == 0 {
		return
	}
	kept.place = c.recent.PushFront(&kept)
	c.bytes += len(kept.claim.Package)
	for c.recent.Len() > most || c.bytes > claimBytesMax && c.recent.Len() > 1 {
		c.remove(c.recent.Back().Value.(*keptClaim))
	}
}

// drop removes the claim of a lease.
func (c *claims) drop(lease string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if kept := c.byLease[lease]; kept != nil {
		c.remove(kept)
	}
}

// dropOf removes the claims of a holder that has left.
func (c *claims) dropOf(holder string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, kept := range c.byLease {
		if kept.claim.Holder.ID == holder {
			c.remove(kept)
		}
	}
}

// isUnheard reports whether no report has come on a claim.
func (c *claims) isUnheard(lease string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := c.byLease[lease]
	return kept != nil && kept.unheard != nil
}

func (c *claims) remove(kept *keptClaim) {
	delete(c.byLease, kept.lease)
	if kept.place != nil {
		c.recent.Remove(kept.place)
		c.bytes -= len(kept.claim.Package)
	}
}
