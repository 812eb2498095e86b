package audit

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/filelock"
	"github.com/agenthandoff/handoff/protocol"
)

// Export writes one export: the lines of handoffs in any order, and an end line.
type Export struct {
	to     io.Writer
	reader *Reader
	enc    encoder
	buf    bytes.Buffer
	bodies map[string]bool // the digests of bodies that were written
}

// NewExport returns an Export of a ledger that writes to a writer. The caller closes the writer.
func NewExport(to io.Writer, ledger Ledger) *Export {
	return &Export{to: to, reader: NewReader(ledger), bodies: map[string]bool{}}
}

// Add adds an append.
func (x *Export) Add(ctx context.Context, e broker.Entry) error {
	records, err := x.reader.Records(ctx, e)
	if err != nil {
		return err
	}
	return x.write(ctx, e, records)
}

// AddHandoff adds all appends of a handoff if choose accepts one of its records. It reports
// whether choose did.
func (x *Export) AddHandoff(ctx context.Context, ticket string, choose func(protocol.AuditRecord) bool) (chosen bool, err error) {
	type appended struct {
		entry   broker.Entry
		records []protocol.AuditRecord
	}
	var all []appended
	err = x.reader.Appends(ctx, ticket, func(e broker.Entry, records []protocol.AuditRecord) error {
		all = append(all, appended{e, records})
		chosen = chosen || slices.ContainsFunc(records, choose)
		return nil
	})
	if err != nil || !chosen {
		return false, err
	}
	for _, a := range all {
		if err := x.write(ctx, a.entry, a.records); err != nil {
			return false, err
		}
	}
	return true, nil
}

// write adds an append with its records, and the packages and results that it refers to.
func (x *Export) write(ctx context.Context, e broker.Entry, records []protocol.AuditRecord) error {
	if err := x.addBodies(ctx, e); err != nil {
		return err
	}
	if err := x.enc.addLines(&x.buf, linesOf(e, records)); err != nil {
		return err
	}
	return x.flush()
}

// addBodies adds the bodies that an append refers to, each once. VerifyFiles reports a body that
// the engine no longer has.
func (x *Export) addBodies(ctx context.Context, e broker.Entry) error {
	if !bytes.Contains(e.Body, []byte(`_blob":`)) { // most have none and need not be decoded
		return nil
	}
	change, err := broker.DecodeChange(e)
	if err != nil {
		return nil
	}
	for _, ref := range bodyRefs(change) {
		if x.bodies[ref.Digest] {
			continue
		}
		body, err := x.reader.ledger.Blob(ctx, ref)
		if isTransient(err) {
			return fmt.Errorf("body %s of entry %d: %w", ref.Digest, e.Seq, err)
		}
		if err != nil {
			continue
		}
		x.bodies[ref.Digest] = true
		if err := x.enc.addLine(&x.buf, bodyLine{bodyEventType, ref.Digest, newBytes(body), x.enc.prev}); err != nil {
			return err
		}
	}
	return nil
}

// bodyRefs are the references of a change to bodies in the object store.
func bodyRefs(c protocol.Change) []protocol.BlobRef {
	var refs []protocol.BlobRef
	for _, e := range c.Record.Events {
		if _, ref := protocol.BodyOf(e); ref != nil {
			refs = append(refs, *ref)
		}
	}
	return refs
}

// End completes the export with its end line.
func (x *Export) End() error { return x.endAt(nil) }

func (x *Export) endAt(next broker.Cursor) error {
	if err := x.enc.addEnd(&x.buf, next); err != nil {
		return err
	}
	return x.flush()
}

// Lines is the number of lines written.
func (x *Export) Lines() int { return x.enc.lines }

func (x *Export) flush() error {
	_, err := x.to.Write(x.buf.Bytes())
	x.buf.Reset()
	return err
}

const (
	// filePattern matches the files of a directory of exports. A name has the position of the first entry
	// among all entries (in a ledger of one partition, its sequence), so the names sort like the files.
	filePattern    = "audit-*.jsonl"
	fileNameFormat = "audit-%020d.jsonl"
	lockName       = "export.lock"
)

// Exported is the file that ExportDir wrote, and its entries. Without new entries there is no
// file, and Last is the last entry of the directory.
type Exported struct {
	File  string `json:"file,omitempty"`
	First uint64 `json:"first_seq,omitempty"`
	Last  uint64 `json:"last_seq"`
}

// errNothingNew is returned if the ledger has no entry that the directory lacks.
var errNothingNew = errors.New("nothing new")

// errTailDone ends a tail at the last entry that is wanted.
var errTailDone = errors.New("tail done")

// ExportDir exports the entries that a directory lacks as its next file. It reads up to the end of
// the ledger at the call. The file appears when it is complete and durable; its lines continue the
// chain of the file before. If reading fails, or ctx ends, the file has the entries
// read so far, and both are returned. ErrLedgerChanged is returned if the files belong to another
// ledger, or if the ledger has dropped the next entry. One process at a time exports into a
// directory. progress may be nil.
func ExportDir(ctx context.Context, ledger Ledger, dir string, progress func(seq, last uint64)) (Exported, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return Exported{}, err
	}
	lock, err := filelock.Take(filepath.Join(dir, lockName))
	if err != nil {
		return Exported{}, fmt.Errorf("export into %s: %w", dir, err)
	}
	defer func() { _ = lock.Close() }()
	before, err := lastExported(dir)
	if err != nil {
		return Exported{}, err
	}
	done := Exported{Last: before.seq}
	span, err := ledger.LedgerInfo(ctx)
	if err != nil {
		return done, err
	}
	place, err := before.next(dir, span)
	if err != nil {
		return done, err
	}
	from, left := slices.Clone(place), span.Behind(place)
	if p := broker.PartitionOf(before.seq); before.seq > 0 && before.seq >= span.Partitions()[p].First {
		from[p] = before.seq // to compare both
	} else if left == 0 {
		return done, nil
	}
	reportProgress, last := throttle(progress), span.End().Count()
	name := fmt.Sprintf(fileNameFormat, max(before.place.Count()+1, span.First))
	var readErr error
	err = WriteFile(filepath.Join(dir, name), func(to io.Writer) error {
		x := NewExport(to, ledger)
		x.enc.prev = before.prev
		readErr = ledger.Tail(ctx, from, func(e broker.Entry) error {
			if e.Seq == before.seq {
				if hash := broker.HashOf(e.Body); hash != before.hash {
					return fmt.Errorf("%w: its entry %d is not the one in %s; export into another directory", broker.ErrLedgerChanged, e.Seq, dir)
				}
			} else if err := x.Add(ctx, e); err != nil {
				return err
			} else if done.Last = e.Seq; done.First == 0 {
				done.First = e.Seq
			}
			if !place.Passed(e.Seq) {
				place.Pass(e.Seq)
				left = span.Behind(place)
			}
			reportProgress(last-left, last)
			if left == 0 {
				return errTailDone
			}
			return nil
		})
		if done.First == 0 {
			return errNothingNew
		}
		if len(place) == 1 {
			return x.End()
		}
		return x.endAt(place)
	})
	switch {
	case err == nil:
		done.File = name
	case errors.Is(err, errNothingNew):
		err = nil
	default:
		return Exported{Last: before.seq}, err
	}
	if errors.Is(readErr, errTailDone) {
		readErr = nil
	}
	return done, readErr
}

// exportEnd is the end of a directory of exports: its last entry, the place behind its entries, and the
// hash of its last line.
type exportEnd struct {
	seq   uint64
	place broker.Cursor
	hash  string
	prev  string
}

// lastExported reads the newest file of a directory.
func lastExported(dir string) (end exportEnd, err error) {
	files, err := filepath.Glob(filepath.Join(dir, filePattern)) // sorted
	if err != nil || len(files) == 0 {
		return end, err
	}
	newest := files[len(files)-1]
	if err := checkRegular(newest); err != nil {
		return end, err
	}
	f, err := os.Open(newest)
	if err != nil {
		return end, err
	}
	defer func() { _ = f.Close() }()
	var entry []byte
	complete := false
	for lines := newLineReader(f); ; {
		text, _, err := lines.next()
		if err != nil {
			complete = complete && errors.Is(err, io.EOF)
			break
		}
		if complete = bytes.HasPrefix(text, []byte(`{"event_type":"`+endEventType+`"`)); complete {
			end.prev = broker.HashOf(text)
			var last endLine
			if err := json.Unmarshal(text, &last); err != nil {
				return end, err
			}
			end.place = last.Next
		}
		if bytes.Contains(text, entryMarker) {
			entry = append(entry[:0], text...)
		}
	}
	var line recordLine
	if err := json.Unmarshal(entry, &line); err != nil || !complete {
		return end, fmt.Errorf("%s is damaged, and no export continues it: see handoff audit verify %s", newest, dir)
	}
	end.seq, end.hash = line.Seq, line.Hash
	end.place.Pass(line.Seq)
	return end, nil
}

// next is the place behind the exported entries that the ledger still has.
func (end exportEnd) next(dir string, span broker.LedgerInfo) (broker.Cursor, error) {
	from := span.Begin()
	for p, part := range span.Partitions() {
		next := end.place.Next(p)
		switch {
		case next > part.Last+1:
			return nil, fmt.Errorf("%w: it ends at entry %d, and %s at entry %d of another; export into another directory", broker.ErrLedgerChanged, part.Last, dir, next-1)
		case next > 0 && next < part.First:
			return nil, fmt.Errorf("%w: the entries %d to %d were dropped for their age before they were exported; export the others into another directory", broker.ErrLedgerChanged, next, part.First-1)
		}
		from[p] = max(next, part.First)
	}
	return from, nil
}

// WriteFile writes a file that appears, or replaces an earlier one, when it is complete and durable.
func WriteFile(path string, write func(io.Writer) error) error {
	part := path + ".part"
	f, err := os.OpenFile(part, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(part) }() // unless it was renamed
	out := bufio.NewWriterSize(f, 1<<20)
	if err = errors.Join(write(out), out.Flush()); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(part, path); err != nil {
		return err
	}
	names, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(names.Sync(), names.Close())
}
