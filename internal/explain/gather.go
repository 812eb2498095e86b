package explain

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// Situation is the input of Explain.
type Situation struct {
	State     protocol.State
	Directory *lifecycle.Directory
	Reserved  lifecycle.Reserved // of the other members of its group
	Now       time.Time
	Zone      *time.Location // of the reader
	Ahead     int64          // handoffs before it in its agent's queue; -1 is unknown
	InHand    int            // handoffs that its agent holds; 0 without max_concurrency
	Depth     int            // handoffs that its agent has in its queue or in work; -1 is unknown
	Open      []Relative     // the first relativesRead of its open members or awaited children

	Blockers []lifecycle.Blocker // handoffs that block its locks
	Circle   []string            // tickets of a deadlock that includes it
	KeyUse   protocol.KeyUse     // of the limit that it waits for

	// Next is the handoff that this one continues as, and Last the most recent one of the chain.
	Next, Last protocol.State
}

// Relative is a handoff that another one waits for.
type Relative struct {
	Ticket string
	N      int            // its number, from 1
	State  protocol.State // zero until it is submitted
}

// IndexPatience bounds the wait for an optional answer of the index.
const IndexPatience = 500 * time.Millisecond

// relativesRead bounds the relatives that are read.
const relativesRead = 5

// Gather reads the situation of a handoff. It fails only if the ledger or the directory cannot be
// read; it leaves out other facts that it cannot read.
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
		if at.After(s.Now) { // the local clock is slow
			s.Now = at
		}
	}
	if err = s.observe(ctx, b); err != nil {
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
	if key := lifecycle.AwaitsKey(head.State); key != "" {
		if use, err := b.KeyLimits().Use(ctx, key); err == nil {
			s.KeyUse = use
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

// At returns the situation of a state at an instant, in UTC. The directory is the present one, and
// facts of other handoffs are left out.
func At(ctx context.Context, b *broker.Broker, s protocol.State, at time.Time) (Situation, error) {
	x := Situation{State: s, Now: at, Zone: time.UTC, Ahead: -1, Depth: -1}
	return x, x.observe(ctx, b)
}

// circleOf finds the deadlock that includes a handoff: those that wait for it hold the slots that
// it waits for.
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

// chainOf reads the next and the last handoff of the chain that a handoff continues as.
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

// observe reads the directory as a supervisor sees it that has long been connected.
func (x *Situation) observe(ctx context.Context, b *broker.Broker) error {
	q, err := b.Query(ctx, x.State)
	if err != nil {
		return err
	}
	long := *q.Directory
	long.ConnectedSince = x.State.SubmittedAt.Add(-time.Duration(protocol.LeaseMaxMS) * time.Millisecond)
	x.Directory, x.Reserved = &long, q.Reserved
	return nil
}

// query returns the arguments of a decision at an instant.
func (x *Situation) query(now time.Time) lifecycle.Query {
	return lifecycle.Query{Directory: x.Directory, Now: now, Reserved: x.Reserved}
}

// openRelatives reads the first members, or children, that an open handoff waits for.
func openRelatives(ctx context.Context, b *broker.Broker, s protocol.State) ([]Relative, error) {
	if s.Children == nil || s.Closed {
		return nil, nil
	}
	awaited := s.Children.Awaited
	if s.Aggregate != nil {
		awaited = s.Children.Made
	}
	ordinals := awaited.Without(s.Children.Closed).Numbers()
	var open []Relative
	for _, n := range ordinals[:min(len(ordinals), relativesRead)] {
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

// aheadOf asks the index for the number of handoffs before this one in its agent's queue. It
// returns false if the answer is missing or uncertain.
func aheadOf(ctx context.Context, ix ask.Answers, ticket string) (int64, bool) {
	ctx, cancel := context.WithTimeout(ctx, IndexPatience)
	defer cancel()
	answer, err := ix.Ahead(ctx, ask.AheadQuery{Question: ask.Question{WaitMS: IndexPatience.Milliseconds() / 2}, Ticket: ticket})
	return answer.Ahead, err == nil && answer.Complete && answer.Waiting
}
