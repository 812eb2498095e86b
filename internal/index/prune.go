package index

import (
	"context"
	"fmt"
	"strings"

	"github.com/agenthandoff/handoff/broker"
)

// pruneAtOnce is how many handoffs one transaction removes.
const pruneAtOnce = 500

// prune removes handoffs whose last entry the ledger no longer has, and returns how many. It
// looks among those that changed longest ago: they lie first in the ledger, except where clocks
// differ, and a later call finds these.
func (st *store) prune(ctx context.Context, ledger broker.LedgerInfo) (int64, error) {
	ctx = context.WithoutCancel(ctx)
	tx, err := st.db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }() // has no effect after the commit
	var before []string                  // in each partition
	for p, info := range ledger.Partitions() {
		before = append(before, fmt.Sprintf("seq > %d AND seq < %d", broker.PartitionBase(p), info.First))
	}
	dropped := " IN (SELECT id FROM (SELECT id, seq FROM handoff ORDER BY updated LIMIT ?) WHERE " + strings.Join(before, " OR ") + ")"
	var n int64
	for _, statement := range []string{
		`INSERT INTO tally SELECT agent, outcome, phase, priority, type, -count(*) FROM handoff WHERE id` + dropped +
			` GROUP BY 1, 2, 3, 4, 5 ON CONFLICT DO UPDATE SET n = n + excluded.n`,
		`INSERT INTO hour SELECT submitted / 3600000000, 0, -count(*) FROM handoff WHERE id` + dropped +
			` GROUP BY 1 ON CONFLICT DO UPDATE SET n = n + excluded.n`,
		`INSERT INTO hour SELECT closed / 3600000000, outcome, -count(*) FROM handoff WHERE outcome <> 0 AND id` + dropped +
			` GROUP BY 1, 2 ON CONFLICT DO UPDATE SET n = n + excluded.n`,
		"DELETE FROM text WHERE rowid" + dropped,
		"DELETE FROM past WHERE handoff" + dropped,
		"DELETE FROM handoff WHERE id" + dropped,
	} {
		result, err := tx.ExecContext(ctx, statement, pruneAtOnce)
		if err != nil {
			return 0, err
		}
		if n, err = result.RowsAffected(); err != nil {
			return 0, err
		}
	}
	return n, tx.Commit()
}
