package index

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/agenthandoff/handoff/broker"
)

const (
	writerCacheKB   = 64 << 10 // of the writer, for the pages that a fill changes repeatedly
	indexingCacheKB = 4 << 10  // of the writer while it makes indexes
	readerCacheKB   = 4 << 10  // of each reader
	readersMax      = 4        // concurrent lookups; others wait

	// readerLife bounds the use of a connection: it reads the statistics once, when it begins.
	readerLife = time.Minute
)

// store is one file. Only Run writes its rows.
type store struct {
	path  string
	db    *sql.DB // one connection, the writer's
	reads *sql.DB
	users sync.WaitGroup // the readers

	files sync.Mutex // guards ids and sizes
	ids   [3]os.FileInfo
	sizes [3]int64

	suspected chan error // damage that a reader has found

	// The part in memory, as of position.
	mu       sync.RWMutex
	position ledgerPosition
	names    names

	drift   int64 // of the position being written: the most that an id is beyond its instant
	maxID   int64
	indexed atomic.Bool
	// checkDuplicates looks for a row even at a first entry: some writer has
	// submitted a handoff twice.
	checkDuplicates bool
	recent          map[int64]int64 // the last id of an instant
	// taken has all ids over floor, and those not in the file yet, so that finding a free
	// id rarely reads a row.
	taken map[int64]struct{}
	floor int64
}

// ledgerPosition is how far a store has read the ledger.
type ledgerPosition struct {
	next   broker.Cursor
	at     time.Time // the engine's time stamp of the last entry
	ledger time.Time // which ledger; zero before the first
	drift  int64     // of a snapshot: the most that an id is beyond its instant
}

// dsn is the data source name of a file. The driver does not make a missing file.
func dsn(path string, options url.Values) string {
	return "file:" + (&url.URL{Path: path}).EscapedPath() + "?" + options.Encode()
}

// connect opens the file's connections.
func connect(path string) (*store, error) {
	st := &store{path: path, recent: map[int64]int64{}, taken: map[int64]struct{}{}, suspected: make(chan error, 1)}
	writer := url.Values{"mode": {"rw"}, "_pragma": {"busy_timeout(10000)", "journal_mode(wal)", "synchronous(normal)",
		"wal_autocheckpoint(0)", "temp_store(memory)", fmt.Sprintf("cache_size(-%d)", writerCacheKB)}}
	reader := url.Values{"mode": {"rw"}, "_pragma": {"busy_timeout(10000)", "query_only(1)", "temp_store(memory)",
		fmt.Sprintf("cache_size(-%d)", readerCacheKB)}}
	var err error
	if st.db, err = sql.Open("sqlite", dsn(path, writer)); err != nil {
		return nil, err
	}
	st.db.SetMaxOpenConns(1)
	if st.reads, err = sql.Open("sqlite", dsn(path, reader)); err != nil {
		return nil, errors.Join(err, st.db.Close())
	}
	st.reads.SetMaxOpenConns(readersMax)
	st.reads.SetMaxIdleConns(readersMax)
	st.reads.SetConnMaxLifetime(readerLife)
	return st, nil
}

// createStore makes a new file. The checkpoint writes the version into the header of the file, where
// fileVersion reads it.
func createStore(path string) (*store, error) {
	var st *store
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err == nil {
		err = f.Close()
	}
	if err == nil {
		st, err = connect(path)
	}
	if err != nil {
		return nil, fmt.Errorf("create the index: %w", err)
	}
	script := "BEGIN;" + schema +
		fmt.Sprintf("PRAGMA application_id = %d; PRAGMA user_version = %d;", applicationID, schemaVersion) +
		"INSERT INTO position VALUES (1, '0', 0, '', '" + allWords + "', 0, 0); COMMIT; PRAGMA wal_checkpoint(truncate)"
	if _, err = st.db.Exec(script); err == nil {
		err = st.load()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create the index: %w", err), st.close())
	}
	return st, nil
}

// openStore opens a file of this version.
func openStore(path string) (*store, error) {
	st, err := connect(path)
	if err != nil {
		return nil, err
	}
	if err := st.load(); err != nil {
		return nil, errors.Join(err, st.close())
	}
	return st, nil
}

// load reads the part in memory.
func (st *store) load() error {
	var next, ledger, known string
	var at int64
	var indexed bool
	err := st.db.QueryRow("SELECT next, at, ledger, words, drift, indexed FROM position").
		Scan(&next, &at, &ledger, &known, &st.drift, &indexed)
	if err != nil {
		return fmt.Errorf("read its position: %w", err)
	}
	st.indexed.Store(indexed)
	if known != allWords {
		return errors.New("it is of another version of the protocol")
	}
	if st.position.next, err = broker.ParseCursor(next); err != nil {
		return fmt.Errorf("read its position: %w", err)
	}
	st.position.at = fromMicros(at)
	if ledger != "" {
		if st.position.ledger, err = time.Parse(time.RFC3339Nano, ledger); err != nil {
			return fmt.Errorf("read its ledger: %w", err)
		}
	}
	if err := st.names.load(st.db); err != nil {
		return fmt.Errorf("read its names: %w", err)
	}
	if err := st.db.QueryRow("SELECT coalesce(max(id), 0) FROM handoff").Scan(&st.maxID); err != nil {
		return fmt.Errorf("read its handoffs: %w", err)
	}
	st.floor = st.maxID
	return st.checkFiles(true)
}

// release ends a use that began with Index.current.
func (st *store) release() { st.users.Done() }

// close waits for the readers.
func (st *store) close() error {
	st.users.Wait()
	return errors.Join(st.reads.Close(), st.db.Close())
}

// closeKeepingFile closes a store and keeps its file. SQLite copies the log into the file then. If
// another program has cut the file short, the result may look intact, so closeKeepingFile removes
// it.
func (st *store) closeKeepingFile() error {
	changed := st.checkFiles(false)
	st.files.Lock()
	id := st.ids[0]
	st.files.Unlock()
	err := st.close()
	if changed == nil {
		return err
	}
	if now, e := os.Stat(st.path); e == nil && os.SameFile(now, id) {
		return removeFiles(st.path)
	}
	return nil // the path has another file, or none
}

// currentPosition returns how far the store has read the ledger.
func (st *store) currentPosition() ledgerPosition {
	st.mu.RLock()
	defer st.mu.RUnlock()
	return st.position
}

// snapshot calls fn with an unchanging view of the file, and returns its position.
func (st *store) snapshot(ctx context.Context, fn func(view) error) (ledgerPosition, error) {
	m := ledgerPosition{ledger: st.currentPosition().ledger}
	tx, err := st.reads.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return m, err
	}
	defer func() { _ = tx.Rollback() }() // a read-only transaction
	var next string
	var at int64
	if err := tx.QueryRowContext(ctx, "SELECT next, at, drift FROM position").Scan(&next, &at, &m.drift); err != nil {
		return m, err
	}
	if m.next, err = broker.ParseCursor(next); err != nil {
		return m, err
	}
	m.at = fromMicros(at)
	return m, fn(view{ctx: ctx, tx: tx, st: st, drift: m.drift})
}

// view is a snapshot.
type view struct {
	ctx   context.Context
	tx    *sql.Tx
	st    *store
	drift int64
}

// each calls fn for every row of a query.
func (v view) each(fn func(rows *sql.Rows) error, query string, args ...any) error {
	rows, err := v.tx.QueryContext(v.ctx, query, args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := fn(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// isDamage reports whether an error means that the file is damaged.
func isDamage(err error) bool {
	var found *damageError
	if errors.As(err, &found) {
		return true
	}
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return false
	}
	switch e.Code() & 0xff { // problems of the file, not of the query
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOTADB:
		return true
	}
	for _, sign := range []string{"no such table", "no such column", "malformed", "vtable constructor failed"} {
		if strings.Contains(e.Error(), sign) {
			return true
		}
	}
	return false
}

// toMicros returns an instant in the form of the file.
func toMicros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func fromMicros(micros int64) time.Time {
	if micros == 0 {
		return time.Time{}
	}
	return time.UnixMicro(micros).UTC()
}
