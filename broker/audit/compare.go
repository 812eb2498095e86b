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

// VerifyAgainst compares an archive with its ledger: every append that both have must be equal,
// and the ledger may lack an append of the archive only for its age. So it finds appends that were
// rewritten in one of the two together with everything that follows, which no check of a single
// copy can. VerifyFiles checks that the archive is complete.
func VerifyAgainst(ctx context.Context, dir string, ledger Ledger, progress func(seq, last uint64)) (Report, error) {
	files, isDir, err := filesOf(dir)
	if err == nil && !isDir {
		err = fmt.Errorf("%s is a file: only the directory of an archive is compared with the ledger", dir)
	}
	if err != nil {
		return Report{}, err
	}
	c := &comparison{archived: &archiveReader{files: files}}
	defer c.archived.close()
	err = c.run(ctx, ledger, throttle(progress))
	if errors.Is(err, io.EOF) { // of the archive
		err = nil
	}
	return c.report, err
}

// comparison reads an archive and the ledger in parallel.
type comparison struct {
	report   Report
	archived *archiveReader
	next     archivedAppend // the next append to compare
}

// run returns io.EOF when the whole archive has been compared.
func (c *comparison) run(ctx context.Context, ledger Ledger, progress func(at, last uint64)) (err error) {
	if c.next, err = c.archived.next(); err != nil {
		return err
	}
	for {
		span, err := ledger.LedgerInfo(ctx)
		if err != nil {
			return err
		}
		for c.next.Seq < span.First { // dropped for its age
			if c.next, err = c.archived.next(); err != nil {
				return err
			}
		}
		if c.next.Seq > span.Last { // an archive is never ahead of its ledger
			if err := c.reportMissing(^uint64(0)); err != nil {
				return err
			}
		}
		err = ledger.Entries(ctx, c.next.Seq, func(e broker.Entry) error {
			progress(e.Seq, span.Last)
			return c.compareEntry(e)
		})
		if err != nil {
			return err
		}
		if err := c.reportMissing(span.Last + 1); err != nil {
			return err
		}
	}
}

// reportMissing reports the appends of the archive before a sequence: the ledger lacks them.
func (c *comparison) reportMissing(before uint64) (err error) {
	for c.next.Seq < before {
		c.addProblem(KindMissing, "is in the archive and not in the ledger")
		if c.next, err = c.archived.next(); err != nil {
			return err
		}
	}
	return nil
}

func (c *comparison) addProblem(kind Kind, message string) {
	c.report.addProblem(Problem{Kind: kind, File: c.next.file, Line: c.next.line, Seq: c.next.Seq, Ticket: c.next.HandoffID, Message: message})
}

// compareEntry compares an entry of the ledger with the archive.
func (c *comparison) compareEntry(e broker.Entry) (err error) {
	if err := c.reportMissing(e.Seq); err != nil || c.next.Seq > e.Seq { // a hole in the archive
		return err
	}
	r := &c.report
	if r.Entries++; r.FirstSeq == 0 {
		r.FirstSeq = e.Seq
	}
	r.LastSeq = e.Seq
	if hash := broker.HashOf(e.Body); hash != c.next.Hash || e.Ticket != c.next.HandoffID {
		c.addProblem(KindHash, fmt.Sprintf("differs from the ledger: its hash is %s, the ledger has %s", shortHash(c.next.Hash), shortHash(hash)))
	}
	c.next, err = c.archived.next()
	return err
}

// archivedAppend identifies an append in an archive.
type archivedAppend struct {
	HandoffID string `json:"handoff_id"`
	Seq       uint64 `json:"seq"`
	Hash      string `json:"hash"`
	file      string
	line      int
}

// archiveReader reads the appends of an archive in order.
type archiveReader struct {
	files []string
	open  *os.File
	lines *lineReader
}

func (r *archiveReader) close() {
	if r.open != nil {
		_ = r.open.Close()
		r.open = nil
	}
}

// next is the next append of a handoff; io.EOF at the end, which may be truncated.
func (r *archiveReader) next() (archivedAppend, error) {
	for {
		if r.open == nil {
			if len(r.files) == 0 {
				return archivedAppend{}, io.EOF
			}
			f, err := os.Open(r.files[0])
			if err != nil {
				return archivedAppend{}, err
			}
			r.open, r.lines, r.files = f, newLineReader(f), r.files[1:]
		}
		text, _, err := r.lines.next()
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, errTruncated):
			r.close()
			continue
		case err != nil:
			return archivedAppend{}, fmt.Errorf("read %s: %w", r.open.Name(), err)
		case !bytes.Contains(text, entryMarker):
			continue
		}
		k := archivedAppend{file: r.open.Name(), line: r.lines.n}
		if err := json.Unmarshal(text, &k); err != nil {
			return archivedAppend{}, fmt.Errorf("%s, line %d: %w", k.file, k.line, err)
		}
		if k.HandoffID != "" {
			return k, nil
		}
	}
}
