package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/internal/record"
	"github.com/agenthandoff/handoff/internal/schema"
	"github.com/agenthandoff/handoff/protocol"
)

// Claim is a handoff that a holder has. Each of its appends carries the fence: once the ledger has
// passed the handoff to another holder, each method returns ErrLeaseLost and changes nothing. It is
// safe for concurrent use.
type Claim struct {
	Ticket  string
	Agent   string
	Holder  protocol.Holder
	Offer   uint64
	Package json.RawMessage // in the form for the agent
	Answers []protocol.Answer
	Trail   []protocol.TrailEntry
	// Again reports that the holder had the handoff before: its offer was delivered a second time.
	Again bool

	b       *Broker
	limited bool            // its agent has max_concurrency, so the claim takes a slot
	keys    []string        // under which it has a place
	suited  bool            // its agent's profile may change the package
	given   json.RawMessage // the stored package, if Package may differ from it
	// locked holds a token during an append or a beat. Unlike a mutex, waiting for it ends with the
	// context, because the engine may be unreachable.
	locked chan struct{}

	mu       sync.Mutex // guards the fields below; never held across a request
	delivery Delivery   // nil once the delivery is removed or released
	head     *Head      // immutable: the last at which this holder had the handoff, or its own last append
	fence    uint64     // 0 until accepted, then constant
}

func (c *Claim) lock(ctx context.Context) error {
	select {
	case c.locked <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("handoff %s, waiting for an earlier report: %w", c.Ticket, ctx.Err())
	}
}

func (c *Claim) unlock() { <-c.locked }

func (c *Claim) lastHead() *Head {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.head
}

func (c *Claim) setHead(head *Head) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.head = head
}

// State returns the handoff as this holder last saw it. It does not block.
func (c *Claim) State() protocol.State { return c.lastHead().State }

// LastState is State without a copy. The caller must not change it.
func (c *Claim) LastState() *protocol.State { return &c.lastHead().State }

// Fence returns the ledger sequence of the acceptance; 0 while only claimed.
func (c *Claim) Fence() uint64 { return c.lastHead().State.Fence }

// reportWork is appendReport for a holder that has accepted the handoff.
func (c *Claim) reportWork(ctx context.Context, want wanted, decide func(protocol.State, lifecycle.Query) (lifecycle.Step, error)) error {
	return c.appendReport(ctx, want, func(s protocol.State, q lifecycle.Query) (lifecycle.Step, error) {
		if err := c.checkAccepted(s); err != nil {
			return lifecycle.Step{}, err
		}
		return decide(s, q)
	})
}

// appendReport appends the step that decide returns, if this holder still has the handoff. want is
// the part of the directory that the decision depends on.
func (c *Claim) appendReport(ctx context.Context, want wanted, decide func(protocol.State, lifecycle.Query) (lifecycle.Step, error)) error {
	if err := c.lock(ctx); err != nil {
		return err
	}
	defer c.unlock()
	for head := c.lastHead(); ; {
		if err := c.checkFence(&head.State); err != nil {
			c.releasePlaces(ctx)
			return err
		}
		draft, err := c.b.decideWith(ctx, *head, want(head.State), func(h Head, q lifecycle.Query) (lifecycle.Step, error) {
			return decide(h.State, q)
		})
		if err != nil || len(draft.events) == 0 {
			return err
		}
		next, err := c.b.appendWithOffer(ctx, head, draft, c.offerInHand())
		switch {
		case err == nil:
			c.setHead(next)
			return nil
		case !errors.Is(err, ErrConflict):
			return err
		}
		newer, err := c.b.headAfterConflict(ctx, *head)
		if err != nil {
			return err // the claim keeps its head: without one it would seem lost
		}
		head = &newer
	}
}

// checkFence refuses a state in which the claim no longer holds the handoff. If another process
// acknowledged the claim, its fence is new to this process; the holder's id proves that it is the
// same claim. A known fence never changes: the same holder may have the handoff again under another
// fence, which belongs to another claim.
func (c *Claim) checkFence(s *protocol.State) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.Closed || s.Holder != c.Holder.ID || s.Offer != c.Offer || c.fence != 0 && s.Fence != c.fence {
		return leaseLostError(s, c.Ticket, c.Holder.ID)
	}
	c.fence = s.Fence
	return nil
}

func meta(c *Claim, now time.Time) protocol.Meta { return protocol.Meta{At: now, By: c.Holder.ID} }

// Acknowledge answers an offer that was only claimed, or withdraws an acceptance: if refused or
// conditional, the handoff leaves this holder.
func (c *Claim) Acknowledge(ctx context.Context, ack protocol.Ack, start bool) error {
	if err := ack.Validate(); err != nil {
		return err
	}
	err := c.appendReport(ctx, wantNothing, func(s protocol.State, q lifecycle.Query) (lifecycle.Step, error) {
		if ack.Status == protocol.AckAccepted && s.Fence != 0 {
			return lifecycle.Step{}, nil // accepted already: repeating it is harmless
		}
		claimant := lifecycle.Claimant{Agent: c.Agent, Holder: c.Holder.ID, LeaseMS: c.Holder.LeaseMS, Offer: c.Offer}
		return lifecycle.Acknowledge(s, claimant, ack, start, q.Now)
	})
	if err != nil || ack.Status == protocol.AckAccepted {
		return err
	}
	return c.finish(ctx, nil)
}

// Progress reports progress of the work.
func (c *Claim) Progress(ctx context.Context, progress protocol.Progress) error {
	if err := progress.Validate(); err != nil {
		return err
	}
	var err error
	if progress.Usage, err = c.price(ctx, progress.Usage); err != nil {
		return err
	}
	return c.reportWork(ctx, wantNothing, func(s protocol.State, q lifecycle.Query) (lifecycle.Step, error) {
		return lifecycle.Progress(s, c.Holder.ID, progress, q.Now)
	})
}

// Extend requests more time for the work, limited by the return and deadline clocks of the handoff.
// It is granted once per attempt; a *protocol.Error has the reason of a refusal. State and Beat
// return the new limit.
func (c *Claim) Extend(ctx context.Context, by time.Duration, reason string) error {
	return c.reportWork(ctx, wantNothing, func(s protocol.State, q lifecycle.Query) (lifecycle.Step, error) {
		return lifecycle.Extend(s, c.Holder.ID, by, cutReason(reason), q.Now)
	})
}

// Complete submits the result and closes the handoff. The handoffs that the result's command names,
// and the children given, are handed off with it: they are recorded in the same append, and
// submitted from there. The attempt fails, with a *protocol.Error, if the result breaks the
// package's output schema or is too large, or its command cannot be followed. An output schema that
// submission would have refused fails all attempts.
//
// A result with Malformed set fails the attempt, too (result_malformed), as does an unreadable
// command. The output is kept then, and is read as the handoff's result.
//
// A result that waits (command.await) closes nothing: its children are handed off, and this handoff
// is suspended until they have ended (Suspend). The rest of the result is not kept.
//
// A holder that has lost its lease gets ErrLeaseLost, and its result is kept in the history
// (LateResults), as far as LateResultsMax allows. Repeating a Complete changes nothing, and is no
// error.
func (c *Claim) Complete(ctx context.Context, result protocol.Result, children ...Child) error {
	if result.Malformed != "" {
		return c.completeMalformed(ctx, result)
	}
	if result.Awaits() {
		return c.completeAwaiting(ctx, result, children)
	}
	completed, handOffs, err := c.completion(ctx, result, children)
	if err == nil {
		err = c.shareResult(ctx, result.Variables)
	}
	if err == nil {
		err = c.reportWork(ctx, wantSourceIfReturned, func(s protocol.State, q lifecycle.Query) (lifecycle.Step, error) {
			event := completed
			event.Meta = meta(c, q.Now)
			step, err := lifecycle.Complete(s, q, event, nextOf(handOffs))
			asRecorded(handOffs, step)
			return step, err
		})
	}
	if errors.Is(err, ErrLeaseLost) {
		err = c.resultAfterLoss(ctx, parked(result, completed.Result, completed.Blob), err)
	}
	if err != nil {
		return c.failRefused(ctx, result, err)
	}
	// Once its children are submitted, the closed handoff needs no supervisor: most chains need none.
	if head := c.lastHead(); c.submitChildren(ctx, handOffs) && onlyChildren(&head.State, handOffs) {
		c.b.engine.Settled(head.Ticket, head.Seq)
	}
	c.followSource(ctx)
	return c.finish(ctx, nil)
}

// resultAfterLoss handles a result whose lease is lost. It returns nil if the result is already in
// the ledger, by an append whose answer was lost. Otherwise the result is late, and is kept in the
// history.
func (c *Claim) resultAfterLoss(ctx context.Context, late protocol.ResultParked, lost error) error {
	handedIn, err := c.reported(ctx, func(e protocol.Event) uint64 {
		switch e := e.(type) {
		case *protocol.Completed:
			return e.Fence
		case *protocol.RolledBack:
			return e.Fence
		case *protocol.Failed:
			if late.Malformed != "" {
				return e.Fence
			}
		}
		return 0
	})
	switch {
	case err != nil:
		return fmt.Errorf("%w; could not read whether its own result ended it: %w", lost, err)
	case handedIn:
		return nil
	case c.parkResult(ctx, late):
		return fmt.Errorf("%w; the result came too late and is kept in its history", lost)
	}
	return lost
}

// reported reports whether the history has a report of this claim: an event for which fenceOf
// returns the claim's fence. The answer to its append may have been lost.
func (c *Claim) reported(ctx context.Context, fenceOf func(protocol.Event) uint64) (there bool, err error) {
	c.mu.Lock()
	fence := c.fence
	c.mu.Unlock()
	err = c.b.eachChange(ctx, c.Ticket, func(change protocol.Change) error {
		for _, e := range change.Record.Events {
			there = there || fence != 0 && fenceOf(e) == fence
		}
		return nil
	})
	return there && err == nil, err
}

// completion checks a result, and stores it as a blob if it is too large for an append. It returns
// the event that contains the result, and the children. A *protocol.Error is a result that cannot
// be accepted.
func (c *Claim) completion(ctx context.Context, result protocol.Result, children []Child) (protocol.Completed, []handedOff, error) {
	var completed protocol.Completed
	body, refusal := c.checkResult(&result)
	if refusal != nil {
		return completed, nil, refusal
	}
	handOffs, err := c.childrenWithResult(ctx, result, children)
	if err != nil {
		return completed, nil, unfollowable(err)
	}
	usage, err := c.price(ctx, result.Usage)
	if err != nil {
		return completed, nil, err
	}
	completed = protocol.Completed{Status: result.Status, Usage: usage, SetAside: protocol.CutText(result.SetAside, protocol.FailureBytesMax), Vote: result.Vote()}
	completed.Result, completed.Blob, err = c.b.storeResult(ctx, c.Ticket, body)
	return completed, handOffs, err
}

// storeResult stores a result inline or as a blob. An inline result is redacted with its append.
func (b *Broker) storeResult(ctx context.Context, ticket string, body json.RawMessage) (json.RawMessage, *protocol.BlobRef, error) {
	if len(body) <= protocol.InlineBytesMax {
		return body, nil, nil
	}
	redactor, err := b.redaction()
	if err != nil {
		return nil, nil, err
	}
	redacted, err := redactor.Result(ctx, body)
	if err != nil {
		return nil, nil, fmt.Errorf("redact result of %s: %w", ticket, err)
	}
	blob, err := b.engine.PutBlob(ctx, redacted)
	if err != nil {
		return nil, nil, fmt.Errorf("store result of %s: %w", ticket, err)
	}
	return nil, &blob, nil
}

// checkResult normalizes the result and checks it against the package.
func (c *Claim) checkResult(result *protocol.Result) (json.RawMessage, *protocol.Error) {
	refused := func(err error, code protocol.Code) *protocol.Error {
		var e *protocol.Error
		if errors.As(err, &e) {
			return e
		}
		return protocol.Errorf(code, "result", "%v", err)
	}
	result.Normalize()
	if err := result.Validate(); err != nil {
		return nil, refused(err, protocol.CodeInvalid)
	}
	want, err := record.PackageOutputSchema(c.Package)
	if err != nil {
		return nil, refused(err, protocol.CodeMalformed)
	}
	if len(want) > 0 {
		if err := schema.CheckOutput(want, result.Body); err != nil {
			return nil, refused(err, protocol.CodeOutputSchema)
		}
	}
	body, err := protocol.EncodeResult(*result)
	if err != nil {
		return nil, refused(err, protocol.CodeMalformed)
	}
	if len(body) > protocol.ResultBytesMax {
		return nil, protocol.Errorf(protocol.CodeTooLarge, "result", "%s; hand large output over as an artifact", protocol.OverSize(len(body), protocol.ResultBytesMax))
	}
	return body, nil
}

// Failure is an attempt's end without a result.
type Failure = lifecycle.Failure

// Fail ends the attempt. The core decides whether another attempt follows. A LimitKey that the handoff
// has no place under is refused (CodeInvalid), and changes nothing.
func (c *Claim) Fail(ctx context.Context, f Failure) error {
	err := f.Validate()
	if err == nil {
		f.Usage, err = c.price(ctx, f.Usage)
	}
	if err == nil && f.LimitKey != "" {
		err = c.pauseKey(ctx, f.LimitKey, f.RetryAfter)
	}
	if err != nil {
		return err
	}
	err = c.reportWork(ctx, wantNothing, func(s protocol.State, q lifecycle.Query) (lifecycle.Step, error) {
		return lifecycle.Fail(s, c.Holder.ID, f, q.Now)
	})
	return c.finish(ctx, err)
}

// Release returns the handoff to its queue and charges no attempt. It is offered to the same agent
// at once. A partial result, unless nil, is kept in the history (LateResults), even if the lease is
// lost.
func (c *Claim) Release(ctx context.Context, reason string, partial *protocol.Result) error {
	late, err := c.partialResult(ctx, partial)
	if err != nil {
		return err
	}
	err = c.appendReport(ctx, wantSourceIfCancelled, func(s protocol.State, q lifecycle.Query) (lifecycle.Step, error) {
		return lifecycle.Release(s, q, c.Holder.ID, cutReason(reason), late)
	})
	if errors.Is(err, ErrLeaseLost) && late != nil {
		err = c.resultAfterLoss(ctx, *late, err)
	}
	return c.finish(ctx, err)
}

// partialResult stores a partial result as a late one; nil is none.
func (c *Claim) partialResult(ctx context.Context, partial *protocol.Result) (*protocol.ResultParked, error) {
	if partial == nil {
		return nil, nil
	}
	result := *partial
	result.Status, result.Usage = protocol.Partial, nil // its usage is reported separately
	inline, blob, err := c.storePartial(ctx, &result)
	if err != nil {
		return nil, err
	}
	late := parked(result, inline, blob)
	return &late, nil
}

// storePartial stores a partial result. It is not checked against the output schema.
func (c *Claim) storePartial(ctx context.Context, partial *protocol.Result) (json.RawMessage, *protocol.BlobRef, error) {
	partial.Normalize()
	if err := partial.Validate(); err != nil {
		return nil, nil, err
	}
	body, err := protocol.EncodeResult(*partial)
	if err != nil {
		return nil, nil, err
	}
	if len(body) > protocol.ResultBytesMax {
		return nil, nil, protocol.Errorf(protocol.CodeTooLarge, "result", "%s", protocol.OverSize(len(body), protocol.ResultBytesMax))
	}
	return c.b.storeResult(ctx, c.Ticket, body)
}

// checkAccepted refuses reports on a handoff that was claimed and not acknowledged.
func (c *Claim) checkAccepted(s protocol.State) error {
	if s.Fence == 0 {
		return protocol.Errorf(protocol.CodeIllegal, "lease", "%s is claimed but not acknowledged; accept it first", c.Ticket)
	}
	return nil
}

// offerInHand returns the offer whose delivery this claim has; 0 if the delivery is removed or
// released.
func (c *Claim) offerInHand() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.delivery == nil {
		return 0
	}
	return c.Offer
}

// finish ends the claim after the append that ended it, unless that failed with err.
func (c *Claim) finish(ctx context.Context, err error) error {
	if err != nil {
		return err
	}
	if s := &c.lastHead().State; s.Joined && !s.Closed { // for a closed handoff a supervisor ends the membership
		c.b.releaseFences(ctx, s.Workspace, c.Ticket, s.Fence)
	}
	c.releasePlaces(ctx)
	c.removeOffer()
	return nil
}

// removeOffer removes the offer from the queue, always after the append. If that fails, the queue
// delivers a stale offer, which the next claim drops.
func (c *Claim) removeOffer() {
	c.mu.Lock()
	delivery := c.delivery
	c.delivery = nil
	c.mu.Unlock()
	if delivery == nil {
		return
	}
	if err := delivery.Remove(); err != nil {
		c.b.log.Warn("offer not removed from the queue; it is dropped when it is redelivered", "ticket", c.Ticket, "err", err)
	}
}

// pollRecordMax is the longest time between two records of the polling of an agent that polls
// continuously. It bounds the error of the displayed "last polled".
const pollRecordMax = 10 * time.Second

// pollRecordInterval returns the time between two records: at most a tenth of the patience, so that
// it never lapses between two polls that are close enough.
func pollRecordInterval(patience time.Duration) time.Duration { return min(patience/10, pollRecordMax) }

// Beat registers a holder, or prolongs its presence by its lease. The beat of a holder that polls
// also records the time of its agent's last contact.
func (b *Broker) Beat(ctx context.Context, h protocol.Holder) error {
	if h.Polling {
		h.PolledAt = b.clock().UTC().Truncate(time.Millisecond)
	}
	return b.engine.Beat(ctx, h)
}

// RecordPoll makes an agent present for its patience from now on, because it has asked for work. It
// reads one entry, and writes it only if it is older than pollRecordInterval. A person is always
// present.
func (b *Broker) RecordPoll(ctx context.Context, agent protocol.Profile) error {
	if agent.ID == protocol.Human {
		return nil
	}
	patience := agent.PollPatience()
	note := protocol.Holder{ID: protocol.PollerID(agent.ID), Agent: agent.ID, LeaseMS: patience.Milliseconds(), Polling: true}
	last, err := b.engine.Holder(ctx, note.ID)
	switch age := b.clock().Sub(last.PolledAt); {
	case errors.Is(err, ErrNotFound):
	case err != nil:
		return err
	case last.LeaseMS == note.LeaseMS && age >= 0 && age < pollRecordInterval(patience):
		return nil
	}
	return b.Beat(ctx, note)
}

// EndPolling ends the presence of a claim that has ended. Its agent stays present for its patience.
func (b *Broker) EndPolling(ctx context.Context, h protocol.Holder) error {
	profile, _, err := b.recentProfile(ctx, h.Agent, profileFresh)
	if err == nil && profile != nil {
		err = b.RecordPoll(ctx, *profile)
	}
	return errors.Join(err, b.engine.RemoveHolder(ctx, h.ID))
}

// Limits of the time for which an engine retries a failed request (jetstream.Config.Timeout).
const (
	// TimeoutDefault is longer than the election after a leader was killed, which
	// takes 4 to 9 s.
	TimeoutDefault = 12 * time.Second
	TimeoutMin     = time.Second
	TimeoutMax     = 10 * time.Minute
)

// CheckTimeout refuses a timeout outside its limits; 0 is the default.
func CheckTimeout(field string, d time.Duration) error {
	if d != 0 && (d < TimeoutMin || d > TimeoutMax) {
		return protocol.Errorf(protocol.CodeInvalid, field, "is %v, must be between %v and %v", d, TimeoutMin, TimeoutMax)
	}
	return nil
}

// SilenceError reports that the engine did not answer repeated requests for a time. It wraps
// ErrUnreachable.
type SilenceError struct {
	After time.Duration // how long it was retried
	Last  error         // the error of the last try
}

func (e *SilenceError) Error() string {
	return fmt.Sprintf("%v: no answer in %v: %v", ErrUnreachable, e.After, e.Last)
}

func (e *SilenceError) Unwrap() []error { return []error{ErrUnreachable, e.Last} }

// Signal is the answer to a beat of a holder.
type Signal struct {
	CancelRequested bool `json:"cancel_requested"`
	Return          bool `json:"return,omitempty"` // the handoff shall go back to its source instead
	Reminded        bool `json:"reminded"`         // most of the time until the limit has passed
	// Limit is when the first timeout takes the handoff from its holder, and LimitClock is the clock of
	// that timeout: work, return or deadline; before the acceptance also acknowledge or queue.
	Limit      time.Time      `json:"limit,omitzero"`
	LimitClock protocol.Clock `json:"limit_clock,omitempty"`
	Deadline   time.Time      `json:"deadline,omitzero"`
	// Budget is the rest of the budgets, set once most (80 %) of one is used up.
	Budget *protocol.BudgetLeft `json:"budget,omitempty"`
}

// Beat extends the delivery of the offer and reads the head from the leader. It returns
// ErrLeaseLost if another holder has the handoff. The holder's presence has its own beat
// (Engine.Beat), one for all its claims.
func (c *Claim) Beat(ctx context.Context) (Signal, error) {
	if err := c.lock(ctx); err != nil {
		return Signal{}, err
	}
	defer c.unlock()
	c.mu.Lock()
	delivery := c.delivery
	c.mu.Unlock()
	if delivery != nil {
		if err := delivery.Extend(); err != nil {
			return Signal{}, err
		}
	}
	head, err := c.b.Head(ctx, c.Ticket, c.lastHead().Seq)
	if err != nil {
		return Signal{}, err
	}
	if err := c.checkFence(&head.State); err != nil {
		c.releasePlaces(ctx)
		return Signal{}, err
	}
	c.setHead(&head)
	if c.limited { // the holder may have seemed gone meanwhile, or its entry may be lost
		if err := c.ensureSlot(ctx); err != nil {
			return Signal{}, err
		}
	}
	if err := c.ensureKeyPlaces(ctx); err != nil {
		return Signal{}, err
	}
	s := &head.State
	signal := Signal{CancelRequested: s.CancelRequested, Return: s.CancelReturn, Reminded: !s.RemindedAt.IsZero(), Deadline: s.Deadline}
	signal.Limit, signal.LimitClock = lifecycle.Limit(*s)
	signal.Budget = lifecycle.BudgetLeft(*s)
	return signal, nil
}
