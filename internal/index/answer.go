package index

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
)

// ledgerEndTimeout bounds reading the end of the ledger for an answer that does not wait.
const ledgerEndTimeout = 500 * time.Millisecond

// waitDefault is a variable so that tests may wait longer, on a busy machine.
var waitDefault = 2 * time.Second

const waitMax = 60 * time.Second

// waitTime is how long the answer to a question may wait; negative is not at all.
func waitTime(q ask.Question) (time.Duration, error) {
	switch {
	case q.WaitMS == 0:
		return waitDefault, nil
	case q.WaitMS > waitMax.Milliseconds():
		return 0, protocol.Errorf(protocol.CodeInvalid, "wait_ms", "must be at most %d, not %d", waitMax.Milliseconds(), q.WaitMS)
	case q.WaitMS < 0:
		return -1, nil
	}
	return time.Duration(q.WaitMS) * time.Millisecond, nil
}

// answer runs a lookup once the index has all entries that the ledger had when the question came,
// or the wait is over. If the file is damaged, answer drops the result and runs the lookup again
// on the next file. A lookup returns the position up to which its result is right.
func (ix *Index) answer(ctx context.Context, q ask.Question, lookup func(context.Context, *store) (ledgerPosition, error)) (ask.Position, error) {
	wait, err := waitTime(q)
	if err != nil {
		return ask.Position{}, err
	}
	waiting, cancel := context.WithTimeout(ctx, max(wait, 0))
	defer cancel()
	end, endKnown := ix.ledgerEnd(ctx, waiting, wait < 0)
	for {
		st, err := ix.await(ctx, waiting, end)
		if err != nil {
			return ask.Position{}, err
		}
		// The files are checked before and after: another program may change them meanwhile.
		var m ledgerPosition
		if err = st.checkFiles(false); err == nil {
			m, err = lookup(ctx, st)
		}
		if err == nil {
			err = st.checkFiles(false)
		}
		if err == nil {
			m.ledger = st.currentPosition().ledger
			st.release()
			return positionOf(m, end, endKnown), nil
		}
		st.release()
		if !isDamage(err) || ctx.Err() != nil {
			return ask.Position{}, cmp.Or(ctx.Err(), err)
		}
		if waiting.Err() != nil {
			return ask.Position{}, fmt.Errorf("%w (%w)", ask.ErrRebuilding, err)
		}
		// Run checks the files periodically; this makes it check now.
		ix.reportDamage(st, err)
	}
}

// ledgerEnd reads the end of the ledger from the engine. It waits for Run.
func (ix *Index) ledgerEnd(ctx, waiting context.Context, brief bool) (broker.LedgerInfo, bool) {
	if brief {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(ctx, ledgerEndTimeout)
		defer cancel()
	}
	for {
		ix.mu.Lock()
		src, changed := ix.src, ix.changed
		ix.mu.Unlock()
		if src != nil {
			ledger, err := src.LedgerInfo(waiting)
			return ledger, err == nil
		}
		select {
		case <-changed:
		case <-waiting.Done():
			return broker.LedgerInfo{}, false
		}
	}
}

// await waits until the index has all entries up to end, or the time is over, and returns the
// store of that moment.
func (ix *Index) await(ctx, waiting context.Context, end broker.LedgerInfo) (*store, error) {
	for {
		st, changed := ix.current()
		if err := ix.unavailable(); st == nil && !errors.Is(err, ask.ErrRebuilding) {
			return nil, err
		}
		if st != nil {
			m := st.currentPosition()
			if end.Behind(m.next) == 0 && (end.Created.IsZero() || m.ledger.Equal(end.Created)) || waiting.Err() != nil {
				return st, nil
			}
			st.release()
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-waiting.Done():
			if st != nil {
				continue
			}
			return nil, ix.unavailable()
		}
	}
}

// unavailable returns the reason for a missing store.
func (ix *Index) unavailable() error {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if ix.ended != nil {
		return ix.ended
	}
	return ask.ErrRebuilding
}

// reportDamage reports a damaged file to Run, and waits a moment for its replacement.
func (ix *Index) reportDamage(st *store, err error) {
	select {
	case st.suspected <- err:
	default:
	}
	ix.mu.Lock()
	same, changed := ix.store == st, ix.changed
	ix.mu.Unlock()
	if same {
		select {
		case <-changed:
		case <-time.After(checkEvery):
		}
	}
}

// positionOf compares an answer that is right up to m with the end of the ledger.
func positionOf(m ledgerPosition, end broker.LedgerInfo, endKnown bool) ask.Position {
	s := ask.Position{Seq: m.next.Count()}
	if len(m.next) > 1 {
		s.Place = m.next.String()
	}
	if !endKnown {
		return s
	}
	if !m.ledger.Equal(end.Created) { // another ledger, or none yet
		s.Behind = end.Behind(nil)
		return s
	}
	s.Behind = end.Behind(m.next)
	if s.Complete = s.Behind == 0; !s.Complete && !m.at.IsZero() {
		s.BehindMS = max(0, time.Since(m.at).Milliseconds())
	}
	return s
}

// answerPointer is a pointer to an answer, which has a position.
type answerPointer[A any] interface {
	*A
	SetPosition(ask.Position)
}

// read answers a question from a snapshot of the file. fill may be called more than once, each
// time with an empty answer.
func read[A any, P answerPointer[A]](ctx context.Context, ix *Index, q ask.Question, fill func(view, *A) error) (A, error) {
	var a, none A
	position, err := ix.answer(ctx, q, func(ctx context.Context, st *store) (ledgerPosition, error) {
		a = none
		return st.snapshot(ctx, func(v view) error { return fill(v, &a) })
	})
	if err != nil {
		return none, err
	}
	P(&a).SetPosition(position)
	return a, nil
}

// Position returns how far the index has read the ledger.
func (ix *Index) Position(ctx context.Context, q ask.PositionQuery) (ask.PositionAnswer, error) {
	var a ask.PositionAnswer
	position, err := ix.answer(ctx, q.Question, func(ctx context.Context, st *store) (ledgerPosition, error) {
		st.files.Lock()
		a.FileBytes, a.Filling = st.sizes[0]+st.sizes[1], !st.indexed.Load()
		st.files.Unlock()
		return st.snapshot(ctx, func(v view) error {
			return v.tx.QueryRowContext(ctx, "SELECT count(*) FROM handoff").Scan(&a.Handoffs)
		})
	})
	if errors.Is(err, ask.ErrRebuilding) {
		err = nil // the position is zero then
	}
	if err != nil {
		return ask.PositionAnswer{}, err
	}
	ix.mu.Lock()
	defer ix.mu.Unlock()
	a.Position, a.Since, a.Rebuilds = position, ix.opened.UTC(), ix.rebuilds
	return a, nil
}
