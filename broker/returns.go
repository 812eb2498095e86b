package broker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// EnsureReturn sees to the end of a closed handoff as its source or its parent gets it. It
// records the end of its chain, submits the handoff that delivers its return, and records what
// became of that. Doing it twice is harmless.
func (b *Broker) EnsureReturn(ctx context.Context, head Head) error {
	if lifecycle.AwaitsChain(head.State) {
		var err error
		if head, err = b.ensureChain(ctx, head); err != nil || !lifecycle.DutiesOf(head.State).Return {
			return err
		}
	}
	s := head.State
	if s.ReturnTicket == "" {
		parent, err := b.Head(ctx, s.Parent, 0)
		switch {
		case Unreadable(err): // the parent is stuck, and this handoff is not
			return nil
		case err != nil && !errors.Is(err, ErrNotFound):
			return err
		}
		return b.settleChild(ctx, head, parent.State)
	}
	ret, err := b.Head(ctx, s.ReturnTicket, 0)
	switch {
	case errors.Is(err, ErrNotFound):
		return b.sendReturn(ctx, head)
	case Unreadable(err): // the return is stuck
		return nil
	case err != nil:
		return err
	case ret.State.Fence != 0, ret.State.Outcome == protocol.OutcomeSuccess, ret.State.Outcome == protocol.OutcomePartial:
		return b.settleReturn(ctx, head, true, "")
	case ret.State.Closed:
		return b.settleReturn(ctx, head, false, string(ret.State.Outcome))
	case lifecycle.DutiesOf(ret.State).Offer: // the process that submitted it may have died before it offered it
		return b.EnsureOffer(ctx, ret)
	}
	return nil
}

// settleChild passes the end of a child on, according to the state of its parent. A parent that does not exist is the
// zero State.
func (b *Broker) settleChild(ctx context.Context, head Head, parent protocol.State) error {
	head, appended, err := b.update(ctx, head, b.sourceAgent, func(h Head, d *lifecycle.Directory, now time.Time) (lifecycle.Step, error) {
		return lifecycle.SettleChild(h.State, parent, d, now)
	})
	if err != nil || !appended || head.State.ReturnTicket == "" {
		return err
	}
	return b.sendReturn(ctx, head)
}

func (b *Broker) settleReturn(ctx context.Context, head Head, delivered bool, reason string) error {
	_, _, err := b.updateWithoutDirectory(ctx, head, func(h Head, _ *lifecycle.Directory, now time.Time) (lifecycle.Step, error) {
		return lifecycle.SettleReturn(h.State, delivered, reason, now)
	})
	return err
}

// sendReturn puts the return into the queue of the handoff's source. It was
// promised, so that nothing in it may keep it from being sent: what makes it too
// large, or too deep, is left out, and the notes say how to read it.
func (b *Broker) sendReturn(ctx context.Context, head Head) error {
	ret, err := b.returnOf(ctx, head)
	if err != nil {
		return err
	}
	pkg, s, err := b.packReturn(ctx, head, ret)
	var unfit *protocol.Error
	if errors.As(err, &unfit) {
		withoutResults(&ret, unfit.Message)
		pkg, s, err = b.packReturn(ctx, head, ret)
	}
	if errors.As(err, &unfit) {
		ret.Trail, ret.Progress, ret.Reason, ret.Message = nil, nil, "", ""
		pkg, s, err = b.packReturn(ctx, head, ret)
	}
	if err != nil {
		return fmt.Errorf("return of %s: %w", head.Ticket, err)
	}
	open, err := b.parentOpen(ctx, head.State)
	if err != nil {
		return err
	}
	_, err = b.submitChild(ctx, pendingChild{ticket: head.State.ReturnTicket, summary: lifecycle.ReturnOf(head.State, open, pkg, s.digest), body: s.body, blob: s.blob})
	return err
}

// parentOpen reports whether the parent of a child is open: the handoffs and agents that the child has
// left go back there. One that has closed never takes them. It is read only where they are limited.
func (b *Broker) parentOpen(ctx context.Context, s protocol.State) (bool, error) {
	if s.N == 0 || s.Limits == nil || s.Limits.MaxHandoffs == nil && s.Limits.MaxAgents == nil {
		return false, nil
	}
	parent, err := b.Head(ctx, s.Parent, 0)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil && !parent.State.Closed, err
}

func (b *Broker) packReturn(ctx context.Context, head Head, ret protocol.Return) (protocol.Package, storedBody, error) {
	pkg := protocol.ReturnPackage(head.State, ret, b.now(head))
	s, err := b.storeOwnBody(ctx, pkg)
	return pkg, s, err
}

// withoutResults leaves out of a return what was made, and says why and where it is.
func withoutResults(ret *protocol.Return, why string) {
	ret.Result, ret.ContextUpdates = nil, nil
	ret.Audit.Notes = fmt.Sprintf("the result was left out (%s); read the result of %s", why, cmp.Or(ret.LastID, ret.HandoffID))
	for i := range ret.Members {
		ret.Members[i].Result = nil
	}
}

// Return is the end of a closed handoff as its source gets it: that of its chain, where it was
// handed on and its source or its parent gets the end of that.
func (b *Broker) Return(ctx context.Context, ticket string) (protocol.Return, error) {
	head, err := b.Head(ctx, ticket, 0)
	if err != nil {
		return protocol.Return{}, unknownTicketError(ticket, err)
	}
	switch {
	case !head.State.Closed:
		return protocol.Return{}, protocol.Errorf(protocol.CodeIllegal, "ticket", "%s is still open (%s)", ticket, head.State.Phase)
	case !lifecycle.HasEnded(head.State):
		next, _ := lifecycle.NextInChain(head.State)
		return protocol.Return{}, protocol.Errorf(protocol.CodeIllegal, "ticket", "%s was handed on, as %s, and that chain has not ended", ticket, next)
	}
	return b.returnOf(ctx, head)
}

func (b *Broker) returnOf(ctx context.Context, head Head) (protocol.Return, error) {
	if head.State.ChainEnd != nil {
		return b.chainReturn(ctx, head)
	}
	all, err := b.redriveOrigins(ctx, head.State.Origin)
	if err != nil {
		return protocol.Return{}, err
	}
	var progress *protocol.Progress
	var result *protocol.Result
	err = b.eachChange(ctx, head.Ticket, func(c protocol.Change) error {
		for _, e := range c.Record.Events {
			if p, ok := e.(*protocol.Progressed); ok {
				progress = &p.Progress
			}
		}
		if c.Seq == head.State.ResultSeq {
			var err error
			if result, err = b.readResult(ctx, c); err != nil {
				return err
			}
		}
		all = append(all, withoutBodies(c))
		return nil
	})
	if err != nil {
		return protocol.Return{}, err
	}
	ret := protocol.ReturnOf(head.State, result, protocol.TrailOf(all), progress)
	if head.State.Aggregate != nil {
		members, err := b.readMembers(ctx, head.State, protocol.MemberResultsBytesMax)
		if err != nil {
			return ret, err
		}
		ret.WithMembers(members)
	}
	return ret, nil
}

// Members reads how the members of a group ended, in the order of its recipients, with their
// results. Once the results together would exceed PackageBytesMax, the further ones are left
// out: read those one by one, with Result.
func (b *Broker) Members(ctx context.Context, group protocol.State) ([]protocol.MemberReturn, error) {
	if group.Aggregate == nil {
		return nil, protocol.Errorf(protocol.CodeIllegal, "ticket", "%s is no group", group.Ticket)
	}
	return b.readMembers(ctx, group, protocol.PackageBytesMax)
}

// readMembers is Members with a bound on the results, in bytes. A thousand members
// may have a thousand large ones: they are read one after another, and no body
// that does not fit.
func (b *Broker) readMembers(ctx context.Context, group protocol.State, room int64) ([]protocol.MemberReturn, error) {
	members := make([]protocol.MemberReturn, group.Aggregate.Size)
	results := make([]uint64, len(members)) // the entries that hold them
	err := forEachParallel(ctx, readsAtOnce, len(members), func(ctx context.Context, n int) (err error) {
		members[n], results[n], err = b.readMember(ctx, group.ChildTicket(n))
		return err
	})
	if err != nil {
		return nil, err
	}
	for n := range members {
		if results[n] == 0 {
			continue
		}
		change, err := b.readChange(ctx, cmp.Or(members[n].LastID, members[n].Ticket), results[n])
		if err != nil {
			return nil, err
		}
		inline, blob, _ := locateResult(change)
		size := int64(len(inline))
		if blob != nil {
			size = blob.Size
		}
		if size > room {
			continue
		}
		room -= size
		if members[n].Result, err = b.readResult(ctx, change); err != nil {
			return nil, err
		}
	}
	return members, nil
}

// readMember reads how a member of a group ended, with its chain, and where its result is.
func (b *Broker) readMember(ctx context.Context, ticket string) (m protocol.MemberReturn, resultSeq uint64, err error) {
	m.Ticket = ticket
	head, err := b.Head(ctx, ticket, 0)
	if errors.Is(err, ErrNotFound) {
		return m, 0, nil // not submitted yet
	}
	if err != nil {
		return m, 0, err
	}
	if m.Agent = head.State.Agent; m.Agent == "" {
		m.Agent = head.State.Target.String()
	}
	if m.Closed = lifecycle.HasEnded(head.State); !m.Closed {
		return m, 0, nil
	}
	if end := head.State.ChainEnd; end != nil {
		m.LastID, m.Agent = end.Ticket, cmp.Or(end.Agent, m.Agent)
		if head, err = b.Head(ctx, end.Ticket, 0); err != nil {
			return m, 0, err
		}
	}
	m.Status, m.Outcome = protocol.ReturnStatusOf(head.State.Outcome), head.State.Outcome
	return m, head.State.ResultSeq, nil
}

// ChildReturns reads the ends of children that the worker of a handoff got with its claim. They are in
// the order of their ordinals. Results that would be
// over PackageBytesMax together are left out, as far as they do not fit, and the
// notes say so: those are read one by one, with Result.
func (b *Broker) ChildReturns(ctx context.Context, s protocol.State) ([]protocol.Return, error) {
	if s.Children == nil {
		return nil, nil
	}
	var all []protocol.Return
	room := protocol.PackageBytesMax
	for _, n := range s.Children.Received.Numbers() {
		ret, err := b.Return(ctx, s.ChildTicket(n))
		if err != nil {
			return nil, err
		}
		body, err := protocol.Marshal(ret)
		if err != nil {
			return nil, err
		}
		if len(body) > room {
			withoutResults(&ret, fmt.Sprintf("with those before it it is over %s", protocol.Size(protocol.PackageBytesMax)))
		} else {
			room -= len(body)
		}
		all = append(all, ret)
	}
	return all, nil
}

// readResult is the result that a change holds, wherever it lies.
func (b *Broker) readResult(ctx context.Context, c protocol.Change) (*protocol.Result, error) {
	inline, blob, ok := locateResult(c)
	if !ok {
		return nil, fmt.Errorf("entry %d holds no result", c.Seq)
	}
	body, err := b.packageBody(ctx, inline, blob)
	if err != nil {
		return nil, err
	}
	// Leniently: a worker of a newer version may have said more.
	result := new(protocol.Result)
	if err := json.Unmarshal(body, result); err != nil {
		return nil, fmt.Errorf("result in entry %d: %w", c.Seq, err)
	}
	return result, nil
}

// locateResult finds a result in a change, or where it lies: one that completed a
// handoff, one that came late, one that is malformed, or what there was of one at a rollback.
func locateResult(c protocol.Change) (inline json.RawMessage, blob *protocol.BlobRef, ok bool) {
	for _, e := range c.Record.Events {
		switch e := e.(type) {
		case *protocol.Completed:
			return e.Result, e.Blob, true
		case *protocol.ResultParked:
			return e.Result, e.Blob, true
		case *protocol.Failed:
			return e.Result, e.Blob, len(e.Result) > 0 || e.Blob != nil
		case *protocol.RolledBack:
			return e.Result, e.Blob, true
		}
	}
	return nil, nil, false
}

// LateResult is a result that came after its holder had lost the lease.
type LateResult struct {
	At      time.Time       `json:"at"`
	Holder  string          `json:"holder"`
	Fence   uint64          `json:"fence"`
	Attempt int             `json:"attempt"`
	Result  protocol.Result `json:"result"`
}

// LateResults reads what holders handed in that had lost their lease, oldest first.
func (b *Broker) LateResults(ctx context.Context, ticket string) ([]LateResult, error) {
	var all []LateResult
	found := false
	err := b.eachChange(ctx, ticket, func(c protocol.Change) error {
		found = true
		for _, e := range c.Record.Events {
			late, ok := e.(*protocol.ResultParked)
			if !ok {
				continue
			}
			result, err := b.readResult(ctx, c)
			if err != nil {
				return err
			}
			all = append(all, LateResult{At: late.At, Holder: late.Holder, Fence: late.Fence, Attempt: late.Attempt, Result: *result})
		}
		return nil
	})
	if err == nil && !found {
		err = ErrNotFound
	}
	return all, unknownTicketError(ticket, err)
}
