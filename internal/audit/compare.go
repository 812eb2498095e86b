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
	next, stop := iter.Pull2(entries(ctx, ledger, span.First))
	defer stop()
	v.ledger = &comparison{first: span.First, next: next}
	return v.verify()
}

// comparison reads the ledger in parallel to a directory.
type comparison struct {
	first uint64 // the ledger dropped earlier entries for their age
	next  func() (broker.Entry, error, bool)
	entry broker.Entry // the one that next returned last
}

// errStopped ends Entries.
var errStopped = errors.New("stopped")

// entries are the entries of a ledger. An error is the last element.
func entries(ctx context.Context, ledger Ledger, from uint64) iter.Seq2[broker.Entry, error] {
	return func(yield func(broker.Entry, error) bool) {
		err := ledger.Entries(ctx, from, func(e broker.Entry) error {
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
	c := v.ledger
	if c == nil || e.Seq < c.first || e.Ticket == "" {
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
