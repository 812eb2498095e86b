package index

import (
	"context"
	"database/sql"
	"slices"
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

// gates selects by what a handoff waits for before its next offer.
func (p *plan) gates(kinds []protocol.GateKind) {
	if len(kinds) == 0 {
		return
	}
	s := selected{column: "gate"}
	for _, kind := range kinds {
		s.numbers = append(s.numbers, int64(gates.number(kind)))
	}
	slices.Sort(s.numbers)
	s.numbers = slices.Compact(s.numbers)
	p.exact = append(p.exact, s)
}

// marks selects by what limits and deadlocks did to a handoff.
func (p *plan) marks(f ask.Filter) {
	asked := 0
	if f.Barred {
		asked |= markBarred
	}
	if f.Deadlocked {
		asked |= markDeadlocked
	}
	if asked == 0 {
		return
	}
	s := selected{column: "marks"}
	for marks := range marksEnd {
		if marks&asked == asked {
			s.numbers = append(s.numbers, int64(marks))
		}
	}
	p.exact = append(p.exact, s)
}
