package broker

import (
	"context"
	"fmt"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// Child is a handoff that a holder hands off with its result. N is its ordinal
// among the children of the handoff, from 0: its ticket is derived from it, so
// that a second attempt does not hand off again what the first one did.
type Child struct {
	N       int
	Package protocol.Package
}

// HandOff hands work on from within the work: the child is recorded under this
// holder's fence, then submitted. It returns the child's ticket. A child with this
// ordinal that was handed off before, by an earlier attempt perhaps, stays what it
// is, whatever pkg says. Source and parent of pkg are filled in. A *protocol.Error
// says what is wrong with the package.
func (c *Claim) HandOff(ctx context.Context, child Child) (ticket string, err error) {
	ticket = protocol.ChildTicketN(c.Ticket, child.N)
	if children := c.at().State.Children; children != nil && children.Made.Has(child.N) {
		if there, err := c.b.exists(ctx, ticket); err != nil || there {
			return ticket, err
		}
		_, err = c.b.EnsureChildren(ctx, *c.at())
		return ticket, err
	}
	made, err := c.prepareChild(ctx, child, true)
	if err != nil {
		return "", err
	}
	err = c.report(ctx, func(s protocol.State, now time.Time) ([]protocol.Event, error) {
		if err := c.accepted(s); err != nil {
			return nil, err
		}
		event := made.event
		event.By = c.Holder.ID
		return lifecycle.HandOff(s, event, now)
	})
	if err != nil {
		return "", err
	}
	// Only this one: to look after all of them at each would be quadratic. And
	// recorded is handed off, whoever submits it.
	c.submitChildren(ctx, []handedOff{made})
	return ticket, nil
}

// CheckChild says what HandOff and Complete would say of a child's package.
// Nothing is written.
func (c *Claim) CheckChild(ctx context.Context, child Child) error {
	_, _, err := c.checkChild(ctx, child)
	return err
}

func (c *Claim) checkChild(ctx context.Context, child Child) (Prepared, *lifecycle.Directory, error) {
	if child.N < 0 || child.N >= protocol.ChildrenMax {
		return Prepared{}, nil, protocol.Errorf(protocol.CodeTooLarge, "children", "a handoff hands off at most %d others, with the ordinals 0 to %d; this is %d", protocol.ChildrenMax, protocol.ChildrenMax-1, child.N)
	}
	pkg := child.Package
	pkg.Source, pkg.Parent, pkg.Key = c.Agent, c.Ticket, ""
	in, err := c.b.Prepare(pkg)
	if err != nil {
		return Prepared{}, nil, err
	}
	in.Ticket = protocol.ChildTicketN(c.Ticket, child.N)
	_, directory, err := c.b.begin(ctx, in)
	return in, directory, err
}

// handedOff is the event that records a child, and what its submission needs
// beside that.
type handedOff struct {
	event     protocol.HandedOff
	summary   protocol.Summary
	directory *lifecycle.Directory // in which it was checked
}

// prepareChild checks a child's package and makes the event that records it. This
// handoff goes on after it, or closes with it.
func (c *Claim) prepareChild(ctx context.Context, child Child, goesOn bool) (handedOff, error) {
	in, directory, err := c.checkChild(ctx, child)
	if err != nil {
		return handedOff{}, err
	}
	packed, err := c.b.keep(ctx, in.Body, in.Package.GroupSize())
	if err != nil {
		return handedOff{}, err
	}
	summary := childSummary(in.Package, packed.digest, c.Ticket, child.N, goesOn)
	given := within(ctx, c.State(), in.summary.Trace)
	summary.Trace = childTrace(c.State(), c.Fence(), given)
	return handedOff{
		event: protocol.HandedOff{N: child.N, Ticket: in.Ticket, Type: in.Package.Type, Target: in.summary.TargetWords(),
			Digest: packed.digest, Trace: given, Package: packed.body, Blob: packed.blob},
		summary: summary, directory: directory,
	}, nil
}

// handOffs are the children that go with a result: those given, and those that
// its command asks for.
func (c *Claim) handOffs(ctx context.Context, result protocol.Result, children []Child) ([]handedOff, error) {
	taken := protocol.Bits("")
	if made := c.at().State.Children; made != nil {
		taken = made.Made
	}
	var next []Child
	for _, child := range children {
		if !taken.Has(child.N) {
			next = append(next, child)
		}
	}
	followed, err := c.follow(result, taken, next)
	if err != nil {
		return nil, err
	}
	next = append(next, followed...)
	if len(next) > HandedOffAtOnceMax {
		return nil, protocol.Errorf(protocol.CodeTooLarge, "children", "%d handoffs are handed off with one result, at most %d are allowed; a list of agents in one command is one group", len(next), HandedOffAtOnceMax)
	}
	var all []handedOff
	for _, child := range next {
		if taken.Has(child.N) {
			return nil, protocol.Errorf(protocol.CodeConflict, "children", "two have the ordinal %d", child.N)
		}
		made, err := c.prepareChild(ctx, child, false)
		if err != nil {
			return nil, err
		}
		taken = taken.With(child.N)
		all = append(all, made)
	}
	return all, boundHandOffs(ctx, c.b, all)
}

// follow makes the children that a result's command asks for, with ordinals that
// nobody has.
func (c *Claim) follow(result protocol.Result, taken protocol.Bits, beside []Child) ([]Child, error) {
	if result.Command == nil || len(result.Command.Goto) == 0 {
		return nil, nil
	}
	pkg, err := protocol.DecodePackage(c.Package)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeMalformed, "package", "%v", err)
	}
	pkg.Supplement(c.Answers)
	packages, err := protocol.Continue(pkg, c.Agent, c.Ticket, result)
	if err != nil {
		return nil, err
	}
	for _, child := range beside {
		taken = taken.With(child.N)
	}
	var all []Child
	n := 0
	for _, pkg := range packages {
		for taken.Has(n) {
			n++
		}
		all = append(all, Child{N: n, Package: pkg})
		n++
	}
	return all, nil
}

// HandedOffAtOnceMax is how many handoffs one result hands off; a group counts as one.
const HandedOffAtOnceMax = 64

// boundHandOffs keeps an append under what the engine takes in a message:
// packages that together are too large go into blobs.
func boundHandOffs(ctx context.Context, b *Broker, all []handedOff) error {
	room := protocol.InlineBytesMax
	for i := range all {
		event := &all[i].event
		if event.Blob != nil {
			continue
		}
		if len(event.Package) <= room {
			room -= len(event.Package)
			continue
		}
		blob, err := b.PutBlob(ctx, event.Package)
		if err != nil {
			return fmt.Errorf("store package: %w", err)
		}
		event.Package, event.Blob = nil, &blob
	}
	return nil
}

// submitChildren submits what an append has just recorded. Should that fail, a
// supervisor does it.
func (c *Claim) submitChildren(ctx context.Context, all []handedOff) {
	for _, child := range all {
		_, err := c.b.fulfil(ctx, promised{ticket: child.event.Ticket, summary: child.summary,
			body: child.event.Package, blob: child.event.Blob, directory: child.directory})
		if err != nil {
			c.b.log.Warn("child not submitted; a supervisor will", "ticket", c.Ticket, "child", child.event.Ticket, "err", err)
		}
	}
}

// Suspend lets go of the handoff until children that it handed off have closed;
// then it is offered to this agent again, as the same attempt. It reports false,
// and changes nothing, where they are known to have closed already.
func (c *Claim) Suspend(ctx context.Context, children ...int) (suspended bool, err error) {
	err = c.report(ctx, func(s protocol.State, now time.Time) ([]protocol.Event, error) {
		if err := c.accepted(s); err != nil {
			return nil, err
		}
		events, err := lifecycle.Suspend(s, c.Holder.ID, children, now)
		suspended = len(events) > 0
		return events, err
	})
	if err != nil || !suspended {
		return false, err
	}
	return true, c.leaveQueue()
}

// Escalate passes the handoff up the chain of authority. The rationale is
// required; the assessment is what was found out so far.
func (c *Claim) Escalate(ctx context.Context, rationale, assessment string) error {
	err := c.reportBy(ctx, c.b.everybody, func(s protocol.State, d *lifecycle.Directory, now time.Time) ([]protocol.Event, error) {
		if err := c.accepted(s); err != nil {
			return nil, err
		}
		return lifecycle.Escalate(s, d, c.Holder.ID, words(rationale), words(assessment), now)
	})
	if err != nil {
		return err
	}
	return c.leaveQueue()
}

// Answer is what an authority says to a handoff that was escalated to it: the
// handoff goes back to the agent that escalated it, with the answer.
func (c *Claim) Answer(ctx context.Context, answer protocol.Answer) error {
	if answer.By == "" {
		answer.By = c.Agent
	}
	if err := answer.Validate(); err != nil {
		return err
	}
	err := c.reportBy(ctx, c.b.everybody, func(s protocol.State, d *lifecycle.Directory, now time.Time) ([]protocol.Event, error) {
		return lifecycle.Answer(s, d, answer, now)
	})
	if err != nil {
		return err
	}
	return c.leaveQueue()
}

// HandBack returns the handoff to its source: a rollback. partial is what there
// is of a result; nil is nothing.
func (c *Claim) HandBack(ctx context.Context, reason string, partial *protocol.Result) error {
	body := protocol.RolledBack{Reason: words(reason)}
	if partial != nil {
		partial.Normalize()
		if err := partial.Validate(); err != nil {
			return err
		}
		encoded, err := protocol.EncodeResult(*partial)
		if err != nil {
			return err
		}
		if len(encoded) > protocol.ResultBytesMax {
			return protocol.Errorf(protocol.CodeTooLarge, "result", "is %d bytes, at most %d are allowed", len(encoded), protocol.ResultBytesMax)
		}
		if body.Result = encoded; len(encoded) > protocol.InlineBytesMax {
			blob, err := c.b.PutBlob(ctx, encoded)
			if err != nil {
				return fmt.Errorf("store result of %s: %w", c.Ticket, err)
			}
			body.Result, body.Blob = nil, &blob
		}
	}
	err := c.reportBy(ctx, c.b.itsSource, func(s protocol.State, d *lifecycle.Directory, now time.Time) ([]protocol.Event, error) {
		event := body
		event.By = c.Holder.ID
		return lifecycle.HandBack(s, d, event, now)
	})
	if err != nil {
		return err
	}
	return c.leaveQueue()
}

// park keeps the result of a holder that has lost its lease, and tells whether it did.
func (c *Claim) park(ctx context.Context, completed protocol.Completed) bool {
	c.mu.Lock()
	fence, attempt := c.fence, c.head.State.Attempt
	c.mu.Unlock()
	kept, err := c.b.parkResult(ctx, c.Ticket, c.Holder.ID, fence, attempt, completed)
	if err != nil {
		c.b.log.Warn("late result not kept", "ticket", c.Ticket, "err", err)
	}
	return kept
}

func (b *Broker) parkResult(ctx context.Context, ticket, holder string, fence uint64, attempt int, completed protocol.Completed) (kept bool, err error) {
	if fence == 0 {
		return false, nil
	}
	late := protocol.ResultParked{Holder: holder, Fence: fence, Attempt: attempt, Status: completed.Status,
		Result: completed.Result, Blob: completed.Blob, Tokens: completed.Tokens}
	late.By = holder
	head, err := b.Head(ctx, ticket, 0)
	if err != nil {
		return false, err
	}
	_, kept, err = b.note(ctx, head, func(h Head, _ *lifecycle.Directory, now time.Time) ([]protocol.Event, error) {
		return lifecycle.Park(h.State, late, now), nil
	})
	return kept, err
}

// ParkLate keeps a result that is handed in under a lease which is lost. It
// reports false, and keeps nothing, where the lease never had the handoff, still
// has it, or let go of it itself (a result handed in twice is no late one), and
// where its result was kept before.
func (b *Broker) ParkLate(ctx context.Context, lease string, result protocol.Result) (kept bool, err error) {
	token, err := ParseLease(lease)
	if err != nil {
		return false, err
	}
	result.Normalize()
	if err := result.Validate(); err != nil {
		return false, err
	}
	body, err := protocol.EncodeResult(result)
	if err != nil {
		return false, err
	}
	if len(body) > protocol.ResultBytesMax {
		return false, protocol.Errorf(protocol.CodeTooLarge, "result", "is %d bytes, at most %d are allowed", len(body), protocol.ResultBytesMax)
	}
	fence, attempt, err := b.lostFence(ctx, token)
	if err != nil || fence == 0 {
		return false, err
	}
	completed := protocol.Completed{Status: result.Status, Result: body, Tokens: result.Tokens}
	if len(body) > protocol.InlineBytesMax {
		blob, err := b.PutBlob(ctx, body)
		if err != nil {
			return false, fmt.Errorf("store result of %s: %w", token.Ticket, err)
		}
		completed.Result, completed.Blob = nil, &blob
	}
	return b.parkResult(ctx, token.Ticket, token.Holder, fence, attempt, completed)
}

// lostFence is the last fence that the holder of a lease had and that was taken
// from it; 0 is none.
func (b *Broker) lostFence(ctx context.Context, token LeaseToken) (fence uint64, attempt int, err error) {
	err = b.changes(ctx, token.Ticket, func(c protocol.Change) error {
		for _, e := range c.Record.Events {
			switch e := e.(type) {
			case *protocol.Accepted:
				if e.Holder == token.Holder && e.Agent == token.Agent {
					fence, attempt = c.Seq, e.Attempt
				}
			case *protocol.Taken:
				if e.Holder == token.Holder && e.Agent == token.Agent {
					fence, attempt = c.Seq, 1
				}
			default:
				if fence != 0 && endedBy(e) == token.Holder {
					fence = 0
				}
			}
		}
		return nil
	})
	return fence, attempt, err
}

// endedBy is the holder that let go of its handoff with an event; empty if it is
// no such event.
func endedBy(e protocol.Event) string {
	switch e := e.(type) {
	case *protocol.Completed:
		return e.By
	case *protocol.Failed:
		return e.By
	case *protocol.Rejected:
		return e.Holder
	case *protocol.Conditioned:
		return e.Holder
	case *protocol.Released:
		return e.Holder
	case *protocol.Suspended:
		return e.By
	case *protocol.Escalated:
		return e.By
	case *protocol.RolledBack:
		return e.By
	}
	return ""
}
