package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/filelock"
	"github.com/agenthandoff/handoff/protocol"
)

const (
	// filePattern matches the files of an archive. Their names begin with their first sequence, so
	// that they sort in the order of the ledger.
	filePattern    = "audit-*.jsonl"
	fileNameFormat = "audit-%020d-%s.jsonl"
	lockName       = "archive.lock"
	// FileBytesDefault is the default size of a file. A file is closed by the append that exceeds
	// it, or at the end of the day.
	FileBytesDefault = 256 << 20
	// bufferBytesMax is how much is buffered before it is written.
	bufferBytesMax = 1 << 20
)

// ErrInUse is returned if another process archives into the directory.
var ErrInUse = errors.New("the archive is in use")

// Archive is a directory of files with a copy of the ledger. Its position is read from the files.
// One process at a time writes it.
type Archive struct {
	dir          string
	fileBytesMax int64
	lock         *filelock.Lock
	file         *os.File // the newest; nil before the next one is created
	size         int64
	day          string
	enc          encoder
	seq          uint64 // of the last append
	hash         string // of the last append
	buf          bytes.Buffer
	truncated    int64
}

// OpenArchive opens or creates a directory and reads its position. It truncates an append that was
// only partly written when the last writer died: Truncated returns how much. fileBytes 0 is
// FileBytesDefault.
func OpenArchive(dir string, fileBytes int64) (*Archive, error) {
	if err := os.MkdirAll(filepath.Join(dir, bodiesDir), 0o700); err != nil {
		return nil, err
	}
	a := &Archive{dir: dir, fileBytesMax: fileBytes}
	if a.fileBytesMax <= 0 {
		a.fileBytesMax = FileBytesDefault
	}
	var err error
	if a.lock, err = lockDir(dir); err != nil {
		return nil, err
	}
	if err := errors.Join(syncDir(dir), removeTempFiles(dir), a.recoverEnd()); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

func lockDir(dir string) (*filelock.Lock, error) {
	f, err := filelock.Take(filepath.Join(dir, lockName))
	if held := (*filelock.HeldError)(nil); errors.As(err, &held) {
		return nil, fmt.Errorf("%w: process %s archives into %s", ErrInUse, held.PID, dir)
	}
	return f, err
}

// inUse reports whether a process writes the archive.
func inUse(dir string) bool {
	path := filepath.Join(dir, lockName)
	return checkRegular(path) == nil && filelock.IsHeld(path)
}

// Close releases the directory. Appends that were not flushed are lost; the next writer reads them
// again.
func (a *Archive) Close() error {
	var err error
	if a.file != nil {
		err = a.file.Close()
	}
	return errors.Join(err, a.lock.Close())
}

// Position is the sequence of the last append in the archive; 0 if it is empty.
func (a *Archive) Position() uint64 { return a.seq }

// Truncated is how many bytes OpenArchive removed from the end.
func (a *Archive) Truncated() int64 { return a.truncated }

// recoverEnd finds the last complete append, and opens its file to continue behind it.
func (a *Archive) recoverEnd() error {
	files, err := filepath.Glob(filepath.Join(a.dir, filePattern))
	if err != nil {
		return err
	}
	for len(files) > 0 {
		newest := files[len(files)-1] // Glob sorts
		whole, ended, err := a.scanFile(newest)
		if err != nil {
			return err
		}
		if whole == 0 { // it was created and never written
			if err := os.Remove(newest); err != nil {
				return err
			}
			files = files[:len(files)-1]
			continue
		}
		if ended {
			return nil
		}
		return a.resumeFile(newest, whole)
	}
	return nil
}

// scanFile reads a file. It returns the end of its last complete append, and whether the file has
// its end line.
func (a *Archive) scanFile(path string) (whole int64, ended bool, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, false, err
	}
	defer func() { _ = f.Close() }()
	lines := newLineReader(f)
	for {
		text, _, err := lines.next()
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, errTruncated):
			a.truncated += lines.offset - whole
			return whole, ended, nil
		case err != nil:
			return 0, false, fmt.Errorf("read %s: %w", path, err)
		}
		isEnd := bytes.HasPrefix(text, []byte(`{"event_type":"`+endEventType+`"`))
		if !isEnd && !bytes.Contains(text, entryMarker) {
			continue
		}
		if !isEnd {
			var line Line
			if err := json.Unmarshal(text, &line); err != nil || line.Entry == nil {
				return 0, false, fmt.Errorf("%s, line %d is no audit record: see handoff audit verify %s", path, lines.n, a.dir)
			}
			a.seq, a.hash = line.Seq, line.Hash
		}
		ended = isEnd
		whole, a.enc = lines.offset, encoder{prev: broker.HashOf(text), lines: lines.n}
	}
}

// resumeFile opens the newest file to continue at offset whole.
func (a *Archive) resumeFile(path string, whole int64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	a.file, a.size = f, whole
	_, a.day = parseFileName(path)
	if err := f.Truncate(whole); err != nil {
		return err
	}
	_, err = f.Seek(whole, io.SeekStart)
	return err
}

func parseFileName(path string) (seq uint64, day string) {
	_, _ = fmt.Sscanf(filepath.Base(path), "audit-%d-%8s", &seq, &day)
	return seq, day
}

// Add appends the next entry of the ledger. It is durable after Flush.
func (a *Archive) Add(e broker.Entry, records []protocol.AuditRecord) error {
	day := e.At.UTC().Format("20060102")
	if a.file != nil && (day > a.day || a.size+int64(a.buf.Len()) >= a.fileBytesMax) {
		if err := a.closeFile(); err != nil {
			return err
		}
	}
	if a.file == nil {
		if err := a.createFile(e.Seq, day); err != nil {
			return err
		}
	}
	if err := a.enc.addLines(&a.buf, linesOf(e, records)); err != nil {
		return err
	}
	a.seq, a.hash = e.Seq, broker.HashOf(e.Body)
	if a.buf.Len() >= bufferBytesMax {
		return a.writeBuffer()
	}
	return nil
}

// createFile creates the next file.
func (a *Archive) createFile(seq uint64, day string) error {
	f, err := os.OpenFile(filepath.Join(a.dir, fmt.Sprintf(fileNameFormat, seq, day)), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	a.file, a.size, a.day, a.enc.lines = f, 0, day, 0
	return syncDir(a.dir)
}

// closeFile writes the end line of the newest file and closes it.
func (a *Archive) closeFile() error {
	if err := a.enc.addEnd(&a.buf); err != nil {
		return err
	}
	if err := a.Flush(); err != nil {
		return err
	}
	err := a.file.Close()
	a.file = nil
	return err
}

// Flush writes and syncs everything that was added.
func (a *Archive) Flush() error {
	if a.file == nil {
		return nil
	}
	if err := a.writeBuffer(); err != nil {
		return err
	}
	return a.file.Sync()
}

func (a *Archive) writeBuffer() error {
	n, err := a.file.Write(a.buf.Bytes())
	a.size += int64(n)
	a.buf.Reset()
	return err
}
