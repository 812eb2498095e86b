package audit

import (
	"bufio"
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

// VerifyFiles verifies an export, or a directory of ExportDir: every append as VerifyLedger does,
// the records against their appends, the hash chain over the lines, and in a directory that no
// entry of the ledger is missing. It reads only the files. The error is that of reading; problems
// are in the Report.
func VerifyFiles(path string, progress func(at, last uint64), checks ...Check) (Report, error) {
	v, err := newFileVerifier(path, progress, checks)
	if err != nil {
		return Report{}, err
	}
	return v.verify()
}

func newFileVerifier(path string, progress func(at, last uint64), checks []Check) (*fileVerifier, error) {
	files, isDir, err := filesOf(path)
	if err != nil {
		return nil, err
	}
	v := &fileVerifier{chainVerifier: newChainVerifier(&Report{}, checks...), files: files, isDir: isDir, firstLine: true, progress: throttle(progress), bodies: map[string]bool{}}
	v.reread, v.mustHaveStart = v.rereadLine, v.startExpected
	return v, nil
}

func (v *fileVerifier) verify() (Report, error) {
	for i := range v.files {
		if err := v.verifyFile(i); err != nil {
			return *v.report, err
		}
	}
	return *v.report, nil
}

// fileVerifier verifies the lines of files that belong together.
type fileVerifier struct {
	*chainVerifier
	files    []string
	isDir    bool // the files are a directory of ExportDir
	progress func(at, last uint64)
	bodies   map[string]bool // the digests of bodies that were read
	ledger   []*comparison   // by partition; nil without one

	firstLine bool          // no line was read yet
	prevHash  string        // hash of the previous line
	next      broker.Cursor // in a directory: behind the last entries
	first     broker.Cursor // in a directory: its first entries
	pending   []recordLine  // records before the line with their append
	endSeen   bool          // the end line of this file was read
}

// offsetBits is how many bits of a location are the offset; the others are the number of the file.
const offsetBits = 40

// rereadLine reads the append whose line is at a location.
func (v *fileVerifier) rereadLine(ticket string, location uint64) (broker.Entry, error) {
	f, err := os.Open(v.files[location>>offsetBits])
	if err != nil {
		return broker.Entry{}, err
	}
	defer func() { _ = f.Close() }()
	if _, err := f.Seek(int64(location&(1<<offsetBits-1)), io.SeekStart); err != nil {
		return broker.Entry{}, err
	}
	text, _, err := newLineReader(f).next()
	if err != nil {
		return broker.Entry{}, fmt.Errorf("read %s again: %w", f.Name(), err)
	}
	var line recordLine
	if err := json.Unmarshal(text, &line); err != nil || line.Entry == nil || line.HandoffID != ticket {
		return broker.Entry{}, fmt.Errorf("%s has changed while it was read", f.Name())
	}
	return line.entry(), nil
}

// startExpected reports whether the start of a handoff must be in the files. A directory has the
// ledger from some entry on; handoffs submitted before have their start elsewhere. A single file
// has no such bound, but its chain of lines shows a removed one.
func (v *fileVerifier) startExpected(submitted uint64) bool {
	first := v.first.Next(broker.PartitionOf(submitted))
	return v.isDir && (submitted == 0 || first > 0 && submitted >= first)
}

func (v *fileVerifier) verifyFile(i int) error {
	f, err := os.Open(v.files[i])
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	size := int64(0)
	if info, err := f.Stat(); err == nil {
		size = info.Size()
	}
	v.endSeen, v.pending = false, nil
	lines := newLineReader(f)
	for {
		text, offset, err := lines.next()
		at := Problem{File: v.files[i], Line: lines.n}
		switch {
		case errors.Is(err, io.EOF):
			v.verifyEnd(at)
			return nil
		case errors.Is(err, errTruncated):
			v.addProblem(at, KindTruncated, "is truncated within a line")
			return nil
		case errors.Is(err, bufio.ErrTooLong):
			v.addProblem(at, KindUnreadable, "is longer than %d bytes: the rest of the file was not read", lineBytesMax)
			return nil
		case err != nil:
			return fmt.Errorf("read %s: %w", v.files[i], err)
		}
		v.progress(uint64(offset), uint64(size))
		if err := v.verifyLine(text, uint64(i)<<offsetBits|uint64(offset), at); err != nil {
			return err
		}
	}
}

func (v *fileVerifier) addProblem(at Problem, kind Kind, format string, args ...any) {
	at.Kind, at.Message = kind, fmt.Sprintf(format, args...)
	v.report.addProblem(at)
}

// verifyEnd verifies the end of a file.
func (v *fileVerifier) verifyEnd(at Problem) {
	switch {
	case len(v.pending) > 0:
		v.addProblem(at, KindTruncated, "ends with records whose append is missing")
	case !v.endSeen:
		v.addProblem(at, KindTruncated, "has no end line: it was truncated, or is still being written")
	}
}

// verifyLine verifies one line at a location.
func (v *fileVerifier) verifyLine(text []byte, location uint64, at Problem) error {
	var line struct {
		recordLine
		Lines  int    `json:"lines"`  // of the end line
		Digest string `json:"digest"` // of a body, and its bytes
		storedBytes
	}
	prev := v.prevHash
	v.prevHash = broker.HashOf(text)
	if err := json.Unmarshal(text, &line); err != nil {
		v.firstLine = false
		v.addProblem(at, KindUnreadable, "is no audit record: %v", err)
		return nil
	}
	switch {
	case v.firstLine && line.Prev != "":
		v.report.addNote("%s continues an earlier file, which is missing", filepath.Base(at.File))
	case !v.firstLine && line.Prev != prev:
		v.addProblem(at, KindLine, "does not follow the line before it: prev is %s, that line has %s; one of them was changed, or a line between them was removed",
			shortHash(line.Prev), shortHash(prev))
	}
	v.firstLine = false
	if v.endSeen {
		v.addProblem(at, KindLine, "follows the end line")
	}
	switch line.EventType {
	case bodyEventType:
		v.bodies[line.Digest] = true
		if digest := broker.RefOf(line.bytes()).Digest; digest != line.Digest {
			v.addProblem(at, KindHash, "has a package or result with the digest %s, and names the digest %s: one of them was changed", digest, line.Digest)
		}
		return nil
	case endEventType:
		if v.endSeen = true; line.Lines != at.Line-1 {
			v.addProblem(at, KindMissing, "names %d lines before it, and there are %d", line.Lines, at.Line-1)
		}
		return nil
	}
	return v.verifyRecord(line.recordLine, location, at)
}

// verifyRecord verifies one audit record, and with the last record of an append the append.
func (v *fileVerifier) verifyRecord(line recordLine, location uint64, at Problem) error {
	if n := len(v.pending); n > 0 && (v.pending[n-1].Seq != line.Seq || v.pending[n-1].HandoffID != line.HandoffID) {
		v.addProblem(at, KindMissing, "the append of the records before it is missing: entry %d of %s", v.pending[n-1].Seq, v.pending[n-1].HandoffID)
		v.pending = nil
	}
	if v.pending = append(v.pending, line); line.Entry == nil {
		return nil
	}
	lines := v.pending
	v.pending = nil
	e := line.entry()
	at.Seq, at.Ticket = e.Seq, e.Ticket
	if v.isDir {
		if next := v.next.Next(broker.PartitionOf(e.Seq)); next == 0 {
			v.first.Begin(e.Seq)
		} else if e.Seq != next {
			v.addProblem(at, KindMissing, "entry %d follows entry %d: the entries between them are not in the directory", e.Seq, next-1)
		}
		v.next.Begin(e.Seq + 1)
	}
	if hash := broker.HashOf(e.Body); hash != line.Hash {
		v.addProblem(at, KindHash, "has an append with the hash %s, and names the hash %s: one of them was changed", shortHash(hash), shortHash(line.Hash))
	}
	if err := v.compareEntry(e, at); err != nil {
		return err
	}
	change, err := broker.DecodeChange(e)
	if err == nil && e.Ticket != "" {
		v.compareRecords(lines, e, change, at)
		for _, ref := range bodyRefs(change) {
			if line.V == lineVersion && !v.bodies[ref.Digest] {
				v.addProblem(at, KindMissing, "refers to a package or result that is not in the export: %s", ref.Digest)
			}
		}
	}
	return v.verifyDecoded(e, change, err, location, at)
}

// compareRecords compares records with the append that they were made from. Their data about the
// package and the result is taken from themselves if the append does not have it.
func (v *fileVerifier) compareRecords(lines []recordLine, e broker.Entry, change protocol.Change, at Problem) {
	first := lines[0]
	if first.V != lineVersion || strings.HasPrefix(first.Reason, unreadablePrefix) {
		return // another version may write other records
	}
	var of protocol.Snapshot
	for _, line := range lines {
		if recorded := line.ContextSnapshot; protocol.Completes(line.Event) {
			of.Result = protocol.ResultSnapshot{VariablesHash: recorded.VariablesHash, Artifacts: recorded.ArtifactCount}
		} else {
			of.VariablesHash, of.Artifacts = recorded.VariablesHash, recorded.ArtifactCount
		}
		switch line.EventType {
		case protocol.AuditInitiated:
			of.Reason, of.Rationale = line.Reason, line.DecisionRationale
		case protocol.AuditEscalated: // has its own rationale
		default:
			of.Rationale = line.DecisionRationale
		}
	}
	for _, e := range change.Record.Events {
		if completed, ok := e.(*protocol.Completed); ok && completed.Blob == nil {
			of.Result, _ = protocol.ResultSnapshotOf(completed.Result)
		}
	}
	if submitted := submittedEvent(change); submitted != nil && submitted.Package != nil {
		of, _ = protocol.SnapshotOf(submitted.Package) // zero if it cannot be decoded
	}
	want := recordsOf(e, change, of)
	if !slices.EqualFunc(lines, want, sameRecord) {
		v.addProblem(at, KindHash, "has audit records that differ from their append")
	}
}

// sameRecord compares a line with the expected record, except for the hash, which is verified
// separately.
func sameRecord(l recordLine, want protocol.AuditRecord) bool {
	have := l.AuditRecord
	if !have.Timestamp.Equal(want.Timestamp) {
		return false
	}
	have.Timestamp, have.Hash = want.Timestamp, want.Hash
	return have == want
}
