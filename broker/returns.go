package broker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// EnsureReturn delivers the end of a closed handoff to its source or its parent. It records the end
// of its chain, submits the handoff that delivers its return, and records whether it arrived. It is
// idempotent.
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
	case lifecycle.DutiesOf(ret.State).Offer: // the process that submitted it may have died before offering it
		return b.EnsureOffer(ctx, ret)
	}
	return nil
}

// settleChild passes the end of a child on, according to the state of its parent. A missing parent
// is the zero State.
func (b *Broker) settleChild(ctx context.Context, head Head, parent protocol.State) error {
	head, appended, err := b.update(ctx, head, wantSource, func(h Head, q lifecycle.Query) (lifecycle.Step, error) {
		return lifecycle.SettleChild(h.State, parent, q)
	})
	if err != nil || !appended || head.State.ReturnTicket == "" {
		return err
	}
	return b.sendReturn(ctx, head)
}

func (b *Broker) settleReturn(ctx context.Context, head Head, delivered bool, reason string) error {
	_, _, err := b.update(ctx, head, wantNothing, func(h Head, q lifecycle.Query) (lifecycle.Step, error) {
		return lifecycle.SettleReturn(h.State, delivered, reason, q.Now)
	})
	return err
}

// sendReturn submits the return to the handoff's source. The return was announced, so nothing in it
// may prevent it: parts that make it too large, or too deep, are left out, and the notes explain
// how to read them.
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

// parentOpen reports whether the parent of a child is open: an open parent takes back the rest of the
// child's handoffs and agents. The parent is read only if these are limited.
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

// withoutResults removes the results from a return, and notes the reason and where to read them.
func withoutResults(ret *protocol.Return, why string) {
	ret.Result, ret.ContextUpdates = nil, nil
	ret.Audit.Notes = fmt.Sprintf("the result was left out (%s); read the result of %s", why, cmp.Or(ret.LastID, ret.HandoffID))
	for i := range ret.Members {
		ret.Members[i].Result = nil
	}
}

// Return returns the end of a closed handoff in the form that its source gets: the end of its
// chain, if the handoff continued as another and its source or its parent gets that end.
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
		return protocol.Return{}, protocol.Errorf(protocol.CodeIllegal, "ticket", "%s continues as %s, and that chain has not ended", ticket, next)
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
// results. Results beyond a total of PackageBytesMax are left out: read those one by one, with
// Result.
func (b *Broker) Members(ctx context.Context, group protocol.State) ([]protocol.MemberReturn, error) {
	if group.Aggregate == nil {
		return nil, protocol.Errorf(protocol.CodeIllegal, "ticket", "%s is not a group", group.Ticket)
	}
	return b.readMembers(ctx, group, protocol.PackageBytesMax)
}

// readMembers is Members with a bound on the results, in bytes. A thousand members may have a
// thousand large results, so it reads them one after another, and only those that fit.
func (b *Broker) readMembers(ctx context.Context, group protocol.State, room int64) ([]protocol.MemberReturn, error) {
	members := make([]protocol.MemberReturn, group.Aggregate.Size)
	results := make([]uint64, len(members)) // the entries that hold them
	err := forEachParallel(ctx, len(members), func(ctx context.Context, n int) (err error) {
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

// readMember reads how a member of a group ended, with its chain, and the sequence of its result.
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

// ChildReturns reads the ends of children that the worker of a handoff got with its claim. They are
// in the order of their ordinals. Results beyond a total of PackageBytesMax are left out, with a
// note: read those one by one, with Result.
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

// readResult reads the result of a change, inline or from a blob.
func (b *Broker) readResult(ctx context.Context, c protocol.Change) (*protocol.Result, error) {
	inline, blob, ok := locateResult(c)
	if !ok {
		return nil, fmt.Errorf("entry %d holds no result", c.Seq)
	}
	body, err := b.packageBody(ctx, inline, blob)
	if err != nil {
		return nil, err
	}
	// Leniently: a worker of a newer version may have added fields.
	result := new(protocol.Result)
	if err := json.Unmarshal(body, result); err != nil {
		return nil, fmt.Errorf("result in entry %d: %w", c.Seq, err)
	}
	return result, nil
}

// locateResult finds a result, or its reference, in a change: one that completed a handoff, one
// that came late, a malformed one, or the partial one of a rollback.
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

// LateResults reads the results that holders submitted after losing their lease, oldest first.
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

// ensureChain records the end of the chain that a closed handoff began, once the chain has ended.
// It takes one read per handoff of the chain.
func (b *Broker) ensureChain(ctx context.Context, head Head) (Head, error) {
	last, err := b.lastOfChain(ctx, head)
	if err != nil || last.Ticket == head.Ticket {
		return head, err
	}
	head, _, err = b.update(ctx, head, wantAll, func(h Head, q lifecycle.Query) (lifecycle.Step, error) {
		return lifecycle.EndChain(h.State, q, last.State)
	})
	return head, err
}

// LastOfChain returns the last handoff of a chain: the one that it ended with, or the current one.
// That is the handoff itself if it continues as no other.
func (b *Broker) LastOfChain(ctx context.Context, ticket string) (Head, error) {
	head, err := b.Head(ctx, ticket, 0)
	if err != nil {
		return Head{}, unknownTicketError(ticket, err)
	}
	return b.lastOfChain(ctx, head)
}

// lastOfChain follows a chain. It stops before a handoff that does not exist yet or cannot be read.
func (b *Broker) lastOfChain(ctx context.Context, head Head) (Head, error) {
	for {
		ticket, goesOn := lifecycle.NextInChain(head.State)
		if !goesOn {
			return head, nil
		}
		next, err := b.Head(ctx, ticket, 0)
		switch {
		case errors.Is(err, ErrNotFound), Unreadable(err):
			return head, nil
		case err != nil:
			return head, err
		}
		head = next
	}
}

// chainReturn returns the end of the chain that a handoff began, in the form that its source gets.
func (b *Broker) chainReturn(ctx context.Context, head Head) (protocol.Return, error) {
	last, err := b.Head(ctx, head.State.ChainEnd.Ticket, 0)
	if err != nil {
		return protocol.Return{}, unknownTicketError(head.State.ChainEnd.Ticket, err)
	}
	last.State.ChainEnd = nil // the last of a chain began no chain, even if a foreign writer recorded one
	ret, err := b.returnOf(ctx, last)
	if err != nil {
		return ret, err
	}
	ret.OfChain(head.State)
	for link := head; link.Ticket != last.Ticket; {
		ret.Audit.TokensConsumed += link.State.Usage.Total().Tokens
		next, _ := lifecycle.NextInChain(link.State)
		if link, err = b.Head(ctx, next, 0); err != nil { // dropped by the ledger: its tokens are left out
			break
		}
	}
	return ret, nil
}

// warnDeep logs a warning for a deep lineage, repeated every LineageDepthWarning hand-offs.
func (b *Broker) warnDeep(s *protocol.State) {
	if lifecycle.Deep(s.Summary) && s.Lineage.Depth%protocol.LineageDepthWarning == 0 {
		b.log.Warn("deep lineage: agents may hand off in a loop", "ticket", s.Ticket, "depth", s.Lineage.Depth, "most", protocol.LineageDepthMax,
			"repeated", lifecycle.Repeated(s.Summary, s.Source, s.Agent))
	}
}
