package index

import (
	"context"
	"database/sql"
)

// pruneAtOnce is how many handoffs one transaction removes.
const pruneAtOnce = 500

// prune removes handoffs whose last entry lies before sequence first, and returns how many. It
// looks among those that changed longest ago.
func (st *store) prune(ctx context.Context, first uint64) (int, error) {
	ctx = context.WithoutCancel(ctx)
	tx, err := st.db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }() // has no effect after the commit
	ids, cells, err := droppedRows(ctx, tx, first)
	if err != nil || len(ids) == 0 {
		return 0, err
	}
	for _, id := range ids {
		for _, statement := range []string{"DELETE FROM handoff WHERE id = ?", "DELETE FROM text WHERE rowid = ?", "DELETE FROM past WHERE handoff = ?"} {
			if _, err := tx.ExecContext(ctx, statement, id); err != nil {
				return 0, err
			}
		}
	}
	if err := tx.Commit(); err != nil {
		return 0, err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, at := range cells {
		st.counts.add(at, -1)
	}
	st.position.count = st.counts.total
	return len(ids), nil
}

// droppedRows finds the rows to remove. The handoffs that changed longest ago lie first in the
// ledger, except where clocks differ: a later call finds these.
func droppedRows(ctx context.Context, tx *sql.Tx, first uint64) (ids []int64, cells []cell, err error) {
	rows, err := tx.QueryContext(ctx, `SELECT id, source, target, agent, phase, outcome, priority, type FROM
		(SELECT * FROM handoff ORDER BY updated LIMIT ?) WHERE seq < ?`, pruneAtOnce, int64(first))
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var id int64
		var at cell
		if err := rows.Scan(&id, &at.source, &at.target, &at.agent, &at.phase, &at.outcome, &at.priority, &at.kind); err != nil {
			return nil, nil, err
		}
		ids, cells = append(ids, id), append(cells, at)
	}
	return ids, cells, rows.Err()
}
