package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/agenthandoff/handoff/broker"
)

// VerifyAgainst compares an archive with the ledger that it was made of: each
// append that both have must be the same, and none that the archive has may be
// missing in the ledger but for its age. It finds what was written anew in one of
// the two together with everything behind it, which no check of one copy can.
// Whether the archive is whole is for VerifyFiles.
func VerifyAgainst(ctx context.Context, dir string, ledger Ledger, progress func(seq, last uint64)) (Report, error) {
	files, isDir, err := pathsOf(dir)
	if err == nil && !isDir {
		err = fmt.Errorf("%s is a file: only the directory of an archive is compared with the ledger", dir)
	}
	if err != nil {
		return Report{}, err
	}
	c := &comparison{kept: &keptReader{files: files}}
	defer c.kept.close()
	err = c.run(ctx, ledger, newTicker(progress))
	if errors.Is(err, io.EOF) { // of the archive
		err = nil
	}
	return c.report, err
}

// comparison walks an archive and the ledger side by side.
type comparison struct {
	report Report
	kept   *keptReader
	next   keptAppend // that was not compared yet
}

// run ends with io.EOF when all of the archive was compared.
func (c *comparison) run(ctx context.Context, ledger Ledger, tick func(at, last uint64)) (err error) {
	if c.next, err = c.kept.next(); err != nil {
		return err
	}
	for {
		span, err := ledger.LedgerInfo(ctx)
		if err != nil {
			return err
		}
		for c.next.Seq < span.First { // dropped for its age
			if c.next, err = c.kept.next(); err != nil {
				return err
			}
		}
		if c.next.Seq > span.Last { // an archive is never ahead of its ledger
			if err := c.missing(^uint64(0)); err != nil {
				return err
			}
		}
		err = ledger.Entries(ctx, c.next.Seq, func(e broker.Entry) error {
			tick(e.Seq, span.Last)
			return c.entry(e)
		})
		if err != nil {
			return err
		}
		if err := c.missing(span.Last + 1); err != nil {
			return err
		}
	}
}

// missing reports what the archive has before a sequence, and the ledger has not.
func (c *comparison) missing(before uint64) (err error) {
	for c.next.Seq < before {
		c.found(KindMissing, "is in the archive and not in the ledger")
		if c.next, err = c.kept.next(); err != nil {
			return err
		}
	}
	return nil
}

func (c *comparison) found(kind Kind, words string) {
	c.report.problem(Problem{Kind: kind, File: c.next.file, Line: c.next.line, Seq: c.next.Seq, Ticket: c.next.HandoffID, Words: words})
}

// entry compares an entry of the ledger.
func (c *comparison) entry(e broker.Entry) (err error) {
	if err := c.missing(e.Seq); err != nil || c.next.Seq > e.Seq { // a hole in the archive
		return err
	}
	r := &c.report
	if r.Entries++; r.FirstSeq == 0 {
		r.FirstSeq = e.Seq
	}
	r.LastSeq = e.Seq
	if hash := broker.HashOf(e.Body); hash != c.next.Hash || e.Ticket != c.next.HandoffID {
		c.found(KindHash, fmt.Sprintf("is not the append that the ledger has: its hash is %s, there it is %s", shown(c.next.Hash), shown(hash)))
	}
	c.next, err = c.kept.next()
	return err
}

// keptAppend is an append as an archive names it.
type keptAppend struct {
	HandoffID string `json:"handoff_id"`
	Seq       uint64 `json:"seq"`
	Hash      string `json:"hash"`
	file      string
	line      int
}

// keptReader reads the appends of an archive one after the other.
type keptReader struct {
	files []string
	open  *os.File
	lines *lineReader
}

func (r *keptReader) close() {
	if r.open != nil {
		_ = r.open.Close()
		r.open = nil
	}
}

// next is the next append that is a handoff's; io.EOF at the end, which may be cut.
func (r *keptReader) next() (keptAppend, error) {
	for {
		if r.open == nil {
			if len(r.files) == 0 {
				return keptAppend{}, io.EOF
			}
			f, err := os.Open(r.files[0])
			if err != nil {
				return keptAppend{}, err
			}
			r.open, r.lines, r.files = f, newLineReader(f), r.files[1:]
		}
		text, _, err := r.lines.next()
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, errCut):
			r.close()
			continue
		case err != nil:
			return keptAppend{}, fmt.Errorf("read %s: %w", r.open.Name(), err)
		case !bytes.Contains(text, entryMark):
			continue
		}
		k := keptAppend{file: r.open.Name(), line: r.lines.n}
		if err := json.Unmarshal(text, &k); err != nil {
			return keptAppend{}, fmt.Errorf("%s, line %d: %w", k.file, k.line, err)
		}
		if k.HandoffID != "" {
			return k, nil
		}
	}
}
