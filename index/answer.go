package index

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agenthandoff/handoff/broker"
)

// askBriefly bounds how long an answer that does not wait asks the engine how
// far its ledger goes.
const askBriefly = 500 * time.Millisecond

// answer runs a lookup on what the index has, once that is what the ledger had
// when the question came, or the wait is over. Where the file turns out to be
// damaged the result is thrown away, and the lookup is run again on the next one.
// A lookup may be run more than once, and says up to where what it found is right.
func (ix *Index) answer(ctx context.Context, ask Ask, lookup func(context.Context, *store) (mark, error)) (Stand, error) {
	wait, err := ask.wait()
	if err != nil {
		return Stand{}, err
	}
	waiting, cancel := context.WithTimeout(ctx, max(wait, 0))
	defer cancel()
	end, endKnown := ix.ledgerEnd(ctx, waiting, wait < 0)
	for {
		st, err := ix.await(ctx, waiting, end)
		if err != nil {
			return Stand{}, err
		}
		m, err := look(ctx, st, lookup)
		if err == nil {
			m.ledger = st.where().ledger
			st.release()
			return standOf(m, end, endKnown), nil
		}
		st.release()
		if !isDamage(err) || ctx.Err() != nil {
			return Stand{}, errorOf(ctx, err)
		}
		if waiting.Err() != nil {
			return Stand{}, fmt.Errorf("%w (%w)", ErrRebuilding, err)
		}
		// Run looks at the files by itself; this only makes it soon.
		ix.suspect(st, err)
	}
}

func errorOf(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// ledgerEnd asks the engine how far its ledger goes now; before Run it waits.
func (ix *Index) ledgerEnd(ctx, waiting context.Context, brief bool) (broker.Ledger, bool) {
	if brief {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(ctx, askBriefly)
		defer cancel()
	}
	for {
		ix.mu.Lock()
		src, changed := ix.src, ix.changed
		ix.mu.Unlock()
		if src != nil {
			ledger, err := src.Ledger(waiting)
			return ledger, err == nil
		}
		select {
		case <-changed:
		case <-waiting.Done():
			return broker.Ledger{}, false
		}
	}
}

// await waits until the index has what the ledger had, or the time is over, and
// returns what is there then.
func (ix *Index) await(ctx, waiting context.Context, end broker.Ledger) (*store, error) {
	for {
		st, changed := ix.current()
		if err := ix.absent(); st == nil && !errors.Is(err, ErrRebuilding) {
			return nil, err
		}
		if st != nil {
			m := st.where()
			if m.seq >= end.Last && (end.Created.IsZero() || m.ledger.Equal(end.Created)) || waiting.Err() != nil {
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
			return nil, ix.absent()
		}
	}
}

// absent is why there is no store.
func (ix *Index) absent() error {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if ix.ended != nil {
		return ix.ended
	}
	return ErrRebuilding
}

// look runs a lookup between two looks at the files: an answer from files that
// somebody has changed is none.
func look(ctx context.Context, st *store, lookup func(context.Context, *store) (mark, error)) (mark, error) {
	if err := st.untouched(); err != nil {
		return mark{}, err
	}
	m, err := lookup(ctx, st)
	if err != nil {
		return mark{}, err
	}
	return m, st.untouched()
}

// suspect tells Run that a reader has found the file damaged, and waits until
// it was replaced, or a moment.
func (ix *Index) suspect(st *store, err error) {
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

// standOf says how an answer that is right up to m compares with the ledger's end.
func standOf(m mark, end broker.Ledger, endKnown bool) Stand {
	s := Stand{Seq: m.seq}
	if !endKnown {
		return s
	}
	if !m.ledger.Equal(end.Created) { // of another ledger, or of none yet
		s.Behind = end.Last
		return s
	}
	s.Complete = m.seq >= end.Last
	if !s.Complete {
		s.Behind = end.Last - m.seq
		if !m.at.IsZero() {
			s.BehindMS = max(0, time.Since(m.at).Milliseconds())
		}
	}
	return s
}

// reading is an answer's lookup in a snapshot of the file.
func reading(fn func(view) error) func(context.Context, *store) (mark, error) {
	return func(ctx context.Context, st *store) (mark, error) {
		return st.snapshot(ctx, fn)
	}
}

// Stand says how far the index is.
func (ix *Index) Stand(ctx context.Context, q StandQuery) (StandAnswer, error) {
	var a StandAnswer
	stand, err := ix.answer(ctx, q.Ask, func(_ context.Context, st *store) (mark, error) {
		m := st.where()
		st.files.Lock()
		defer st.files.Unlock()
		a.Handoffs, a.FileBytes, a.Filling = m.count, st.sizes[0]+st.sizes[1], !st.indexed.Load()
		return m, nil
	})
	if errors.Is(err, ErrRebuilding) {
		err = nil // that is how far it is
	}
	if err != nil {
		return StandAnswer{}, err
	}
	ix.mu.Lock()
	defer ix.mu.Unlock()
	a.Stand, a.Since, a.Rebuilds = stand, ix.opened.UTC(), ix.rebuilds
	return a, nil
}
