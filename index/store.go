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
)

const (
	writerCacheKB   = 64 << 10 // pages that the writer keeps: those a fill comes back to
	indexingCacheKB = 4 << 10  // while it makes indexes
	readerCacheKB   = 4 << 10  // and each reader
	readersMax      = 4        // questions that are looked up at once; others wait for their turn
)

// store is one file. Its rows are written by Run alone.
type store struct {
	path  string
	db    *sql.DB // one connection, the writer's
	reads *sql.DB
	users sync.WaitGroup // who reads

	files sync.Mutex // guards ids and sizes
	ids   [3]identity
	sizes [3]int64

	suspected chan error // what a reader found wrong with the file

	// What is kept in memory beside the file, as of the mark.
	mu       sync.RWMutex
	position ledgerPosition
	counts   counts
	names    names

	drift   int64 // of the mark that is being written: the most that an id is beyond its instant
	maxID   int64
	indexed atomic.Bool
	// checkDuplicates says that not even a first entry is taken for one unseen: some
	// writer has begun a handoff twice.
	checkDuplicates bool
	recent          map[int64]int64 // the last id that was given for an instant
	// taken are all ids over floor, and those that are not in the file yet: so
	// hardly ever is a row looked for to find a free one.
	taken map[int64]struct{}
	floor int64
}

// ledgerPosition is how far a store is.
type ledgerPosition struct {
	seq    uint64
	at     time.Time // the engine's time stamp of that entry
	ledger time.Time // which ledger; zero before the first
	count  int64     // handoffs
	drift  int64     // of a snapshot: the most that an id is beyond its instant
}

// dsn names the file for the driver. A file that is not there is not made.
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
	return st, nil
}

// createStore begins a file where there is none.
func createStore(path string) (_ *store, err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create the index: %w", err)
	}
	if err := f.Close(); err != nil {
		return nil, fmt.Errorf("create the index: %w", err)
	}
	st, err := connect(path)
	if err != nil {
		return nil, fmt.Errorf("create the index: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("create the index: %w", err), st.close())
		}
	}()
	// The version goes into the header of the file itself, by a checkpoint:
	// inspect reads it there.
	script := "BEGIN;" + schema +
		fmt.Sprintf("PRAGMA application_id = %d; PRAGMA user_version = %d;", applicationID, schemaVersion) +
		"INSERT INTO position VALUES (1, 0, 0, '', '" + allWords + "', 0, 0); COMMIT; PRAGMA wal_checkpoint(truncate)"
	if _, err := st.db.Exec(script); err != nil {
		return nil, err
	}
	return st, st.load()
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

// load reads what is kept in memory. It passes over all handoffs, so a file that
// cannot be read is found here as a rule.
func (st *store) load() error {
	var ledger, known string
	var at, seq int64
	var indexed bool
	err := st.db.QueryRow("SELECT seq, at, ledger, words, drift, indexed FROM position").
		Scan(&seq, &at, &ledger, &known, &st.drift, &indexed)
	if err != nil {
		return fmt.Errorf("read its position: %w", err)
	}
	st.indexed.Store(indexed)
	if known != allWords {
		return errors.New("it is of another version of the protocol")
	}
	st.position.seq, st.position.at = uint64(seq), fromMicros(at)
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
	if err := st.counts.load(st.db); err != nil {
		return fmt.Errorf("count its handoffs: %w", err)
	}
	st.position.count = st.counts.total
	_, err = st.recordSizes()
	return err
}

// release ends a use that Index.current began.
func (st *store) release() { st.users.Done() }

// close waits for the readers.
func (st *store) close() error {
	st.users.Wait()
	return errors.Join(st.reads.Close(), st.db.Close())
}

// closeKeepingFile closes a store and keeps its file. SQLite copies the log into the file
// then; should another program have cut the file short meanwhile, what comes of it may be
// whole at first sight, so it is removed.
func (st *store) closeKeepingFile() error {
	changed := st.filesUnchanged()
	st.files.Lock()
	id := st.ids[0]
	st.files.Unlock()
	err := st.close()
	if changed == nil {
		return err
	}
	if now, _, e := identify(st.path); e == nil && now == id {
		return removeFiles(st.path)
	}
	return nil // it lies elsewhere, or nowhere
}

// currentPosition is how far the store is.
func (st *store) currentPosition() ledgerPosition {
	st.mu.RLock()
	defer st.mu.RUnlock()
	return st.position
}

// snapshot calls fn with a view of the file in which nothing changes, and
// returns up to where that is.
func (st *store) snapshot(ctx context.Context, fn func(view) error) (ledgerPosition, error) {
	m := ledgerPosition{ledger: st.currentPosition().ledger}
	tx, err := st.reads.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return m, err
	}
	defer func() { _ = tx.Rollback() }() // it has read, and nothing else
	var seq, at int64
	if err := tx.QueryRowContext(ctx, "SELECT seq, at, drift FROM position").Scan(&seq, &at, &m.drift); err != nil {
		return m, err
	}
	m.seq, m.at = uint64(seq), fromMicros(at)
	return m, fn(view{ctx: ctx, tx: tx, st: st, drift: m.drift})
}

// view is a snapshot.
type view struct {
	ctx   context.Context
	tx    *sql.Tx
	st    *store
	drift int64
}

// each calls fn at every row of an answer.
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

// Primary result codes of SQLite that mean the file, not the question.
const (
	sqliteReadOnly = 8
	sqliteIO       = 10
	sqliteCorrupt  = 11
	sqliteCantOpen = 14
	sqliteNotADB   = 26
)

// isDamage tells whether an error means that the file cannot be relied on.
func isDamage(err error) bool {
	var found *damageError
	if errors.As(err, &found) {
		return true
	}
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return false
	}
	switch e.Code() & 0xff {
	case sqliteReadOnly, sqliteIO, sqliteCorrupt, sqliteCantOpen, sqliteNotADB:
		return true
	}
	for _, sign := range []string{"no such table", "no such column", "malformed", "vtable constructor failed"} {
		if strings.Contains(e.Error(), sign) {
			return true
		}
	}
	return false
}

// toMicros is an instant as the file has it.
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
