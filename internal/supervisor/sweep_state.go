package supervisor

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/broker"
)

const (
	// unfinishedMax is how many unfinished handoffs a sweep remembers for the next one.
	unfinishedMax = 10_000
	// fullSweepIntervals is after how many intervals a sweep is full again. What an incremental one does not see
	// is what a closed handoff comes to owe later: a return to a source that was no agent yet.
	fullSweepIntervals = 12
)

// sweepState is what a sweep leaves for the next one. A handoff that is closed and has no duties stays so:
// the next sweep need only read the unfinished ones, and the entries since. To read the heads of all
// handoffs instead has a server fetch nearly all of its ledger from the disk.
type sweepState struct {
	open   map[string]uint64 // those that were not done with: the last sequence of each, by ticket
	end    uint64            // the last sequence that was read
	fullAt time.Time         // when all heads were read
}

// errTooManyOpen: there are more unfinished handoffs than a sweep may remember.
var errTooManyOpen = errors.New("too many open handoffs to keep in mind")

// sweepFull reads the heads of all handoffs.
func (s *Supervisor) sweepFull(ctx context.Context, see func(broker.Head)) error {
	next := &sweepState{open: map[string]uint64{}, fullAt: time.Now()}
	err := s.readHeads(ctx, func(h broker.Head) {
		see(h)
		next.addUnfinished(ctx, s, h)
		next.end = max(next.end, h.Seq)
	})
	if err == nil {
		s.sweptTo = next.end
	}
	if s.lastSweep = nil; err == nil && len(next.open) <= s.cfg.unfinishedMax {
		s.lastSweep = next
	}
	return err
}

// addUnfinished keeps a handoff in mind that is not done with, up to one more than may be.
func (r *sweepState) addUnfinished(ctx context.Context, s *Supervisor, h broker.Head) {
	if len(r.open) <= s.cfg.unfinishedMax && (!h.State.Closed || s.hasPendingDuties(ctx, h.State)) {
		r.open[h.Ticket] = h.Seq
	}
}

// closedWord is in each entry that closes a handoff. An entry without it is not worth decoding: the
// handoff's next one mostly closes it, and else its head is read. What is written otherwise, with a
// space in it, is read that way too.
var closedWord = []byte(`"closed":true`)

// sweepIncremental reads the unfinished handoffs of the sweep before, and the entries since. Of closed
// handoffs it visits those that were closed since.
func (s *Supervisor) sweepIncremental(ctx context.Context, last *sweepState, see func(broker.Head)) error {
	s.lastSweep = nil
	open, end := last.open, last.end
	err := s.engine.Entries(ctx, end+1, func(e broker.Entry) error {
		if end = e.Seq; bytes.Contains(e.Body, closedWord) {
			head, ok := s.headOf(e)
			if !ok {
				delete(open, e.Ticket)
				return ctx.Err()
			}
			if head.State.Closed && !s.hasPendingDuties(ctx, head.State) {
				delete(open, e.Ticket)
				see(head)
				return ctx.Err()
			}
		}
		if open[e.Ticket] = e.Seq; len(open) > s.cfg.unfinishedMax {
			return errTooManyOpen
		}
		return ctx.Err()
	})
	if err != nil {
		return err
	}
	heads := make([]string, 0, len(open))
	for ticket := range open {
		heads = append(heads, ticket)
	}
	slices.Sort(heads)
	next := &sweepState{open: map[string]uint64{}, end: end, fullAt: last.fullAt}
	for _, ticket := range heads {
		head, err := s.b.Head(ctx, ticket, 0)
		if errors.Is(err, broker.ErrNotFound) { // since the entries were read
			continue
		}
		if broker.Unreadable(err) {
			s.noteUnreadable(ticket, open[ticket], err)
			continue
		}
		if err != nil {
			return err
		}
		s.noteReadable(ticket, head.Seq)
		see(head)
		next.addUnfinished(ctx, s, head)
	}
	if ctx.Err() == nil {
		s.sweptTo = end
	}
	if len(next.open) <= s.cfg.unfinishedMax && ctx.Err() == nil {
		s.lastSweep = next
	}
	return ctx.Err()
}

// sweepHeads sweeps in full or incrementally. An incremental sweep that finds too much is followed by a full
// one at once; one that breaks off in any other way leaves no state, and the next is full.
func (s *Supervisor) sweepHeads(ctx context.Context, whole bool, see func(broker.Head)) error {
	last := s.lastSweep
	if whole || last == nil || time.Since(last.fullAt) > fullSweepIntervals*s.cfg.SweepInterval {
		return s.sweepFull(ctx, see)
	}
	err := s.sweepIncremental(ctx, last, see)
	if errors.Is(err, errTooManyOpen) {
		return s.sweepFull(ctx, see)
	}
	return err
}
