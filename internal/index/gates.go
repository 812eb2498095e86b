package index

import (
	"context"
	"database/sql"
	"time"

	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
)

// GateCount is how many handoffs wait at one kind of gate.
type GateCount struct {
	Gate    protocol.GateKind
	Waiting int64
	Since   time.Time // of the one that has waited for longest; zero where none waits
}

// GatesAnswer has all kinds of gates, in the order of protocol.GateKinds.
type GatesAnswer struct {
	ask.Position
	Gates []GateCount
}

// Gates returns how many handoffs wait at each kind of gate.
func (ix *Index) Gates(ctx context.Context, q ask.Question) (GatesAnswer, error) {
	return read(ctx, ix, q, func(v view, a *GatesAnswer) error {
		a.Gates = make([]GateCount, len(gates))
		for i, kind := range gates {
			a.Gates[i].Gate = kind
		}
		return v.each(func(rows *sql.Rows) error {
			var gate int
			var n, since int64
			if err := rows.Scan(&gate, &n, &since); err != nil {
				return err
			}
			if gate > 0 && gate <= len(a.Gates) {
				a.Gates[gate-1].Waiting, a.Gates[gate-1].Since = n, fromMicros(since)
			}
			return nil
		}, "SELECT gate, count(*), min(gated) FROM handoff WHERE gate <> 0 GROUP BY gate")
	})
}
