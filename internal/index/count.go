package index

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	"github.com/agenthandoff/handoff/internal/index/ask"
)

// CountGroupsMax is how many groups an answer has at most, the largest ones.
const CountGroupsMax = 1_000

// Count returns how many handoffs a filter selects. For a filter of fields that counts are grouped
// by it reads no row.
func (ix *Index) Count(ctx context.Context, q ask.CountQuery) (ask.CountAnswer, error) {
	if err := q.Validate(); err != nil {
		return ask.CountAnswer{}, err
	}
	var a ask.CountAnswer
	var err error
	a.Position, err = ix.answer(ctx, q.Question, func(ctx context.Context, st *store) (ledgerPosition, error) {
		tally := newTally(st, q.By)
		m, done, err := ledgerPosition{}, false, error(nil)
		if !q.Had {
			m, done, err = st.countFields(q.Filter, tally)
		}
		if err == nil && !done {
			m, err = st.snapshot(ctx, func(v view) error { return v.count(q, tally) })
		}
		a.Count, a.Groups = tally.total, tally.groups(CountGroupsMax)
		return m, err
	})
	if err != nil {
		return ask.CountAnswer{}, err
	}
	return a, nil
}

// countFields counts by the counts in memory, if they suffice.
func (st *store) countFields(f ask.Filter, tally *tally) (ledgerPosition, bool, error) {
	st.mu.RLock() // before the look-up of names: the names up to the position are there
	defer st.mu.RUnlock()
	p, err := st.planOf(f)
	if err != nil || !p.onlyFields() {
		return ledgerPosition{}, false, err
	}
	if len(p.fields) == 0 && len(tally.by) == 0 {
		tally.total = st.counts.total
	} else {
		st.counts.eachCell(p, tally.add)
	}
	return st.position, true, nil
}

// count counts rows. It reads only the columns of the question.
func (v view) count(q ask.CountQuery, tally *tally) error {
	p, err := v.st.planOf(q.Filter)
	if err != nil || p.matchesNone {
		return err
	}
	from, t, err := v.rowsQuery(p)
	if err != nil {
		return err
	}
	if err := v.countColumns(from, t, "h.target", tally.by, tally.count); err != nil || !q.Had {
		return err
	}
	// Each agent counts once per handoff: past agents count unless they have it now.
	now, before := t, t
	now.text = append(slices.Clone(t.text), "h.agent <> 0")
	before.text = append(slices.Clone(t.text), "p.agent <> h.agent")
	if err := v.countColumns(from, now, "h.agent", tally.by, tally.countHad); err != nil {
		return err
	}
	return v.countColumns(from+" JOIN past p ON p.handoff = h.id", before, "p.agent", tally.by, tally.countHad)
}

// countColumns counts rows by fields; target is the column to use for ask.ByTarget.
func (v view) countColumns(from string, t terms, target string, by []ask.By, add func(groupKey, int64)) error {
	columns := make([]string, 0, len(by))
	for _, b := range by {
		column := "h." + string(b)
		if b == ask.ByTarget {
			column = target
		}
		columns = append(columns, column)
	}
	query := fmt.Sprintf("SELECT %s FROM %s WHERE %s", strings.Join(append(columns, "count(*)"), ", "), from, t.where())
	if len(by) > 0 {
		query += " GROUP BY " + strings.Join(columns, ", ")
	}
	return v.each(func(rows *sql.Rows) error {
		var n int64
		var key groupKey
		into := make([]any, 0, len(by)+1)
		for i := range by {
			into = append(into, &key[i])
		}
		if err := rows.Scan(append(into, &n)...); err != nil {
			return err
		}
		add(key, n)
		return nil
	}, query, t.args...)
}

// groupKey has the numbers of the fields to count by.
type groupKey [ask.CountByMax]int32

// tally adds up groups.
type tally struct {
	st    *store
	by    []ask.By
	total int64
	sums  map[groupKey]int64
	had   map[groupKey]int64
}

func newTally(st *store, by []ask.By) *tally {
	return &tally{st: st, by: by, sums: map[groupKey]int64{}, had: map[groupKey]int64{}}
}

func (t *tally) add(at cell, n int64) {
	var key groupKey
	for i, by := range t.by {
		key[i] = at.field(by)
	}
	t.count(key, n)
}

func (t *tally) count(key groupKey, n int64) {
	t.total += n
	if len(t.by) > 0 {
		t.sums[key] += n
	}
}

func (t *tally) countHad(key groupKey, n int64) {
	t.had[key] += n
	t.sums[key] += 0 // it has a group, even if no handoff names it as its target
}

func (c cell) field(by ask.By) int32 {
	switch by {
	case ask.BySource:
		return c.source
	case ask.ByTarget:
		return c.target
	case ask.ByAgent:
		return c.agent
	case ask.ByPhase:
		return int32(c.phase)
	case ask.ByOutcome:
		return int32(c.outcome)
	case ask.ByPriority:
		return int32(c.priority)
	}
	return int32(c.kind)
}

// groups returns the largest groups, the largest first.
func (t *tally) groups(most int) []ask.CountGroup {
	if len(t.by) == 0 {
		return nil
	}
	groups := make([]ask.CountGroup, 0, len(t.sums))
	for key, n := range t.sums {
		g := ask.CountGroup{Count: n, Had: t.had[key], Values: make([]string, len(t.by))}
		for i, by := range t.by {
			g.Values[i] = t.st.wordOf(by, key[i])
		}
		groups = append(groups, g)
	}
	sortGroups(groups)
	return groups[:min(len(groups), most)]
}

// sortGroups sorts groups, the largest first, equal ones by their values.
func sortGroups(groups []ask.CountGroup) {
	slices.SortFunc(groups, func(a, b ask.CountGroup) int {
		if order := cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(b.Had, a.Had)); order != 0 {
			return order
		}
		return slices.Compare(a.Values, b.Values)
	})
}

// wordOf returns the word for a number of a field.
func (st *store) wordOf(by ask.By, number int32) string {
	switch by {
	case ask.ByPhase:
		return string(phases.word(int(number)))
	case ask.ByOutcome:
		return string(outcomes.word(int(number)))
	case ask.ByPriority:
		return string(priorities.word(int(number)))
	case ask.ByType:
		return string(types.word(int(number)))
	}
	return st.names.textOf(number)
}
