package index

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/internal/index/ask"
)

const commonRows = 21_000

// commonWord is a store of commonRows handoffs that all have the word "common". A twentieth of them
// is at agent 0.
func commonWord(t *testing.T) *store {
	t.Helper()
	const agents = 20
	st, err := createStore(filepath.Join(t.TempDir(), "index.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.close() })
	steps := make([]step, commonRows)
	for i := range steps {
		agent, at := fmt.Sprintf("agent-%d", i%agents), int64(1_000_000+i)
		steps[i] = step{seq: uint64(i + 1), at: time.UnixMicro(at), ticket: uuid.New(), first: &firstEntry{words: "common"},
			after: handoffState{phase: 1, agent: agent, source: "source", target: agent, submitted: at, updated: at, conversation: "talk"}}
	}
	if err := st.apply(steps); err != nil {
		t.Fatal(err)
	}
	if err := st.addIndexes(t.Context()); err != nil {
		t.Fatal(err)
	}
	return st
}

// queryPlan is what SQLite does for a query, a line for each loop.
func queryPlan(t *testing.T, v view, query string, args []any) (plan []string) {
	t.Helper()
	err := v.each(func(rows *sql.Rows) error {
		var id, parent, cost int
		var line string
		err := rows.Scan(&id, &parent, &cost, &line)
		plan = append(plan, line)
		return err
	}, "EXPLAIN QUERY PLAN "+query, args...)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// TestSearchReadsOnce holds that a question has the search engine pass over what it finds once,
// and not once for each row: with a common word, or the beginning of one, that is the square of
// the handoffs.
func TestSearchReadsOnce(t *testing.T) {
	st := commonWord(t)
	agent := []string{"agent-0"}
	filters := map[string]ask.Filter{
		"text":         {},
		"agent":        {Agent: agent},
		"agents":       {Agent: []string{"agent-0", "agent-1", "agent-2"}},
		"party":        {To: agent},
		"phase":        {Source: []string{"source"}, Phase: phases[:1]},
		"conversation": {ConversationID: []string{"talk", "another"}},
		"times":        {Agent: agent, Since: time.UnixMicro(1_000_001), UpdatedSince: time.UnixMicro(1_000_001)},
	}
	_, err := st.snapshot(t.Context(), func(v view) error {
		for name, f := range filters {
			for _, f.Text = range []string{"common", "com*"} {
				s, err := v.selectionOf(f)
				if err != nil {
					return err
				}
				checkSearchedOnce(t, name+" in any order", queryPlan(t, v, "SELECT count(*) FROM "+s.from+" WHERE "+s.where(), s.args))
				for _, sort := range []ask.Sort{ask.SortNewest, ask.SortOldest, ask.SortUpdated} {
					query, args := s.pageQuery(sort, &cursor{id: 2_000_000, updated: 2_000_000}, 51)
					checkSearchedOnce(t, fmt.Sprintf("%s by %s", name, sort), queryPlan(t, v, query, args))
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// checkSearchedOnce checks that a plan has one pass of the search engine, and does not ask it for
// one row (which is what = means there).
func checkSearchedOnce(t *testing.T, question string, plan []string) {
	t.Helper()
	passes := 0
	for _, line := range plan {
		if strings.Contains(line, "SCAN text") {
			passes++
			if strings.Contains(line, ":=") || strings.Contains(line, "EXISTS") {
				passes = commonRows
			}
		}
	}
	if passes != 1 {
		t.Errorf("%s: the search engine passes over what it finds %d times, want once:\n%s", question, passes, strings.Join(plan, "\n"))
	}
}

// TestSearchOfFewRows holds that all paths to the rows of one agent find the same ones.
func TestSearchOfFewRows(t *testing.T) {
	st := commonWord(t)
	for _, text := range []string{"", "common", "com*"} {
		_, err := st.snapshot(t.Context(), func(v view) error {
			var tally tally
			if err := v.count(ask.CountQuery{Filter: ask.Filter{Agent: []string{"agent-0"}, Text: text}}, &tally); err != nil {
				return err
			}
			if want := int64(commonRows / 20); tally.total != want {
				t.Errorf("text %q at one agent: %d handoffs, want %d", text, tally.total, want)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestPagesUseIndexes holds that SQLite finds the rows of common questions by an index.
func TestPagesUseIndexes(t *testing.T) {
	st := commonWord(t)
	agent, open := []string{"agent-0"}, true
	filters := map[string]ask.Filter{
		"agent":           {Agent: agent},
		"open of a group": {Open: &open, Agent: []string{"agent-0", "agent-1"}},
		"open":            {Open: &open},
		"outcome":         {Outcome: outcomes[1:2]},
		"phase":           {Phase: phases[1:2]},
		"pair":            {Source: []string{"source"}, Target: agent, Priority: priorities[:1]},
		"conversation":    {ConversationID: []string{"talk"}, Agent: agent},
		"gate":            {Gate: gates[:1], Agent: agent},
		"party":           {From: agent},
	}
	_, err := st.snapshot(t.Context(), func(v view) error {
		for name, f := range filters {
			for _, sort := range ask.Sorts {
				s, err := v.selectionOf(f)
				if err != nil {
					return err
				}
				query, args := s.pageQuery(sort, nil, 51)
				plan := strings.Join(queryPlan(t, v, query, args), "\n")
				if !strings.Contains(plan, "SEARCH h ") {
					t.Errorf("%s by %s reads all rows:\n%s", name, sort, plan)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
