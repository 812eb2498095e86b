package index

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/filelock"
	"github.com/agenthandoff/handoff/protocol"
)

// Source is the ledger that an index reads. A broker.Engine is one.
type Source interface {
	LedgerInfo(ctx context.Context) (broker.LedgerInfo, error)
	Tail(ctx context.Context, from broker.Cursor, fn func(broker.Entry) error) error
	Blob(ctx context.Context, ref protocol.BlobRef) ([]byte, error)
}

var (
	// errNewer: a newer version of Handoff has written the file. The file stays
	// unchanged.
	errNewer = errors.New("the index is from a newer version of handoff")
	// errForeign: the file is another program's database. It stays unchanged.
	errForeign = errors.New("the file is no index")
	// ErrInUse: another process keeps its index in this file.
	ErrInUse = errors.New("index in use")
)

// Index is a projection of one ledger in one file. All methods are safe for
// concurrent use.
type Index struct {
	path   string
	log    *slog.Logger
	lock   *filelock.Lock
	opened time.Time
	// fillBehind is fillBehindDefault, except in tests.
	fillBehind uint64
	unreadable atomic.Int64 // skipped entries

	mu       sync.Mutex
	store    *store // nil for a moment while the file is replaced, and once closed
	src      Source // nil before Run
	changed  chan struct{}
	rebuilds int64
	ended    error // why the index has ended
}

// Open opens the index in a file. It makes a missing file, readable by its owner alone, and
// rebuilds a damaged or older one. It refuses a file from a newer version with errNewer, another
// program's database with errForeign, and one that another process uses with ErrInUse; all three
// stay unchanged. Nothing is read from a ledger before Run. A nil log discards.
func Open(path string, log *slog.Logger) (*Index, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open the index: %w", err)
	}
	ix := &Index{path: path, log: cmp.Or(log, slog.New(slog.DiscardHandler)), opened: time.Now(), fillBehind: fillBehindDefault, changed: make(chan struct{})}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("open the index: %w", err)
	}
	if ix.lock, err = lockFile(path); err != nil {
		return nil, err
	}
	if ix.store, err = ix.openStore(); err != nil {
		return nil, errors.Join(err, ix.lock.Close())
	}
	return ix, nil
}

// lockFile locks the index for this process by a file beside it, since the index itself may be
// replaced.
func lockFile(path string) (*filelock.Lock, error) {
	f, err := filelock.Take(path + ".lock")
	var held *filelock.HeldError
	switch {
	case errors.As(err, &held):
		return nil, fmt.Errorf("%w: process %s has %s; ask that one, or keep yours in another file", ErrInUse, held.PID, path)
	case err != nil:
		return nil, fmt.Errorf("lock the index: %w", err)
	}
	return f, nil
}

// openStore opens the file, or makes a new one.
func (ix *Index) openStore() (*store, error) {
	switch found, err := fileVersion(ix.path); {
	case err != nil:
		return nil, err
	case found == fileCurrent:
		st, err := openStore(ix.path)
		if err == nil {
			return st, nil
		}
		ix.log.Warn("the index cannot be used and is made again", "file", ix.path, "err", err)
	case found == fileOlder:
		ix.log.Info("the index is from an older version and is made again", "file", ix.path)
	case found == fileBroken:
		// It may be another file of value, named by mistake.
		ix.log.Warn("the file is no index; it is put aside", "file", ix.path, "aside", ix.path+".damaged")
		if err := os.Rename(ix.path, ix.path+".damaged"); err != nil {
			return nil, fmt.Errorf("put the damaged index aside: %w", err)
		}
	}
	return ix.newStore()
}

// newStore makes a file in place of the old one.
func (ix *Index) newStore() (*store, error) {
	if err := removeFiles(ix.path); err != nil {
		return nil, fmt.Errorf("remove the old index: %w", err)
	}
	return createStore(ix.path)
}

// Close ends the index. Run must have returned before.
func (ix *Index) Close() error {
	ix.mu.Lock()
	st := ix.store
	ix.store, ix.ended = nil, errClosed
	ix.notifyLocked()
	ix.mu.Unlock()
	var err error
	if st != nil {
		err = st.closeKeepingFile()
	}
	return errors.Join(err, ix.lock.Close())
}

// notifyLocked wakes all questions that wait for a change. The caller has the mutex.
func (ix *Index) notifyLocked() {
	close(ix.changed)
	ix.changed = make(chan struct{})
}

// notify wakes all questions that wait, after the store has advanced.
func (ix *Index) notify() {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.notifyLocked()
}

// current returns the store, perhaps nil, and a channel that is closed when the store is replaced
// or advances. The store stays open until its release.
func (ix *Index) current() (*store, <-chan struct{}) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if ix.store != nil {
		ix.store.users.Add(1)
	}
	return ix.store, ix.changed
}

// dropStore closes the store, and returns it.
func (ix *Index) dropStore() *store {
	ix.mu.Lock()
	old := ix.store
	ix.store = nil
	ix.notifyLocked()
	ix.mu.Unlock()
	if old != nil {
		_ = old.close() // a damaged store may fail to close
	}
	return old
}

// rebuild starts a new file at the same path. Only Run calls it, as the only writer.
func (ix *Index) rebuild(why error) error {
	ix.log.Warn("rebuilding the index from the ledger", "file", ix.path, "why", why)
	ix.dropStore()
	// Another program may have put a file there meanwhile.
	if _, err := fileVersion(ix.path); err != nil {
		return err
	}
	st, err := ix.newStore()
	if err != nil {
		return err
	}
	return ix.install(st, ix.rebuilds+1)
}

// install lets questions have a store, unless the index has ended.
func (ix *Index) install(st *store, rebuilds int64) error {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if ix.ended != nil {
		return errors.Join(ix.ended, st.close())
	}
	ix.store, ix.rebuilds = st, rebuilds
	ix.notifyLocked()
	return nil
}

var errClosed = errors.New("the index is closed")
