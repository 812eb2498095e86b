//go:build proof

package sim

import (
	"context"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

const endSwallowed bug = "the end of a child called received, once its parent waits for it no more"

func init() { bugs = append(bugs, endSwallowed) }

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
	case s.ReturnTicket != "" && ret.Closed && (ret.Fence != 0 || ret.Outcome == protocol.OutcomeSuccess || ret.Outcome == protocol.OutcomePartial || ret.Inbox != ""):
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
	_, _, err = f.Broker.UpdateFrom(ctx, head, func(h broker.Head, _ *lifecycle.Directory, now time.Time) (lifecycle.Step, error) {
		return lifecycle.SettleReturn(h.State, true, "", now)
	})
	return err
}
