package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
	"github.com/agenthandoff/handoff/protocol/record"
	"github.com/agenthandoff/handoff/protocol/schema"
)

// Claim is a handoff in a holder's hands. Everything it appends carries the
// fence: once the ledger has passed the handoff to another holder, each method
// returns ErrLeaseLost and changes nothing. Safe for concurrent use.
type Claim struct {
	Ticket  string
	Agent   string
	Holder  protocol.Holder
	Offer   uint64
	Package json.RawMessage // as the agent gets it
	Answers []protocol.Answer
	Trail   []protocol.TrailEntry

	b       *Broker
	limited bool            // its agent has max_concurrency: it counts
	suited  bool            // its agent's profile may change the package
	given   json.RawMessage // the package as it is stored, where Package may be another
	// locked holds a token while an append or a beat is under way. Waiting for it
	// ends with the context, as it would not with a mutex: the engine may be away.
	locked chan struct{}

	mu       sync.Mutex // guards what follows; never held across a request
	delivery Delivery   // nil once the queue is done with it
	head     *Head      // never changed: the last at which this holder had the handoff, or its own last append
	fence    uint64     // 0 until accepted; then it never changes
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

// State is the handoff as this holder last saw it. It does not block.
func (c *Claim) State() protocol.State { return c.lastHead().State }

// LastState is State without a copy. It is not to be changed.
func (c *Claim) LastState() *protocol.State { return &c.lastHead().State }

// Fence is the ledger sequence of the acceptance; 0 while only claimed.
func (c *Claim) Fence() uint64 { return c.lastHead().State.Fence }

// Attempt is the number of this attempt at this agent, from 1.
func (c *Claim) Attempt() int { return c.lastHead().State.Attempt }

// appendReport appends the step that decide returns, as long as this holder has the handoff.
func (c *Claim) appendReport(ctx context.Context, decide func(protocol.State, time.Time) (lifecycle.Step, error)) error {
	return c.appendReportWith(ctx, c.b.noDirectory, func(s protocol.State, _ *lifecycle.Directory, now time.Time) (lifecycle.Step, error) {
		return decide(s, now)
	})
}

// Each of the following reads the part of the directory that a kind of report depends on.

func (b *Broker) noDirectory(context.Context, protocol.State) (*lifecycle.Directory, error) {
	return nil, nil
}

// fullDirectory returns all of it. Its first use in a process starts a watch.
func (b *Broker) fullDirectory(ctx context.Context, _ protocol.State) (*lifecycle.Directory, error) {
	return b.Directory(ctx)
}

// freshAgent reads one agent from the leader: a directory with that and the settings of the fleet,
// for what a person asks for.
func (b *Broker) freshAgent(agent string) directoryReader {
	return func(ctx context.Context, s protocol.State) (*lifecycle.Directory, error) {
		return b.agentFor(ctx, agent, s.Summary, lifecycle.NeedsSource(s.Summary))
	}
}

// sourceAgent reads the source of a handoff, which its end depends on: can a return be delivered?
func (b *Broker) sourceAgent(ctx context.Context, s protocol.State) (*lifecycle.Directory, error) {
	directory, _, err := b.recentAgent(ctx, s.Source)
	return directory, err
}

func (b *Broker) sourceIfReturned(ctx context.Context, s protocol.State) (*lifecycle.Directory, error) {
	if !s.ReturnExpected {
		return nil, nil
	}
	return b.sourceAgent(ctx, s)
}

func (b *Broker) sourceIfCancelled(ctx context.Context, s protocol.State) (*lifecycle.Directory, error) {
	if !s.CancelReturn {
		return nil, nil
	}
	return b.sourceAgent(ctx, s)
}

// appendReportWith is appendReport for decisions that depend on the directory.
func (c *Claim) appendReportWith(ctx context.Context, read directoryReader, decide func(protocol.State, *lifecycle.Directory, time.Time) (lifecycle.Step, error)) error {
	if err := c.lock(ctx); err != nil {
		return err
	}
	defer c.unlock()
	for head := c.lastHead(); ; {
		if err := c.checkFence(&head.State); err != nil {
			c.releaseSlot(ctx)
			return err
		}
		directory, err := read(ctx, head.State)
		if err != nil {
			return err
		}
		draft, err := c.b.decideWith(ctx, *head, directory, func(h Head, d *lifecycle.Directory, now time.Time) (lifecycle.Step, error) {
			return decide(h.State, d, now)
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
			return err // the claim keeps the head it had: with none at all it would seem lost
		}
		head = &newer
	}
}

// checkFence refuses a state in which the claim no longer holds the handoff. A claim that was acknowledged from another process
// has a fence now that this one does not know yet; the holder's id is its proof.
// A fence once known stays: the same holder may have the handoff again, under
// another one, and this claim must not take that for its own.
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

// Acknowledge answers an offer that was only claimed, or takes back an
// acceptance: refused or conditional, the handoff leaves this holder.
func (c *Claim) Acknowledge(ctx context.Context, ack protocol.Ack, start bool) error {
	if err := ack.Validate(); err != nil {
		return err
	}
	err := c.appendReport(ctx, func(s protocol.State, now time.Time) (lifecycle.Step, error) {
		if ack.Status == protocol.AckAccepted && s.Fence != 0 {
			return lifecycle.Step{}, nil // accepted already: saying it twice is harmless
		}
		claimant := lifecycle.Claimant{Agent: c.Agent, Holder: c.Holder.ID, LeaseMS: c.Holder.LeaseMS, Offer: c.Offer}
		return lifecycle.Acknowledge(s, claimant, ack, start, now)
	})
	if err != nil || ack.Status == protocol.AckAccepted {
		return err
	}
	return c.finish(ctx)
}

// Progress reports from within the work.
func (c *Claim) Progress(ctx context.Context, progress protocol.Progress) error {
	if err := progress.Validate(); err != nil {
		return err
	}
	var err error
	if progress.Usage, err = c.price(ctx, progress.Usage); err != nil {
		return err
	}
	return c.appendReport(ctx, func(s protocol.State, now time.Time) (lifecycle.Step, error) {
		if err := c.checkAccepted(s); err != nil {
			return lifecycle.Step{}, err
		}
		return lifecycle.Progress(s, c.Holder.ID, progress, now)
	})
}

// Extend asks for more time for the work: by this much, but never past the clock of
// those who wait for the handoff (return, deadline). It is granted once in an
// attempt; a *protocol.Error says why not. State and Beat tell until when.
func (c *Claim) Extend(ctx context.Context, by time.Duration, reason string) error {
	return c.appendReport(ctx, func(s protocol.State, now time.Time) (lifecycle.Step, error) {
		if err := c.checkAccepted(s); err != nil {
			return lifecycle.Step{}, err
		}
		return lifecycle.Extend(s, c.Holder.ID, by, cutReason(reason), now)
	})
}

// Complete hands in the result and closes the handoff. What the result's command
// asks for, and the children given, are handed off with it: they are
// recorded in the same append, and submitted from there. A result that breaks the
// package's output schema, or is too large, or a command that cannot be followed,
// fails the attempt instead, and the error is a *protocol.Error that says so. So does
// an output schema that submission would have refused, for all attempts.
//
// A result with Malformed set fails the attempt, too (result_malformed), as does a command
// that cannot be read. What was handed in is kept then, and is read as the handoff's result.
//
// A result that waits (command.await) closes nothing: what it waits for is handed off, and this
// handoff is suspended until that has ended (Suspend). What else it says is not kept.
//
// A holder that has lost its lease gets ErrLeaseLost, and its result is kept in
// the history (LateResults), as far as LateResultsMax allows. One that has handed in
// its result already changes nothing, and that is no error.
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
		err = c.appendReportWith(ctx, c.b.sourceIfReturned, func(s protocol.State, d *lifecycle.Directory, now time.Time) (lifecycle.Step, error) {
			if err := c.checkAccepted(s); err != nil {
				return lifecycle.Step{}, err
			}
			event := completed
			event.Meta = meta(c, now)
			step, err := lifecycle.Complete(s, d, event, nextOf(handOffs), now)
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
	// With its children submitted the closed handoff needs no supervisor: most chains cost none.
	if head := c.lastHead(); c.submitChildren(ctx, handOffs) && onlyChildren(&head.State, handOffs) {
		c.b.timers.Settled(head.Ticket, head.Seq)
	}
	c.followSource(ctx)
	return c.finish(ctx)
}

// resultAfterLoss says what a lost lease means for a result: that it was handed in already,
// by an append whose answer did not get here perhaps, or that it comes too late.
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
		return fmt.Errorf("%w; whether it was by its own result was not read: %w", lost, err)
	case handedIn:
		return nil
	case c.parkResult(ctx, late):
		return fmt.Errorf("%w; the result came too late and is kept in its history", lost)
	}
	return lost
}

// reported tells whether the history has a report of this claim already: an event of which fenceOf
// returns the claim's fence, by an append whose answer did not get here.
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

// completion checks a result and stores what is too large for an append: the
// event that holds it, and what goes with it. A *protocol.Error is a result that
// cannot be handed in.
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

// storeResult puts a result where it belongs. One that goes into an append is
// redacted with that.
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
	blob, err := b.blobs.PutBlob(ctx, redacted)
	if err != nil {
		return nil, nil, fmt.Errorf("store result of %s: %w", ticket, err)
	}
	return nil, &blob, nil
}

// checkResult makes the result complete and checks it against the package.
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

// Failure is how an attempt ended without a result.
type Failure = lifecycle.Failure

// Fail ends the attempt. Whether there is another is the core's decision.
func (c *Claim) Fail(ctx context.Context, f Failure) error {
	err := f.Validate()
	if err == nil {
		f.Usage, err = c.price(ctx, f.Usage)
	}
	if err != nil {
		return err
	}
	err = c.appendReport(ctx, func(s protocol.State, now time.Time) (lifecycle.Step, error) {
		if err := c.checkAccepted(s); err != nil {
			return lifecycle.Step{}, err
		}
		return lifecycle.Fail(s, c.Holder.ID, f, now)
	})
	if err != nil {
		return err
	}
	return c.finish(ctx)
}

// Release puts the handoff back into its queue and charges no attempt. It is offered to the
// same agent again at once. partial is what there is of a result: it is kept in the history
// (LateResults), also where the lease is lost; nil is nothing.
func (c *Claim) Release(ctx context.Context, reason string, partial *protocol.Result) error {
	late, err := c.partialResult(ctx, partial)
	if err != nil {
		return err
	}
	err = c.appendReportWith(ctx, c.b.sourceIfCancelled, func(s protocol.State, d *lifecycle.Directory, now time.Time) (lifecycle.Step, error) {
		return lifecycle.Release(s, d, c.Holder.ID, cutReason(reason), late, now)
	})
	if errors.Is(err, ErrLeaseLost) && late != nil {
		err = c.resultAfterLoss(ctx, *late, err)
	}
	if err != nil {
		return err
	}
	return c.finish(ctx)
}

// partialResult stores what there is of a result as one that comes late; nil is nothing.
func (c *Claim) partialResult(ctx context.Context, partial *protocol.Result) (*protocol.ResultParked, error) {
	if partial == nil {
		return nil, nil
	}
	result := *partial
	result.Status, result.Usage = protocol.Partial, nil // what it used is reported by itself
	inline, blob, err := c.storePartial(ctx, &result)
	if err != nil {
		return nil, err
	}
	late := parked(result, inline, blob)
	return &late, nil
}

// storePartial stores what there is of a result. No schema is asked: it is not what was asked for.
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

// offerInHand is the offer whose delivery this claim has; 0 where the queue is done with it.
func (c *Claim) offerInHand() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.delivery == nil {
		return 0
	}
	return c.Offer
}

// finish ends the claim, after the append that says so.
func (c *Claim) finish(ctx context.Context) error {
	if s := &c.lastHead().State; s.Joined && !s.Closed { // of a closed one a supervisor ends the place
		c.b.releaseFences(ctx, s.Workspace, c.Ticket, s.Fence)
	}
	c.releaseSlot(ctx)
	return c.removeOffer()
}

// removeOffer takes the offer out of the queue, always after the append. Should
// that fail the queue delivers a ghost, which the next claim drops.
func (c *Claim) removeOffer() error {
	c.mu.Lock()
	delivery := c.delivery
	c.delivery = nil
	c.mu.Unlock()
	if delivery == nil {
		return nil
	}
	if err := delivery.Remove(); err != nil {
		c.b.log.Warn("offer not removed from the queue; it will be dropped when it comes again", "ticket", c.Ticket, "err", err)
	}
	return nil
}
