package index

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/filelock"
)

// Evidence is the file of an index that does not run. It proves which entries a ledger had that
// may be damaged since, and is only read.
type Evidence struct {
	Path   string
	Ledger time.Time     // which ledger; zero is none
	Next   broker.Cursor // up to which the index has read it
	At     time.Time     // of the last entry that it has read

	lock *filelock.Lock
	db   *sql.DB
	name map[int64]string
}

// OpenEvidence opens the index in a file as evidence. It returns nil if this version can read no
// index there, and fails with ErrInUse if a process has it.
func OpenEvidence(ctx context.Context, path string) (*Evidence, error) {
	if found, err := fileVersion(path); err != nil || found != fileCurrent {
		return nil, nil
	}
	lock, err := lockFile(path)
	if err != nil {
		return nil, err
	}
	e := &Evidence{Path: path, lock: lock, name: map[int64]string{}}
	if err := e.open(ctx); err != nil { // a damaged index is no evidence
		_ = e.Close()
		return nil, nil
	}
	return e, nil
}

func (e *Evidence) open(ctx context.Context) error {
	st, err := connect(e.Path)
	if err != nil {
		return err
	}
	e.db = st.db
	_ = st.reads.Close()
	var next, ledger, known string
	var at int64
	if err := e.db.QueryRowContext(ctx, "SELECT next, at, ledger, words FROM position").Scan(&next, &at, &ledger, &known); err != nil {
		return err
	}
	if known != allWords {
		return errors.New("it is of another version of the protocol")
	}
	if e.Next, err = broker.ParseCursor(next); err != nil {
		return err
	}
	e.At = fromMicros(at)
	if ledger != "" {
		if e.Ledger, err = time.Parse(time.RFC3339Nano, ledger); err != nil {
			return err
		}
	}
	rows, err := e.db.QueryContext(ctx, "SELECT id, text FROM name")
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var id int64
		var text string
		if err := rows.Scan(&id, &text); err != nil {
			return err
		}
		e.name[id] = text
	}
	return rows.Err()
}

// Close closes the file.
func (e *Evidence) Close() error {
	if e == nil {
		return nil
	}
	var err error
	if e.db != nil {
		err = e.db.Close()
	}
	return errors.Join(err, e.lock.Close())
}

// Since returns the earliest change among the handoffs whose last entry is after seq in its partition;
// zero is none.
func (e *Evidence) Since(ctx context.Context, seq uint64) (time.Time, error) {
	var at int64
	err := e.db.QueryRowContext(ctx, "SELECT coalesce(min(updated), 0) FROM handoff WHERE seq > ? AND seq < ?",
		int64(seq), int64(broker.PartitionBase(broker.PartitionOf(seq)+1))).Scan(&at)
	return fromMicros(at), err
}

// Concerned calls fn with every handoff whose last entry is in one of the ranges. The first
// submitted comes first.
func (e *Evidence) Concerned(ctx context.Context, lost []broker.Range, fn func(broker.Remembered) error) error {
	return e.each(ctx, func(k broker.Remembered) error {
		if len(broker.Within(lost, k.Seq, k.Seq)) == 0 {
			return nil
		}
		return fn(k)
	})
}

func (e *Evidence) each(ctx context.Context, fn func(broker.Remembered) error) error {
	rows, err := e.db.QueryContext(ctx, `SELECT ticket, seq, outcome, source, target, type, priority, description, why,
		coalesce(workflow, ''), coalesce(conversation, ''), submitted, updated FROM handoff ORDER BY id`)
	if err != nil {
		return fmt.Errorf("read %s: %w", e.Path, err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var k broker.Remembered
		var ticket []byte
		var seq, source, target, submitted, updated int64
		var outcome, kind, priority int
		if err := rows.Scan(&ticket, &seq, &outcome, &source, &target, &kind, &priority, &k.Description, &k.Why,
			&k.Workflow, &k.Conversation, &submitted, &updated); err != nil {
			return fmt.Errorf("read %s: %w", e.Path, err)
		}
		id, err := uuid.FromBytes(ticket)
		if err != nil {
			continue
		}
		k.Ticket, k.Seq, k.Outcome, k.Type, k.Priority = id.String(), uint64(seq), outcomes.word(outcome), types.word(kind), priorities.word(priority)
		k.Source, _, _ = strings.Cut(e.name[source], ":")
		k.Target = e.name[target]
		k.Submitted, k.LastChange = fromMicros(submitted), fromMicros(updated)
		if err := fn(k); err != nil {
			return err
		}
	}
	return rows.Err()
}

// KeepAside renames the files of an index that does not run. A new one is made then, and the old one
// is kept under the name that is returned; empty is none.
func KeepAside(path, suffix string) (string, error) {
	kept := ""
	for _, s := range fileSuffixes {
		err := os.Rename(path+s, path+suffix+s)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		if err == nil && s == "" {
			kept = filepath.Clean(path + suffix)
		}
	}
	return kept, nil
}
