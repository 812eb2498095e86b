package index

import (
	"cmp"
	"database/sql"

	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
)

// governanceSums collects the effects of gates, limits and deadlocks on handoffs.
type governanceSums struct {
	barred    map[barredHandOff]int64
	gates     []gateSum // by protocol.GateKinds
	budgets   []ask.BudgetFigures
	deadlocks int64
}

type barredHandOff struct {
	from     int32
	code, to string
}

type gateSum struct {
	f      ask.GateFigures
	waited histogram
}

func newGovernanceSums() governanceSums {
	s := governanceSums{barred: map[barredHandOff]int64{}, gates: make([]gateSum, len(gates)), budgets: make([]ask.BudgetFigures, len(protocol.Dimensions))}
	for i, kind := range gates {
		s.gates[i].f.Gate = kind
	}
	for i, name := range protocol.Dimensions {
		s.budgets[i].Limit = name
	}
	return s
}

// add adds a handoff by its columns. agent is the one that has it, or had it last: the source of
// its hand-offs.
func (s *governanceSums) add(agent int32, gate int, column sql.NullString) error {
	if gate > 0 && gate <= len(s.gates) {
		s.gates[gate-1].f.Waiting++
	}
	g, err := parseGoverned(column)
	if err != nil {
		return damagef("governance: %w", err)
	}
	for _, bar := range g.Barred {
		s.barred[barredHandOff{agent, bar.Code, bar.To}] += bar.N
	}
	for _, row := range g.Gates {
		if row.Kind < 1 || row.Kind > len(s.gates) {
			continue
		}
		sum := &s.gates[row.Kind-1]
		sum.f.Passed, sum.f.Denied = sum.f.Passed+row.Passed, sum.f.Denied+row.Denied
		sum.f.Lapsed, sum.f.Ended = sum.f.Lapsed+row.Lapsed, sum.f.Ended+row.Ended
		for i := range row.Waits {
			sum.waited.add(&row.Waits[i])
		}
	}
	s.deadlocks += g.Deadlocks
	if g.Account != nil {
		s.addAccount(g.Account)
	}
	return nil
}

func (s *governanceSums) addAccount(a *accountRow) {
	for i, b := range a.Dimensions {
		if b == nil {
			continue
		}
		sum := &s.budgets[i]
		sum.Handoffs++
		if b.Over > 0 {
			sum.OverHandoffs++
		}
		if a.First {
			sum.Granted, sum.Used = sum.Granted+b.Granted, sum.Used+b.Used
			sum.Reserved, sum.Over = sum.Reserved+b.Reserved, sum.Over+b.Over
		}
	}
}

// answer fills the tables of governance.
func (s *governanceSums) answer(st *store, top int, a *ask.FiguresAnswer) {
	a.Barred, a.Gates, a.Budgets, a.Deadlocks = []ask.BarredCount{}, []ask.GateFigures{}, []ask.BudgetFigures{}, s.deadlocks
	for b, n := range s.barred {
		a.Barred = append(a.Barred, ask.BarredCount{Code: b.code, From: st.names.textOf(b.from), To: b.to, Count: n})
	}
	a.Barred = firstOf(a.Barred, top, func(x, y ask.BarredCount) int {
		return cmp.Or(cmp.Compare(y.Count, x.Count), cmp.Compare(x.Code, y.Code), cmp.Compare(x.From, y.From), cmp.Compare(x.To, y.To))
	})
	for _, sum := range s.gates {
		sum.f.Waited = sum.waited.durations()
		if sum.f.Waiting+sum.f.Passed+sum.f.Denied+sum.f.Lapsed+sum.f.Ended > 0 {
			a.Gates = append(a.Gates, sum.f)
		}
	}
	for _, sum := range s.budgets {
		if sum.Handoffs > 0 {
			a.Budgets = append(a.Budgets, sum)
		}
	}
}
