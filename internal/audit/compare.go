package audit

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/agenthandoff/handoff/broker"
)

// VerifyAgainst is VerifyFiles for a directory of ExportDir, and compares the directory with its
// ledger: every append that both have must be equal, and the ledger may lack an append of the
// directory only for its age. So it finds appends that were rewritten in one of the two together
// with everything that follows, which no check of a single copy can.
func VerifyAgainst(ctx context.Context, dir string, ledger Ledger, progress func(at, last uint64), checks ...Check) (Report, error) {
	v, err := newFileVerifier(dir, progress, checks)
	if err == nil && !v.isDir {
		err = fmt.Errorf("%s is a file: only a directory of exports is compared with the ledger", dir)
	}
	if err != nil {
		return Report{}, err
	}
	span, err := ledger.LedgerInfo(ctx) // after the files were listed, which end before it
	if err != nil {
		return Report{}, err
	}
	for p, part := range span.Partitions() {
		next, stop := iter.Pull2(entries(ctx, ledger, span, p))
		defer stop()
		v.ledger = append(v.ledger, &comparison{first: part.First, next: next})
	}
	return v.verify()
}

// comparison reads a partition of the ledger in parallel to a directory.
type comparison struct {
	first uint64 // the ledger dropped earlier entries for their age
	next  func() (broker.Entry, error, bool)
	entry broker.Entry // the one that next returned last
}

// errStopped ends Entries.
var errStopped = errors.New("stopped")

// entries are the entries of a partition. An error is the last element.
func entries(ctx context.Context, ledger Ledger, span broker.LedgerInfo, p int) iter.Seq2[broker.Entry, error] {
	from := span.End()
	from[p] = span.Partitions()[p].First
	return func(yield func(broker.Entry, error) bool) {
		err := ledger.Entries(ctx, from, func(e broker.Entry) error {
			if broker.PartitionOf(e.Seq) != p { // a newer entry of another one
				return nil
			}
			if !yield(e, nil) {
				return errStopped
			}
			return nil
		})
		if err != nil && !errors.Is(err, errStopped) {
			yield(broker.Entry{}, err)
		}
	}
}

// compareEntry compares an append with the ledger, if VerifyAgainst was called.
func (v *fileVerifier) compareEntry(e broker.Entry, at Problem) error {
	if v.ledger == nil || e.Ticket == "" {
		return nil
	}
	p := broker.PartitionOf(e.Seq)
	if p >= len(v.ledger) {
		v.addProblem(at, KindMissing, "is in the export, and the ledger has no partition of it")
		return nil
	}
	c := v.ledger[p]
	if e.Seq < c.first {
		return nil
	}
	for c.entry.Seq < e.Seq {
		entry, err, more := c.next()
		if err != nil {
			return err
		}
		if !more {
			break
		}
		c.entry = entry
	}
	have, want := broker.HashOf(e.Body), broker.HashOf(c.entry.Body)
	switch {
	case c.entry.Seq != e.Seq:
		v.addProblem(at, KindMissing, "is in the export and not in the ledger")
	case have != want || e.Ticket != c.entry.Ticket:
		v.addProblem(at, KindHash, "differs from the ledger: its hash is %s, the ledger has %s", shortHash(have), shortHash(want))
	}
	v.report.Compared++
	return nil
}
