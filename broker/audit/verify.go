package audit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// gapsKept is how many gaps of the ledger are looked into; the rest are only reported.
const gapsKept = 100

// gap are sequences that the reading of the ledger did not show.
type gap struct{ from, to uint64 }

// VerifyLedger checks every append of the ledger, up to its end when the call
// began: the chain of hashes of every handoff, that each begins with a
// submission, that the events lead to the states, that no sequence is missing, and
// that every package and result in the object store has its digest.
// progress is called now and then with how far it is; nil is welcome.
func VerifyLedger(ctx context.Context, ledger Ledger, progress func(seq, last uint64), checks ...Check) (Report, error) {
	var report Report
	span, err := ledger.LedgerInfo(ctx)
	if err != nil || span.Last < span.First {
		return report, err
	}
	c := newChains(&report, checks...)
	c.again = func(ticket string, place uint64) (broker.Entry, error) {
		e, err := ledger.Next(ctx, ticket, place-1)
		if err == nil && e.Seq != place {
			err = fmt.Errorf("entry %d of %s is gone: %w", place, ticket, broker.ErrLedgerChanged)
		}
		return e, err
	}
	c.body = func(ref protocol.BlobRef) ([]byte, error) { return ledger.Blob(ctx, ref) }
	c.begins = func(submitted uint64) bool { return submitted == 0 || submitted >= span.First }
	var gaps []gap
	next, tick := uint64(0), newTicker(progress)
	err = ledger.Entries(ctx, 0, func(e broker.Entry) error {
		if next == 0 { // what was dropped since we asked, too
			next = max(span.First, 1)
			if e.Seq > next && dropped(ctx, ledger, e.Seq) {
				next, span.First = e.Seq, e.Seq
			}
		}
		if e.Seq > next {
			gaps = append(gaps, gap{next, e.Seq - 1})
		}
		next = e.Seq + 1
		tick(e.Seq, span.Last)
		return c.add(e, e.Seq, Problem{})
	})
	if err != nil {
		return report, err
	}
	if next <= span.Last { // an end that Entries does not show
		gaps = append(gaps, gap{max(next, span.First), span.Last})
	}
	switch {
	case span.First <= 1:
	case !span.MayHaveDropped(time.Now()):
		report.problem(Problem{Kind: KindMissing, Seq: 1, Words: fmt.Sprintf("the ledger begins at entry %d, and is too young to have dropped what was before for its age", span.First)})
	default:
		report.note("the ledger begins at entry %d: what was before was dropped for its age", span.First)
	}
	for i, g := range gaps {
		if err := c.explain(ctx, ledger, g, i < gapsKept); err != nil {
			return report, err
		}
	}
	return report, nil
}

// dropped tells whether the ledger begins where an entry is by now.
func dropped(ctx context.Context, ledger Ledger, seq uint64) bool {
	span, err := ledger.LedgerInfo(ctx)
	return err == nil && span.First == seq
}

// explain reports a gap: what stands in it on no handoff's subject, and what
// does not stand there at all.
func (c *chains) explain(ctx context.Context, ledger Ledger, g gap, closely bool) error {
	missing := func(from, to uint64) {
		words := fmt.Sprintf("the entries %d to %d are not in the ledger", from, to)
		if from == to {
			words = fmt.Sprintf("entry %d is not in the ledger", from)
		}
		c.report.problem(Problem{Kind: KindMissing, Seq: from, Words: words})
	}
	enough := errors.New("seen all")
	for closely && g.from <= g.to {
		err := ledger.Tail(ctx, g.from, func(e broker.Entry) error {
			if err := c.add(e, e.Seq, Problem{}); err != nil {
				return err
			}
			if g.from = e.Seq + 1; g.from > g.to {
				return enough
			}
			return nil
		})
		switch {
		case errors.Is(err, enough):
			return nil
		case errors.Is(err, broker.ErrLedgerChanged): // nothing has that sequence
			missing(g.from, g.to)
			return nil
		case err != nil:
			return err
		}
	}
	missing(g.from, g.to)
	return nil
}

// progressEvery is how often a long reading says how far it is.
const progressEvery = 2 * time.Second

// newTicker calls progress no more often than progressEvery.
func newTicker(progress func(at, last uint64)) func(at, last uint64) {
	if progress == nil {
		return func(uint64, uint64) {}
	}
	said, calls := time.Now(), 0
	return func(at, last uint64) {
		if calls++; calls%256 == 0 && time.Since(said) > progressEvery {
			progress(at, last)
			said = time.Now()
		}
	}
}
