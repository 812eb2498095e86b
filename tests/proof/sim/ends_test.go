//go:build proof

package sim

import (
	"bytes"
	"context"
	"fmt"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

const (
	endSwallowed bug = "the end of a child called received, once its parent waits for it no more"
	attemptKeyed bug = "what is handed off found by the attempt, and not by what it asks for"
)

func init() { bugs = append(bugs, endSwallowed, attemptKeyed) }

// steadyReason marks what each attempt at a handoff asks for in the same words.
const steadyReason = "asked for by each attempt"

// asksSteadily hands off one delegation, the same in each attempt at a handoff.
func (h *handler) asksSteadily(ctx context.Context, of worker.Handoff, depth int) error {
	d := dice(h.l.seed, "steady", of.Ticket)
	if d%5 != 0 {
		return nil
	}
	child := h.l.newPackage(depth, other(h.agent, d>>8))
	child.Type, child.Reason = protocol.Delegation, steadyReason
	child.Return = &protocol.ReturnProtocol{Expected: true, TimeoutMS: 1_800_000, Wait: []string{protocol.WaitBlock, protocol.WaitContinue}[d>>16%2]}
	if h.l.bug == attemptKeyed {
		child.Key = fmt.Sprint(of.Fence)
	}
	if _, err := of.HandOff(ctx, child); !isBarred(err) {
		return err
	}
	return nil
}

// checkKeys: no two children of one handoff have the same key, and what an attempt asks for is found.
func (j *judge) checkKeys(after protocol.State, events []protocol.Event) {
	for _, e := range events {
		child, ok := e.(*protocol.HandedOff)
		if !ok || child.Cell == "" {
			continue
		}
		if bytes.Contains(child.Package, []byte(steadyReason)) {
			if other := j.keys[after.Ticket+child.Written]; other != "" {
				j.faultLocked("%s hands off %s, and an earlier attempt has handed off the same as %s", after.Ticket, child.Ticket, other)
			}
			j.keys[after.Ticket+child.Written] = child.Ticket
		}
		if of := j.keys["of "+child.Ticket]; of != "" {
			j.faultLocked("%s hands off %s again, with the key of %s", after.Ticket, child.Ticket, of)
		}
		j.keys["of "+child.Ticket] = after.Ticket
		if child.Ticket != protocol.ChildTicket(after.Ticket, child.Cell) {
			j.faultLocked("%s hands off %s, whose ticket is not of its key", after.Ticket, child.Ticket)
		}
	}
}

// receivesEnds reports whether an append gives a worker a claim: it gets the ends of all children that
// the handoff knows to have closed.
func receivesEnds(before protocol.State, events []protocol.Event) bool {
	for _, e := range events {
		switch e := e.(type) {
		case *protocol.Claimed, *protocol.Taken:
			return true
		case *protocol.Accepted:
			return before.Holder == "" || e.Holder != before.Holder
		}
	}
	return false
}

// checkEnds: an end is called received where a worker of the parent got it with its claim, or its
// source took in a return, and nowhere else.
func (j *judge) checkEnds(before, after protocol.State, events []protocol.Event) {
	if before.Children != nil && receivesEnds(before, events) {
		j.gotten[after.Ticket] = before.Children.Closed
	}
	for _, e := range events {
		told, ok := e.(*protocol.Returned)
		if !ok || !told.Delivered {
			continue
		}
		if ret := j.heads[after.ReturnTicket].state; after.ReturnTicket != "" {
			if ret.Fence == 0 && !ret.Closed {
				j.faultLocked("%s is returned, and its source has not taken in %s", after.Ticket, ret.Ticket)
			}
			continue
		}
		if !j.gotten[after.Parent].Has(after.N - 1) {
			j.faultLocked("the end of %s is called received, and no worker of %s got it", after.Ticket, after.Parent)
		}
	}
}

// checkEndKept: once all is over, the end of each child was received by a worker of its parent or by
// its source, or stands in an inbox.
func (j *judge) checkEndKept(s protocol.State) {
	if s.Parent == "" || s.N == 0 || s.ReturnOf != "" || !s.ReturnExpected && s.Wait == "" {
		return
	}
	ret := j.heads[s.ReturnTicket].state
	switch {
	case s.ReturnTicket == "" && j.gotten[s.Parent].Has(s.N-1) && s.Wait == protocol.WaitBlock:
	case s.ReturnTicket != "" && ret.Closed && (ret.AttemptsTotal > 0 || ret.Outcome == protocol.OutcomeSuccess || ret.Outcome == protocol.OutcomePartial || ret.Inbox != ""):
	case s.Inbox != "":
	case s.Wait != protocol.WaitBlock && !s.ReturnExpected: // of a group whose parent goes on without it
	default:
		j.faultLocked("nobody got the end of %s, %s by %s: its return is %q (%s)", s.Ticket, s.Outcome, s.Source, s.ReturnTicket, ret.Phase)
	}
}

// swallowsEnds is EnsureReturn of a supervisor that settles the end of a child where its parent does
// not wait for it.
func (f *faultyBroker) swallowsEnds(ctx context.Context, head broker.Head) error {
	s := head.State
	if s.Wait != protocol.WaitBlock || s.ReturnTicket != "" || !lifecycle.DutiesOf(s).Return {
		return f.Broker.EnsureReturn(ctx, head)
	}
	parent, err := f.Broker.Head(ctx, s.Parent, 0)
	if err != nil || parent.State.Phase == protocol.Conditional || parent.State.Children == nil {
		return f.Broker.EnsureReturn(ctx, head)
	}
	_, _, err = f.Broker.Update(ctx, head, func(h broker.Head, q lifecycle.Query) (lifecycle.Step, error) {
		return lifecycle.SettleReturn(h.State, true, "", q.Now)
	})
	return err
}
