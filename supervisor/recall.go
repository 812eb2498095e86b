package supervisor

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/broker"
)

const (
	// recallMost is how many handoffs that are not done with a pass keeps in mind for
	// the next one.
	recallMost = 10_000
	// wholeEvery is for how many intervals between passes that will do. What it does
	// not see is what a closed handoff comes to owe later: a return to a source that
	// was no agent yet.
	wholeEvery = 12
)

// recall is what a pass leaves for the next one. What is closed and owes nothing stays
// so: the next pass need only read what was not done with, and what has been appended
// since. Reading the heads of all handoffs instead has a server fetch nearly all of its
// ledger from the disk.
type recall struct {
	open  map[string]struct{} // tickets that were not done with
	end   uint64              // the last sequence that was read
	whole time.Time           // when all heads were read
}

// errRecall says that there is more to keep in mind than a pass may.
var errRecall = errors.New("too many open handoffs to keep in mind")

// wholePass reads the heads of all handoffs.
func (s *Supervisor) wholePass(ctx context.Context, see func(broker.Head)) error {
	next := &recall{open: map[string]struct{}{}, whole: time.Now()}
	err := s.readHeads(ctx, func(h broker.Head) {
		see(h)
		next.keep(ctx, s, h)
		next.end = max(next.end, h.Seq)
	})
	if s.recall = nil; err == nil && len(next.open) <= s.cfg.recall {
		s.recall = next
	}
	return err
}

// keep keeps a handoff in mind that is not done with, up to one more than may be.
func (r *recall) keep(ctx context.Context, s *Supervisor, h broker.Head) {
	if len(r.open) <= s.cfg.recall && (!h.State.Closed || s.owes(ctx, h.State)) {
		r.open[h.Ticket] = struct{}{}
	}
}

// narrowPass reads what the pass before was not done with, and what has been appended
// since. Of handoffs that are done with it sees those that were closed since.
func (s *Supervisor) narrowPass(ctx context.Context, last *recall, see func(broker.Head)) error {
	s.recall = nil
	open, end := last.open, last.end
	err := s.b.Entries(ctx, end+1, func(e broker.Entry) error {
		end = e.Seq
		head, ok := s.headOf(e)
		switch {
		case !ok:
			delete(open, e.Ticket)
		case head.State.Closed && !s.owes(ctx, head.State):
			delete(open, e.Ticket)
			see(head)
		default:
			if open[e.Ticket] = struct{}{}; len(open) > s.cfg.recall {
				return errRecall
			}
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
	next := &recall{open: map[string]struct{}{}, end: end, whole: last.whole}
	for _, ticket := range heads {
		head, err := s.b.Head(ctx, ticket, 0)
		if errors.Is(err, broker.ErrNotFound) || broker.Unreadable(err) { // since the entries were read
			continue
		}
		if err != nil {
			return err
		}
		see(head)
		next.keep(ctx, s, head)
	}
	if len(next.open) <= s.cfg.recall && ctx.Err() == nil {
		s.recall = next
	}
	return ctx.Err()
}

// read is a pass over the heads, of all handoffs or of those that matter. A narrow one
// that finds too much is followed by a whole one at once; one that breaks off in any
// other way leaves nothing, and the next is whole.
func (s *Supervisor) read(ctx context.Context, whole bool, see func(broker.Head)) error {
	last := s.recall
	if whole || last == nil || time.Since(last.whole) > wholeEvery*s.cfg.PassEvery {
		return s.wholePass(ctx, see)
	}
	err := s.narrowPass(ctx, last, see)
	if errors.Is(err, errRecall) {
		return s.wholePass(ctx, see)
	}
	return err
}
