package explain

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// Situation is what an explanation is made of.
type Situation struct {
	State     protocol.State
	Directory *lifecycle.Directory
	Now       time.Time
	Zone      *time.Location // of the reader
	Ahead     int64          // handoffs that its agent's workers get before it; -1 is unknown
	InHand    int            // handoffs that its agent has in hand, where it has max_concurrency
	Depth     int            // handoffs in the queue or in work at its agent; -1 is unknown
	Open      []Relative     // the first of its open members, or of the handoffs it waits for

	Blockers []lifecycle.Blocker // handoffs that are in the way of its locks
	Circle   []string            // tickets of a circle in which it waits for itself

	// Next is the handoff that it was handed on as by goto, and Last the one that its chain has
	// come to.
	Next, Last protocol.State
}

// Relative is a handoff that another one waits for.
type Relative struct {
	Ticket string
	N      int            // its number, from 1
	State  protocol.State // zero until it is submitted
}

// IndexPatience is the longest wait for an answer of the index that is optional.
const IndexPatience = 500 * time.Millisecond

// relativesRead is how many relatives of a handoff are looked up.
const relativesRead = 5

// Gather reads the situation of a handoff. It fails only where the ledger does: the
// explanation leaves out what else cannot be read.
func Gather(ctx context.Context, b *broker.Broker, ix ask.Answers, ticket string, zone *time.Location) (Situation, error) {
	head, err := b.Head(ctx, ticket, 0)
	if errors.Is(err, broker.ErrNotFound) {
		err = protocol.Errorf(protocol.CodeNotFound, "ticket", "no handoff has the ticket %s", ticket)
	}
	if err != nil {
		return Situation{}, err
	}
	s := Situation{State: head.State, Now: time.Now(), Zone: zone, Ahead: -1, Depth: -1}
	for _, at := range []time.Time{head.At, head.State.UpdatedAt} {
		if at.After(s.Now) { // our clock is slow
			s.Now = at
		}
	}
	if s.Directory, err = observed(ctx, b, head.State); err != nil {
		return Situation{}, err
	}
	if s.Open, err = openRelatives(ctx, b, head.State); err != nil {
		return Situation{}, err
	}
	if s.Next, s.Last, err = chainOf(ctx, b, head.State); err != nil {
		return Situation{}, err
	}
	if lifecycle.AwaitsWorkspace(head.State) {
		if w, err := b.Workspace(ctx, head.State.Workspace); err == nil {
			s.Blockers = lifecycle.Blockers(w, ticket)
		}
	}
	if lifecycle.DutiesOf(head.State).Offer && head.State.Agent != protocol.Human {
		if ahead, ok := aheadOf(ctx, ix, ticket); ok {
			s.Ahead = ahead
		} else if depth, err := b.QueueDepth(ctx, head.State.Agent); err == nil {
			s.Depth = depth
		}
		if inHand, _, err := b.Capacity(ctx, head.State.Agent); err == nil {
			s.InHand = inHand
		}
	}
	if !lifecycle.DeadlockDue(head.State, s.Directory).IsZero() {
		if s.Circle, err = circleOf(ctx, b, head.State, s.Now); err != nil {
			return Situation{}, err
		}
	}
	return s, nil
}

// circleOf finds the circle in which those that wait for a handoff have the slots that it waits for.
func circleOf(ctx context.Context, b *broker.Broker, s protocol.State, now time.Time) ([]string, error) {
	waiters, keepsSlot, err := broker.WaitersOf(ctx, b.Head, s)
	if err != nil || !keepsSlot {
		return nil, err
	}
	waits := lifecycle.WaitGraph{Early: true}
	for _, one := range append(waiters, s) {
		waits.Add(&one, now)
	}
	directory, err := b.Directory(ctx)
	if err != nil {
		return nil, err
	}
	for _, found := range waits.Deadlocks(directory) {
		if slices.Contains(found.Cycle, s.Ticket) {
			return found.Cycle, nil
		}
	}
	return nil, nil
}

// chainOf reads the ends of the chain of a handoff that was handed on.
func chainOf(ctx context.Context, b *broker.Broker, s protocol.State) (next, last protocol.State, err error) {
	ticket, goesOn := lifecycle.NextInChain(s)
	if !goesOn {
		return next, last, nil
	}
	head, err := b.Head(ctx, ticket, 0)
	switch {
	case errors.Is(err, broker.ErrNotFound) || broker.Unreadable(err):
		return next, last, nil
	case err != nil:
		return next, last, err
	}
	end, err := b.LastOfChain(ctx, ticket)
	return head.State, end.State, err
}

// observed returns the directory as a supervisor sees it that has run for long. A
// snapshot may lag behind a new holder: one that seems gone is read by itself.
func observed(ctx context.Context, b *broker.Broker, s protocol.State) (*lifecycle.Directory, error) {
	directory, err := b.DirectoryOf(ctx, s)
	if err != nil {
		return nil, err
	}
	if s.Held() && !directory.Present(s.Holder) {
		if holder, err := b.Holder(ctx, s.Holder); err == nil {
			directory = directory.With(holder)
		}
	}
	long := *directory
	long.ConnectedSince = s.SubmittedAt.Add(-time.Duration(protocol.LeaseMaxMS) * time.Millisecond)
	return &long, nil
}

// openRelatives reads the first relatives that a handoff waits for.
func openRelatives(ctx context.Context, b *broker.Broker, s protocol.State) ([]Relative, error) {
	var open []Relative
	for _, n := range openOrdinals(s) {
		if len(open) == relativesRead {
			break
		}
		r := Relative{Ticket: s.ChildTicket(n), N: n + 1}
		head, err := b.Head(ctx, r.Ticket, 0)
		if err != nil && !errors.Is(err, broker.ErrNotFound) && !broker.Unreadable(err) {
			return nil, err
		}
		r.State = head.State
		open = append(open, r)
	}
	return open, nil
}

// openOrdinals returns the members, or the children, that an open handoff waits for.
func openOrdinals(s protocol.State) []int {
	switch {
	case s.Children == nil || s.Closed:
		return nil
	case s.Aggregate != nil:
		return s.Children.Made.Without(s.Children.Closed).Numbers()
	}
	return s.Children.Awaited.Without(s.Children.Closed).Numbers()
}

// aheadOf asks the index how many handoffs an agent's workers get before this one;
// false where the answer is missing or uncertain.
func aheadOf(ctx context.Context, ix ask.Answers, ticket string) (int64, bool) {
	ctx, cancel := context.WithTimeout(ctx, IndexPatience)
	defer cancel()
	answer, err := ix.Ahead(ctx, ask.AheadQuery{Question: ask.Question{WaitMS: IndexPatience.Milliseconds() / 2}, Ticket: ticket})
	return answer.Ahead, err == nil && answer.Complete && answer.Waiting
}
