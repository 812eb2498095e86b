package index

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

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
	st   *store
}

// OpenEvidence opens the index in a file as evidence. It returns nil if this version can read no
// index there, and fails with ErrInUse if a process has it.
func OpenEvidence(path string) (*Evidence, error) {
	if found, err := fileVersion(path); err != nil || found != fileCurrent {
		return nil, nil
	}
	lock, err := lockFile(path)
	if err != nil {
		return nil, err
	}
	st, err := openStore(path)
	if err != nil { // a damaged index is no evidence
		_ = lock.Close()
		return nil, nil
	}
	return &Evidence{Path: path, Ledger: st.position.ledger, Next: st.position.next, At: st.position.at, lock: lock, st: st}, nil
}

// Close closes the file.
func (e *Evidence) Close() error {
	if e == nil {
		return nil
	}
	return errors.Join(e.st.close(), e.lock.Close())
}

// Since returns the earliest change among the handoffs whose last entry is after seq in its partition;
// zero is none.
func (e *Evidence) Since(ctx context.Context, seq uint64) (time.Time, error) {
	var at int64
	err := e.st.db.QueryRowContext(ctx, "SELECT coalesce(min(updated), 0) FROM handoff WHERE seq > ? AND seq < ?",
		int64(seq), int64(broker.PartitionBase(broker.PartitionOf(seq)+1))).Scan(&at)
	return fromMicros(at), err
}

// Concerned calls fn with every handoff whose last entry is in one of the ranges. The first
// submitted comes first.
func (e *Evidence) Concerned(ctx context.Context, lost []broker.Range, fn func(broker.Remembered) error) error {
	_, err := e.st.snapshot(ctx, func(v view) error {
		return v.each(func(rows *sql.Rows) error {
			r, _, err := v.row(rows)
			if err != nil || len(broker.Within(lost, r.Seq, r.Seq)) == 0 {
				return err
			}
			return fn(broker.Remembered{Ticket: r.Ticket, Seq: r.Seq, Outcome: r.Outcome, Source: r.Source, Target: r.Target, Type: r.Type, Priority: r.Priority,
				Description: r.Description, Why: r.Why, Workflow: r.WorkflowID, Conversation: r.ConversationID, Submitted: r.SubmittedAt, LastChange: r.UpdatedAt})
		}, "SELECT "+rowColumns+" FROM handoff ORDER BY id")
	})
	if err != nil {
		return fmt.Errorf("read %s: %w", e.Path, err)
	}
	return nil
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
