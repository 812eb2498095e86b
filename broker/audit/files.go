package audit

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// LineBytesMax is the longest line that is read: well over what an append of the
// largest size becomes as JSON.
const LineBytesMax = 64 << 20

// readerBytes is the buffer that lines are read through.
const readerBytes = 1 << 20

// lineReader reads lines and knows where they began.
type lineReader struct {
	r      *bufio.Reader
	offset int64 // of the next line
	n      int   // of the line read last, from 1
}

var (
	errCut     = errors.New("the last line has no end")
	errTooLong = fmt.Errorf("a line is longer than %d bytes", LineBytesMax)
)

func newLineReader(r io.Reader) *lineReader {
	return &lineReader{r: bufio.NewReaderSize(r, readerBytes)}
}

// next returns a line without its end, and where it begins. The line is good
// until the next call. At the end it is io.EOF; errCut says that the file does not
// end with a line's end, and comes with what there is of it.
func (l *lineReader) next() (line []byte, at int64, err error) {
	at = l.offset
	line, err = l.r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		line = bytes.Clone(line)
		for errors.Is(err, bufio.ErrBufferFull) {
			var more []byte
			more, err = l.r.ReadSlice('\n')
			if line = append(line, more...); len(line) > LineBytesMax {
				return nil, at, errTooLong
			}
		}
	}
	l.offset += int64(len(line))
	switch {
	case err == nil:
		l.n++
		return line[:len(line)-1], at, nil
	case errors.Is(err, io.EOF) && len(line) > 0:
		l.n++
		return line, at, errCut
	}
	return nil, at, err
}

// pathsOf are the files of an export or of an archive's directory, in their order.
func pathsOf(path string) (files []string, isDir bool, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, false, err
	}
	if !info.IsDir() {
		return []string{path}, false, nil
	}
	files, err = filepath.Glob(filepath.Join(path, filePattern))
	slices.Sort(files) // by the sequence that each begins with
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("%s has no files of an archive (%s)", path, filePattern)
	}
	for _, file := range files {
		err = cmp.Or(err, checkRegular(file))
	}
	return files, true, err
}

// checkRegular refuses what an archive from elsewhere may hold in the place of a
// file: a named pipe would keep its reader for ever.
func checkRegular(path string) error {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", path)
	}
	return err
}

// VerifyFiles checks an export, or the directory of an archive: every append as
// VerifyLedger does, the records against their appends, the chain over the lines,
// and of an archive that it has every entry of the ledger. It reads nothing but the
// files. An error is that of reading them; what is wrong with them is in the Report.
func VerifyFiles(path string, progress func(at, last uint64), checks ...Check) (Report, error) {
	var report Report
	files, isDir, err := pathsOf(path)
	if err != nil {
		return report, err
	}
	v := &verifier{report: &report, chains: newChains(&report, checks...), files: files, archive: isDir, growing: isDir && inUse(path), first: true, tick: newTicker(progress), bodies: map[string]bool{}}
	v.again, v.begins = v.readAgain, v.mustBegin
	for i := range files {
		last := i == len(files)-1
		if err := v.file(i, last); err != nil {
			return report, err
		}
	}
	return report, nil
}

// verifier goes over the lines of files that belong together.
type verifier struct {
	*chains
	report  *Report
	files   []string
	archive bool
	growing bool // a process writes it at this moment
	tick    func(at, last uint64)
	bodies  map[string]bool // of an archive: digests that were looked at

	first   bool   // no line was read yet
	prev    string // hash of the line before
	seq     uint64 // of an archive: the last entry
	begin   uint64 // of an archive: its first entry
	pending []Line // records whose append is yet to come
	ended   bool   // the line that ends this file was read
}

// offsetBits is how much of a place is the offset in its file.
const offsetBits = 40

// readAgain reads the append whose line begins at a place.
func (v *verifier) readAgain(ticket string, place uint64) (broker.Entry, error) {
	f, err := os.Open(v.files[place>>offsetBits])
	if err != nil {
		return broker.Entry{}, err
	}
	defer func() { _ = f.Close() }()
	if _, err := f.Seek(int64(place&(1<<offsetBits-1)), io.SeekStart); err != nil {
		return broker.Entry{}, err
	}
	text, _, err := newLineReader(f).next()
	if err != nil {
		return broker.Entry{}, fmt.Errorf("read %s again: %w", f.Name(), err)
	}
	var line Line
	if err := json.Unmarshal(text, &line); err != nil || line.Entry == nil || line.HandoffID != ticket {
		return broker.Entry{}, fmt.Errorf("%s has changed while it was read", f.Name())
	}
	return line.entry(), nil
}

// mustBegin: of an archive that has the ledger from some entry on, handoffs
// that were submitted before that have their beginning elsewhere. An export does
// not say where the ledger began, but its lines show what was taken out.
func (v *verifier) mustBegin(submitted uint64) bool {
	return v.archive && (submitted == 0 || submitted >= v.begin)
}

func (v *verifier) file(i int, last bool) error {
	f, err := os.Open(v.files[i])
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	size := int64(0)
	if info, err := f.Stat(); err == nil {
		size = info.Size()
	}
	v.ended, v.pending = false, nil
	lines := newLineReader(f)
	for {
		text, offset, err := lines.next()
		at := Problem{File: v.files[i], Line: lines.n}
		switch {
		case errors.Is(err, io.EOF):
			v.close(at, last)
			return nil
		case errors.Is(err, errCut) && v.growing && last:
			v.close(at, last)
			return nil
		case errors.Is(err, errCut):
			v.found(at, KindTruncated, "is cut off in the middle of a line")
			return nil
		case errors.Is(err, errTooLong):
			at.Line++
			v.found(at, KindUnreadable, "%v: the rest of the file was not read", err)
			return nil
		case err != nil:
			return fmt.Errorf("read %s: %w", v.files[i], err)
		}
		v.tick(uint64(offset), uint64(size))
		if err := v.line(text, uint64(i)<<offsetBits|uint64(offset), at); err != nil {
			return err
		}
	}
}

func (v *verifier) found(at Problem, kind Kind, format string, args ...any) {
	at.Kind, at.Words = kind, fmt.Sprintf(format, args...)
	v.report.problem(at)
}

// close checks the end of a file.
func (v *verifier) close(at Problem, last bool) {
	switch {
	case len(v.pending) > 0 && !(v.growing && last):
		v.found(at, KindTruncated, "ends with records whose append is missing")
	case v.ended:
	case v.archive && last:
		v.report.note("%s is the newest file of the archive: more may come", filepath.Base(at.File))
	default:
		v.found(at, KindTruncated, "has no end: it was cut off, or is still being written")
	}
}

// line checks one line, which begins at a place.
func (v *verifier) line(text []byte, place uint64, at Problem) error {
	var line struct {
		Line
		Lines int `json:"lines"` // of the end
	}
	prev := v.prev
	v.prev = broker.HashOf(text)
	if err := json.Unmarshal(text, &line); err != nil {
		v.first = false
		v.found(at, KindUnreadable, "is no audit record: %v", err)
		return nil
	}
	switch {
	case v.first && line.Prev != "":
		v.report.note("%s goes on from an earlier file, which is not here", filepath.Base(at.File))
	case !v.first && line.Prev != prev:
		v.found(at, KindLine, "does not follow the line before it: prev is %s, that line has %s; one of them was changed, or what was between them is gone",
			shown(line.Prev), shown(prev))
	}
	v.first = false
	if v.ended {
		v.found(at, KindLine, "comes behind the end of the file")
	}
	if line.EventType == endType {
		if v.ended = true; line.Lines != at.Line-1 {
			v.found(at, KindMissing, "says that %d lines are before it, and there are %d", line.Lines, at.Line-1)
		}
		return nil
	}
	return v.record(line.Line, place, at)
}

// record checks one audit record, and with the last of an append the append.
func (v *verifier) record(line Line, place uint64, at Problem) error {
	if n := len(v.pending); n > 0 && (v.pending[n-1].Seq != line.Seq || v.pending[n-1].HandoffID != line.HandoffID) {
		v.found(at, KindMissing, "the append of the records before it is missing: entry %d of %s", v.pending[n-1].Seq, v.pending[n-1].HandoffID)
		v.pending = nil
	}
	if v.pending = append(v.pending, line); line.Entry == nil {
		return nil
	}
	lines := v.pending
	v.pending = nil
	e := line.entry()
	at.Seq, at.Ticket = e.Seq, e.Ticket
	if v.archive {
		if v.begin == 0 {
			v.begin = e.Seq
		} else if e.Seq != v.seq+1 {
			v.found(at, KindMissing, "entry %d follows entry %d: what is between them is not in the archive", e.Seq, v.seq)
		}
		v.seq = e.Seq
	}
	if hash := broker.HashOf(e.Body); hash != line.Hash {
		v.found(at, KindHash, "holds an append with the hash %s, and says it is %s: one of them was changed", shown(hash), shown(line.Hash))
	}
	change, err := broker.DecodeChange(e)
	if err == nil && e.Ticket != "" {
		v.compare(lines, e, change, at)
		if v.archive {
			v.checkBodies(change, at)
		}
	}
	return v.addDecoded(e, change, err, place, at)
}

// compare holds records against the append that they are made of. What they
// have of the package and of the result is taken from them where the append does
// not hold it.
func (v *verifier) compare(lines []Line, e broker.Entry, change protocol.Change, at Problem) {
	first := lines[0]
	if first.V != lineVersion || strings.HasPrefix(first.Reason, unreadableWords) {
		return // what was written by another version may say it otherwise
	}
	var of protocol.Snapshot
	for _, line := range lines {
		if shown := line.ContextSnapshot; protocol.Completes(line.Event) {
			of.Result = protocol.ResultSnapshot{VariablesHash: shown.VariablesHash, Artifacts: shown.ArtifactCount}
		} else {
			of.VariablesHash, of.Artifacts = shown.VariablesHash, shown.ArtifactCount
		}
		switch line.EventType {
		case protocol.AuditInitiated:
			of.Reason, of.Rationale = line.Reason, line.DecisionRationale
		case protocol.AuditEscalated: // has a rationale of its own
		default:
			of.Rationale = line.DecisionRationale
		}
	}
	for _, e := range change.Record.Events {
		if completed, ok := e.(*protocol.Completed); ok && completed.Blob == nil {
			of.Result, _ = protocol.ResultSnapshotOf(completed.Result)
		}
	}
	if submitted := submittedIn(change); submitted != nil && submitted.Package != nil {
		of, _ = protocol.SnapshotOf(submitted.Package) // the zero one where it is none
	}
	want := recordsOf(e, change, of)
	if !slices.EqualFunc(lines, want, sameRecord) {
		v.found(at, KindHash, "has audit records that say something else than the append that they were made of")
	}
}

// sameRecord compares a line with the record that it should be, but for the hash,
// which is checked by itself.
func sameRecord(l Line, want protocol.AuditRecord) bool {
	have := l.AuditRecord
	if !have.Timestamp.Equal(want.Timestamp) {
		return false
	}
	have.Timestamp, have.Hash = want.Timestamp, want.Hash
	return have == want
}
