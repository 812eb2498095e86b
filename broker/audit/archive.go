package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/filelock"
	"github.com/agenthandoff/handoff/protocol"
)

const (
	// filePattern matches the files of an archive. Their names begin with the
	// first sequence in them, so that their order is that of the ledger.
	filePattern = "audit-*.jsonl"
	fileForm    = "audit-%020d-%s.jsonl"
	lockName    = "archive.lock"
	// FileBytesDefault is how large a file of an archive gets: it is closed with
	// the append that takes it over that, or with the day.
	FileBytesDefault = 256 << 20
	// flushBytes bounds what is written at once.
	flushBytes = 1 << 20
)

// ErrInUse says that another process archives into the directory.
var ErrInUse = errors.New("the archive is in use")

// Archive is a directory of files that take up everything the ledger gets. Where
// it stands is told by the files alone. One process writes it at a time.
type Archive struct {
	dir      string
	most     int64
	lock     *filelock.Lock
	file     *os.File // the newest; nil while there is none to go on with
	size     int64
	day      string
	enc      encoder
	seq      uint64 // of the last append
	hash     string // of that
	buf      bytes.Buffer
	repaired int64
}

// OpenArchive takes a directory, which is made if need be, and finds out how far
// it is. What was being written when its last writer died is taken away again:
// Repaired says how much. fileBytes is FileBytesDefault where it is 0.
func OpenArchive(dir string, fileBytes int64) (*Archive, error) {
	if err := os.MkdirAll(filepath.Join(dir, bodiesName), 0o700); err != nil {
		return nil, err
	}
	a := &Archive{dir: dir, most: fileBytes}
	if a.most <= 0 {
		a.most = FileBytesDefault
	}
	var err error
	if a.lock, err = lockDir(dir); err != nil {
		return nil, err
	}
	if err := errors.Join(syncDir(dir), removeUnfinished(dir), a.recover()); err != nil {
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

// inUse tells whether a process writes the archive.
func inUse(dir string) bool {
	path := filepath.Join(dir, lockName)
	return checkRegular(path) == nil && filelock.IsHeld(path)
}

// Close gives the directory back. What Flush has not written is lost, and is
// read again by the next writer.
func (a *Archive) Close() error {
	var err error
	if a.file != nil {
		err = a.file.Close()
	}
	return errors.Join(err, a.lock.Close())
}

// Position is the sequence of the last append in the archive; 0 of an empty one.
func (a *Archive) Position() uint64 { return a.seq }

// Repaired is how many bytes OpenArchive took away at the end.
func (a *Archive) Repaired() int64 { return a.repaired }

// recover reads the newest file to its last whole append, and makes it end there.
func (a *Archive) recover() error {
	files, err := filepath.Glob(filepath.Join(a.dir, filePattern))
	if err != nil {
		return err
	}
	for len(files) > 0 {
		newest := files[len(files)-1] // Glob sorts
		whole, ended, err := a.scan(newest)
		if err != nil {
			return err
		}
		if whole == 0 { // it was only just made
			if err := os.Remove(newest); err != nil {
				return err
			}
			files = files[:len(files)-1]
			continue
		}
		if ended {
			return nil
		}
		return a.goOn(newest, whole)
	}
	return nil
}

// scan reads a file, and where it ends whole.
func (a *Archive) scan(path string) (whole int64, ended bool, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, false, err
	}
	defer func() { _ = f.Close() }()
	lines := newLineReader(f)
	for {
		text, _, err := lines.next()
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, errCut):
			a.repaired += lines.offset - whole
			return whole, ended, nil
		case err != nil:
			return 0, false, fmt.Errorf("read %s: %w", path, err)
		}
		isEnd := bytes.HasPrefix(text, []byte(`{"event_type":"`+endType+`"`))
		if !isEnd && !bytes.Contains(text, entryMark) {
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

// goOn opens the newest file to write on.
func (a *Archive) goOn(path string, whole int64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	a.file, a.size = f, whole
	_, a.day = nameParts(path)
	if err := f.Truncate(whole); err != nil {
		return err
	}
	_, err = f.Seek(whole, io.SeekStart)
	return err
}

func nameParts(path string) (seq uint64, day string) {
	_, _ = fmt.Sscanf(filepath.Base(path), "audit-%d-%8s", &seq, &day)
	return seq, day
}

// Add takes up the next append of the ledger. It is on the disk after Flush.
func (a *Archive) Add(e broker.Entry, records []protocol.AuditRecord) error {
	day := e.At.UTC().Format("20060102")
	if a.file != nil && (day > a.day || a.size+int64(a.buf.Len()) >= a.most) {
		if err := a.finish(); err != nil {
			return err
		}
	}
	if a.file == nil {
		if err := a.begin(e.Seq, day); err != nil {
			return err
		}
	}
	if err := a.enc.add(&a.buf, linesOf(e, records)); err != nil {
		return err
	}
	a.seq, a.hash = e.Seq, broker.HashOf(e.Body)
	if a.buf.Len() >= flushBytes {
		return a.write()
	}
	return nil
}

// begin makes the next file.
func (a *Archive) begin(seq uint64, day string) error {
	f, err := os.OpenFile(filepath.Join(a.dir, fmt.Sprintf(fileForm, seq, day)), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	a.file, a.size, a.day, a.enc.lines = f, 0, day, 0
	return syncDir(a.dir)
}

// finish ends the newest file.
func (a *Archive) finish() error {
	if err := a.enc.end(&a.buf); err != nil {
		return err
	}
	if err := a.Flush(); err != nil {
		return err
	}
	err := a.file.Close()
	a.file = nil
	return err
}

// Flush makes sure that everything that was added is on the disk.
func (a *Archive) Flush() error {
	if a.file == nil {
		return nil
	}
	if err := a.write(); err != nil {
		return err
	}
	return a.file.Sync()
}

func (a *Archive) write() error {
	n, err := a.file.Write(a.buf.Bytes())
	a.size += int64(n)
	a.buf.Reset()
	return err
}

// FollowConfig says how an archive follows a ledger. The zero value is for ever,
// from the oldest entry on.
type FollowConfig struct {
	// Once ends it at what the ledger had when it began.
	Once bool
	// From is where an empty archive begins; 0 is the oldest entry there is.
	From uint64
	// Progress is told, now and then and at the end, how far the archive is on
	// the disk. Nil is welcome.
	Progress func(seq, last uint64)
	// Away is told that the engine does not answer; it is asked again. Nil is welcome.
	Away func(error)
}

// Waits between two tries to reach the engine.
const (
	againMin = 500 * time.Millisecond
	againMax = 10 * time.Second
)

// Follow takes up what the ledger has and what it gets, until ctx ends (that is
// no error). An engine that does not answer is asked again, but with Once. It ends
// with ErrLedgerChanged where the archive does not belong to the ledger, or the
// ledger has dropped what comes next.
func (a *Archive) Follow(ctx context.Context, ledger Ledger, cfg FollowConfig) error {
	wait := againMin
	for {
		before := a.seq
		err := a.follow(ctx, ledger, cfg)
		switch {
		case ctx.Err() != nil:
			return a.Flush()
		case err == nil || cfg.Once || !errors.Is(err, broker.ErrUnreachable):
			return err
		}
		if cfg.Away != nil {
			cfg.Away(err)
		}
		if a.seq > before {
			wait = againMin
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, againMax)
	}
}

// errSeen ends a tail that has seen enough.
var errSeen = errors.New("seen all")

func (a *Archive) follow(ctx context.Context, ledger Ledger, cfg FollowConfig) error {
	span, err := ledger.LedgerInfo(ctx)
	if err != nil {
		return err
	}
	from, err := a.start(span, cfg.From)
	if err != nil {
		return err
	}
	if cfg.Once && from > span.Last {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	entries, failed := make(chan broker.Entry, 1024), make(chan error, 1)
	go func() { // joined by the receive from failed, or by drain
		defer close(entries)
		failed <- ledger.Tail(ctx, from, func(e broker.Entry) error {
			select {
			case entries <- e:
			case <-ctx.Done():
				return ctx.Err()
			}
			if cfg.Once && e.Seq >= span.Last {
				return errSeen
			}
			return nil
		})
	}()
	err = a.take(ctx, NewReader(ledger), entries, span.Last, cfg.Progress)
	cancel()
	for range entries { // until the tail has ended
	}
	if ended := <-failed; err == nil && !errors.Is(ended, errSeen) {
		err = ended
	}
	return errors.Join(err, a.Flush())
}

// start is where the ledger is read from: at the last append in the archive,
// if the ledger still has it, so that another ledger shows.
func (a *Archive) start(span broker.LedgerInfo, from uint64) (uint64, error) {
	switch {
	case a.seq == 0 && from > 0 && (from < span.First || from > span.Last+1):
		return 0, fmt.Errorf("%w: it has the entries %d to %d, and entry %d was asked for", broker.ErrLedgerChanged, span.First, span.Last, from)
	case a.seq == 0:
		return max(from, span.First), nil
	case a.seq > span.Last:
		return 0, fmt.Errorf("%w: it ends at entry %d, and the archive in %s at entry %d of another; archive into a directory of its own", broker.ErrLedgerChanged, span.Last, a.dir, a.seq)
	case a.seq+1 < span.First:
		return 0, fmt.Errorf("%w: the entries %d to %d were dropped for their age before they were archived; archive what there is into a new directory", broker.ErrLedgerChanged, a.seq+1, span.First-1)
	case a.seq+1 == span.First:
		return span.First, nil
	}
	return a.seq, nil
}

// syncEvery is how much is lost at most, for a moment, of what was read while
// an archive catches up.
const syncEvery = time.Second

// take writes entries as they come, and syncs whenever there are no more at hand.
func (a *Archive) take(ctx context.Context, reader *Reader, entries <-chan broker.Entry, last uint64, progress func(seq, last uint64)) error {
	said, synced := time.Now(), time.Now()
	for e := range entries {
		if e.Seq == a.seq {
			if hash := broker.HashOf(e.Body); hash != a.hash {
				return fmt.Errorf("%w: its entry %d is not the one in %s; archive into a directory of its own", broker.ErrLedgerChanged, e.Seq, a.dir)
			}
		} else {
			records, err := reader.Records(ctx, e)
			if err != nil {
				return err
			}
			if err := a.keepBodies(ctx, reader.ledger, e); err != nil {
				return err
			}
			if err := a.Add(e, records); err != nil {
				return err
			}
		}
		if len(entries) > 0 && time.Since(synced) < syncEvery {
			continue
		}
		if err := a.Flush(); err != nil {
			return err
		}
		synced = time.Now()
		if progress != nil && (time.Since(said) > progressEvery || e.Seq == last) {
			progress(a.seq, max(last, a.seq))
			said = time.Now()
		}
	}
	return nil
}
