package dossier

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/protocol"
)

// Child is a handoff that another one has handed off: a part of the work, a member of a group, or
// what its chain goes on with.
type Child struct {
	Ticket string
	N      int // its number, from 1
	Parent protocol.State
}

// ChildrenOf returns the children that a state names, submitted or promised. Returns and redrives
// are none.
func ChildrenOf(s protocol.State) []Child {
	var all []Child
	for _, below := range relatives(s) {
		if below.Relation != Return && below.Relation != Redrive {
			all = append(all, Child{Ticket: below.Ticket, N: below.N, Parent: s})
		}
	}
	return all
}

// promisedMax is how long after the end of its parent a promised handoff is still waited for.
const promisedMax = time.Hour

// Gone tells whether a child that is not in the ledger was dropped there. Any other one is about to
// be submitted.
func (c Child) Gone(now time.Time) bool {
	p := c.Parent
	return p.Children != nil && p.Children.Closed.Has(c.N-1) || p.Closed && now.Sub(p.ClosedAt) > promisedMax
}

// OpenBelow returns the open handoffs among a handoff and everything that follows from it.
func OpenBelow(ctx context.Context, r ChainReader, ticket string) ([]Reference, error) {
	root, err := r.Status(ctx, ticket)
	if err != nil {
		return nil, err
	}
	var open []Reference
	if !root.Closed {
		open = append(open, referenceTo(ticket, root))
	}
	for level := ChildrenOf(root); len(level) > 0; {
		states := make([]protocol.State, len(level))
		group, reading := errgroup.WithContext(ctx)
		group.SetLimit(ReadsAtOnce)
		for i, child := range level {
			group.Go(func() (err error) {
				states[i], err = readState(reading, r, child.Ticket)
				return err
			})
		}
		if err := group.Wait(); err != nil {
			return nil, err
		}
		var next []Child
		for i, child := range level {
			s := states[i]
			if !s.Closed && (s.Phase != "" || !child.Gone(time.Now())) {
				open = append(open, referenceTo(child.Ticket, s))
			}
			next = append(next, ChildrenOf(s)...)
		}
		level = next
	}
	return open, nil
}
