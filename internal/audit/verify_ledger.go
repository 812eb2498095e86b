package audit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// gapsReadMax is how many gaps of the ledger are read again. Further gaps are only reported.
const gapsReadMax = 100

// gap is a range of sequences that reading the ledger skipped.
type gap struct{ from, to uint64 }

// VerifyLedger verifies every append up to the end of the ledger at the call: the hash chain of
// every handoff, that each begins with a submission, that the events result in the states, that no
// sequence is missing, and that every package and result in the object store has its digest.
// progress receives the position now and then; it may be nil.
func VerifyLedger(ctx context.Context, ledger Ledger, progress func(seq, last uint64), checks ...Check) (Report, error) {
	var report Report
	span, err := ledger.LedgerInfo(ctx)
	if err != nil || span.Last < span.First {
		return report, err
	}
	c := newChainVerifier(&report, checks...)
	c.reread = func(ticket string, location uint64) (broker.Entry, error) {
		e, err := ledger.Next(ctx, ticket, location-1)
		if err == nil && e.Seq != location {
			err = fmt.Errorf("entry %d of %s is gone: %w", location, ticket, broker.ErrLedgerChanged)
		}
		return e, err
	}
	c.readBody = func(ref protocol.BlobRef) ([]byte, error) { return ledger.Blob(ctx, ref) }
	c.mustHaveStart = func(submitted uint64) bool { return submitted == 0 || submitted >= span.First }
	var gaps []gap
	next, reportProgress := uint64(0), throttle(progress)
	err = ledger.Entries(ctx, 0, func(e broker.Entry) error {
		if next == 0 { // the ledger may have dropped more since
			next = max(span.First, 1)
			if e.Seq > next {
				if now, err := ledger.LedgerInfo(ctx); err == nil && now.First == e.Seq {
					next, span.First = e.Seq, e.Seq
				}
			}
		}
		if e.Seq > next {
			gaps = append(gaps, gap{next, e.Seq - 1})
		}
		next = e.Seq + 1
		reportProgress(e.Seq, span.Last)
		return c.verify(e, e.Seq, Problem{})
	})
	if err != nil {
		return report, err
	}
	if next <= span.Last { // Entries skipped the end
		gaps = append(gaps, gap{max(next, span.First), span.Last})
	}
	switch {
	case span.First <= 1:
	case !span.MayHaveDropped(time.Now()):
		report.addProblem(Problem{Kind: KindMissing, Seq: 1, Message: fmt.Sprintf("the ledger begins at entry %d, and is too young to have dropped earlier entries for their age", span.First)})
	default:
		report.addNote("the ledger begins at entry %d: earlier entries were dropped for their age", span.First)
	}
	for i, g := range gaps {
		if err := c.reportGap(ctx, ledger, g, i < gapsReadMax); err != nil {
			return report, err
		}
	}
	return report, nil
}

// reportGap verifies the entries in a gap, which belong to no handoff, and reports the sequences
// that the ledger lacks. It reads them only if read is true.
func (c *chainVerifier) reportGap(ctx context.Context, ledger Ledger, g gap, read bool) error {
	missing := func(from, to uint64) {
		message := fmt.Sprintf("the entries %d to %d are not in the ledger", from, to)
		if from == to {
			message = fmt.Sprintf("entry %d is not in the ledger", from)
		}
		c.report.addProblem(Problem{Kind: KindMissing, Seq: from, Message: message})
	}
	for read && g.from <= g.to {
		err := ledger.Tail(ctx, g.from, func(e broker.Entry) error {
			if e.Seq > g.from { // their loss was accepted
				missing(g.from, min(e.Seq-1, g.to))
			}
			if g.from = e.Seq; g.from > g.to {
				return errTailDone
			}
			if err := c.verify(e, e.Seq, Problem{}); err != nil {
				return err
			}
			if g.from = e.Seq + 1; g.from > g.to {
				return errTailDone
			}
			return nil
		})
		switch {
		case errors.Is(err, errTailDone):
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

// progressInterval is how often progress is called at most.
const progressInterval = 2 * time.Second

// throttle returns a progress function that is called no more often than progressInterval.
func throttle(progress func(at, last uint64)) func(at, last uint64) {
	if progress == nil {
		return func(uint64, uint64) {}
	}
	lastCall, calls := time.Now(), 0
	return func(at, last uint64) {
		if calls++; calls%256 == 0 && time.Since(lastCall) > progressInterval {
			progress(at, last)
			lastCall = time.Now()
		}
	}
}
