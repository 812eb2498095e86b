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

// countGroupsMax is how many groups an answer has at most, the largest ones.
const countGroupsMax = 1_000

// Count returns how many handoffs a filter selects. It reads the rows of all of them, except where
// the table of counts has the fields of the question.
func (ix *Index) Count(ctx context.Context, q ask.CountQuery) (ask.CountAnswer, error) {
	if err := q.Validate(); err != nil {
		return ask.CountAnswer{}, err
	}
	return read(ctx, ix, q.Question, func(v view, a *ask.CountAnswer) error {
		t := tally{st: v.st, by: q.By, sums: map[groupKey]int64{}, had: map[groupKey]int64{}}
		err := v.count(q, &t)
		a.Count, a.Groups = t.total, t.groups(countGroupsMax)
		return err
	})
}

func (v view) count(q ask.CountQuery, tally *tally) error {
	s, err := v.selectionOf(q.Filter)
	if err != nil {
		return err
	}
	for _, by := range q.By {
		s.countable = s.countable && by != ask.BySource && by != ask.ByTarget
	}
	if s.countable {
		s.from = "tally h"
		return v.countColumns(s, "coalesce(sum(n), 0)", "", tally.by, tally.count)
	}
	if err := v.countColumns(s, "count(*)", "h.target", tally.by, tally.count); err != nil || !q.Had {
		return err
	}
	// Each agent counts once per handoff: past agents count unless they have it now.
	now, before := s, s
	now.text = append(slices.Clone(s.text), "h.agent <> 0")
	before.text = append(slices.Clone(s.text), "p.agent <> h.agent")
	before.from += " JOIN past p ON p.handoff = h.id"
	if err := v.countColumns(now, "count(*)", "h.agent", tally.by, tally.countHad); err != nil {
		return err
	}
	return v.countColumns(before, "count(*)", "p.agent", tally.by, tally.countHad)
}

// countColumns counts rows by fields; target is the column to use for ask.ByTarget.
func (v view) countColumns(s selection, figure, target string, by []ask.By, add func(groupKey, int64)) error {
	columns := make([]string, 0, len(by))
	for _, b := range by {
		column := "h." + string(b)
		if b == ask.ByTarget {
			column = target
		}
		columns = append(columns, column)
	}
	query := fmt.Sprintf("SELECT %s FROM %s WHERE %s", strings.Join(append(columns, figure), ", "), s.from, s.where())
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
	}, query, s.args...)
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

func (t *tally) count(key groupKey, n int64) {
	t.total += n
	if len(t.by) > 0 && n > 0 {
		t.sums[key] += n
	}
}

func (t *tally) countHad(key groupKey, n int64) {
	t.had[key] += n
	t.sums[key] += 0 // it has a group, even if no handoff names it as its target
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
	return firstOf(groups, most, largestFirst)
}

// largestFirst is the order of groups; equal ones are by their values.
func largestFirst(a, b ask.CountGroup) int {
	return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(b.Had, a.Had), slices.Compare(a.Values, b.Values))
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
