package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// gapsReadMax is how many gaps of the ledger are read again. Further gaps are only reported.
const gapsReadMax = 100

// VerifyLedger verifies every append up to the end of the ledger at the call: the hash chain of
// every handoff, that each begins with a submission, that the events result in the states, that no
// sequence is missing, and that every package and result in the object store has its digest.
// progress receives the position now and then; it may be nil.
func VerifyLedger(ctx context.Context, ledger Ledger, progress func(seq, last uint64), checks ...Check) (Report, error) {
	var report Report
	span, err := ledger.LedgerInfo(ctx)
	parts := span.Partitions()
	if err != nil || !slices.ContainsFunc(parts, func(p broker.LedgerInfo) bool { return p.First <= p.Last }) {
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
	c.mustHaveStart = func(submitted uint64) bool {
		p := broker.PartitionOf(submitted)
		return submitted == 0 || p < len(parts) && submitted >= parts[p].First
	}
	var gaps []broker.Range // that reading the ledger skipped
	var done broker.Cursor
	reportProgress, last := throttle(progress), span.End().Count()
	err = ledger.Entries(ctx, nil, func(e broker.Entry) error {
		p := broker.PartitionOf(e.Seq)
		if p >= len(parts) { // it was added meanwhile
			return nil
		}
		next := done.Next(p)
		if next == 0 { // the ledger may have dropped more since
			next = parts[p].First
			if e.Seq > next {
				if now, err := ledger.LedgerInfo(ctx); err == nil && now.Partitions()[p].First == e.Seq {
					next, parts[p].First = e.Seq, e.Seq
				}
			}
		}
		if e.Seq > next {
			gaps = append(gaps, broker.Range{From: next, To: e.Seq - 1})
		}
		done.Pass(e.Seq)
		reportProgress(last-span.Behind(done), last)
		return c.verify(e, e.Seq, Problem{})
	})
	if err != nil {
		return report, err
	}
	for p, part := range parts {
		if next := done.Next(p); next <= part.Last && part.First <= part.Last { // Entries skipped the end
			gaps = append(gaps, broker.Range{From: max(next, part.First), To: part.Last})
		}
		first := broker.PartitionBase(p) + 1
		switch {
		case part.First <= first || part.Last < part.First:
		case !part.MayHaveDropped(time.Now()):
			report.addProblem(Problem{Kind: KindMissing, Seq: first, Message: fmt.Sprintf("the ledger begins at entry %d, and is too young to have dropped earlier entries for their age", part.First)})
		default:
			report.addNote("the ledger begins at entry %d: earlier entries were dropped for their age", part.First)
		}
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
func (c *chainVerifier) reportGap(ctx context.Context, ledger Ledger, g broker.Range, read bool) error {
	missing := func(from, to uint64) {
		message := fmt.Sprintf("the entries %d to %d are not in the ledger", from, to)
		if from == to {
			message = fmt.Sprintf("entry %d is not in the ledger", from)
		}
		c.report.addProblem(Problem{Kind: KindMissing, Seq: from, Message: message})
	}
	for read && g.From <= g.To {
		span, err := ledger.LedgerInfo(ctx)
		if err != nil {
			return err
		}
		from := span.End()
		from[broker.PartitionOf(g.From)] = g.From
		err = ledger.Tail(ctx, from, func(e broker.Entry) error {
			if broker.PartitionOf(e.Seq) != broker.PartitionOf(g.From) {
				return nil
			}
			if e.Seq > g.From { // their loss was accepted
				missing(g.From, min(e.Seq-1, g.To))
			}
			if g.From = e.Seq; g.From > g.To {
				return errTailDone
			}
			if err := c.verify(e, e.Seq, Problem{}); err != nil {
				return err
			}
			if g.From = e.Seq + 1; g.From > g.To {
				return errTailDone
			}
			return nil
		})
		switch {
		case errors.Is(err, errTailDone):
			return nil
		case errors.Is(err, broker.ErrLedgerChanged): // nothing has that sequence
			missing(g.From, g.To)
			return nil
		case err != nil:
			return err
		}
	}
	missing(g.From, g.To)
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
