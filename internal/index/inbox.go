package index

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// inboxReasons are the reasons in the order of their numbers in the file.
var inboxReasons = words[lifecycle.InboxReason]{lifecycle.InboxOffer, lifecycle.InboxEscalation, lifecycle.InboxHeld,
	lifecycle.InboxQuestion, lifecycle.InboxReview, lifecycle.InboxApproval, lifecycle.InboxBudget}

// The numbers of InboxQuestion, which the schema repeats, InboxReview and InboxApproval.
const (
	questionNumber = 4
	reviewNumber   = 5
	approvalNumber = 6
)

// The values of the column dead; 0 is no dead letter.
const (
	deadLetter   = 1
	deadRedriven = 2
)

// inboxReasonOf is the reason for which an inbox lists an open handoff: that of its agent, or of
// the source for a question, or the agent that a gate asks. The query decides who answers for an unregistered source.
func inboxReasonOf(s protocol.State) lifecycle.InboxReason {
	if asked := lifecycle.AskedAtGate(s); asked != "" {
		return lifecycle.InboxReasonFor(s, asked, nil)
	}
	if s.Phase != protocol.Conditional || s.Closed {
		return lifecycle.InboxReasonFor(s, s.Agent, nil)
	}
	asked := s.Source
	if asked == s.Agent {
		asked = protocol.Human
	}
	registered := &lifecycle.Directory{Agents: map[string]*protocol.Profile{s.Source: {}}}
	return lifecycle.InboxReasonFor(s, asked, registered)
}

// Waiting returns a page of the inbox of an agent, or of a person, or the number of its handoffs.
func (ix *Index) Waiting(ctx context.Context, q ask.WaitingQuery) (ask.WaitingAnswer, error) {
	if err := q.Validate(); err != nil {
		return ask.WaitingAnswer{}, err
	}
	hash := hashOf(q.Agent, "waiting")
	after, err := decodeCursor(q.Cursor, hash)
	if err != nil {
		return ask.WaitingAnswer{}, err
	}
	return read(ctx, ix, q.Question, func(v view, a *ask.WaitingAnswer) (err error) {
		if q.Count {
			return v.countWaiting(q, a)
		}
		row := func(rows *sql.Rows) (ask.WaitingRow, cursor, error) {
			var reason int
			row, at, err := v.row(rows, &reason)
			return ask.WaitingRow{Row: row, Inbox: inboxReasons.word(reason)}, at, err
		}
		a.Handoffs, a.Cursor, err = pageOf(v, q.Limit, hash, row, func(limit int) (string, []any) {
			var from int64
			if after != nil {
				from = after.id
			}
			return fmt.Sprintf(`SELECT %s, CASE waits WHEN 0 THEN %d ELSE waits END FROM handoff WHERE id IN
				(SELECT id FROM (%s) WHERE id > ? ORDER BY id LIMIT %d) ORDER BY id`, rowColumns, reviewNumber,
				strings.Join(v.waiting(q, "id"), " UNION ALL "), limit), []any{from}
		})
		return err
	})
}

// countWaiting counts the handoffs of an inbox. The parts are in the order of their last change as far
// as an index has it, so that the count is bounded and the first of them is among the counted.
func (v view) countWaiting(q ask.WaitingQuery, a *ask.WaitingAnswer) error {
	var parts []string
	for _, part := range v.waiting(q, "updated") {
		if q.Free {
			part += " AND holder = ''"
		}
		parts = append(parts, fmt.Sprintf("SELECT * FROM (%s LIMIT %d)", part, ask.CountedMax+1))
	}
	a.Handoffs = []ask.WaitingRow{}
	return v.each(func(rows *sql.Rows) error {
		var since int64
		err := rows.Scan(&a.Counted, &since)
		a.Counted, a.Since = min(a.Counted, ask.CountedMax+1), fromMicros(since)
		return err
	}, "SELECT count(*), coalesce(min(updated), 0) FROM ("+strings.Join(parts, " UNION ALL ")+")")
}

// waiting are the queries whose results together are an inbox: each selects a column.
func (v view) waiting(q ask.WaitingQuery, column string) []string {
	agent, known := v.st.names.find(q.Agent)
	if !known {
		agent = -1
	}
	asked := fmt.Sprintf("source = %d AND source <> agent", agent)
	if q.Agent == protocol.Human {
		asked = "(source = agent OR source NOT IN (" + v.numbers(q.Registered) + "))"
	}
	from := "SELECT " + column + " FROM handoff WHERE "
	parts := []string{
		from + fmt.Sprintf("inbox <> 0 AND inbox = %d", agent),
		from + fmt.Sprintf("waits = %d AND %s", questionNumber, asked),
		from + fmt.Sprintf("agent = %d AND outcome = 0 AND waits BETWEEN 1 AND %d", agent, questionNumber-1),
	}
	if below := v.numbers(q.Below); below != "" {
		parts = append(parts, from+fmt.Sprintf("inbox <> 0 AND waits = %d AND inbox IN (%s) AND source <> %d", approvalNumber, below, agent))
	}
	return parts
}

// numbers lists the numbers of agents for SQL.
func (v view) numbers(agents []string) string {
	numbers := make([]string, 0, len(agents))
	for _, agent := range agents {
		if id, known := v.st.names.find(agent); known {
			numbers = append(numbers, strconv.Itoa(int(id)))
		}
	}
	return strings.Join(numbers, ",")
}

// sources returns the sources to select: schedule is all schedules, and signal all rules.
func (v view) sources(asked ...string) (all []string) {
	for _, source := range asked {
		if all = append(all, source); source == protocol.ScheduleSource || source == protocol.SignalSource {
			all = append(all, v.st.names.under(source+":")...)
		}
	}
	return all
}

// Dead returns a page of dead letters, the last to close first.
func (ix *Index) Dead(ctx context.Context, q ask.DeadQuery) (ask.DeadAnswer, error) {
	if err := q.Validate(); err != nil {
		return ask.DeadAnswer{}, err
	}
	key := q
	key.Question, key.Limit, key.Cursor = ask.Question{}, 0, ""
	hash := hashOf(key, "dead")
	after, err := decodeCursor(q.Cursor, hash)
	if err != nil {
		return ask.DeadAnswer{}, err
	}
	return read(ctx, ix, q.Question, func(v view, a *ask.DeadAnswer) (err error) {
		row := func(rows *sql.Rows) (ask.Row, cursor, error) {
			var closed int64
			row, at, err := v.row(rows, &closed)
			at.updated = closed
			return row, at, err
		}
		a.Handoffs, a.Cursor, err = pageOf(v, q.Limit, hash, row, func(limit int) (string, []any) {
			t := v.deadTerms(q, after)
			return fmt.Sprintf("SELECT %s, closed FROM handoff WHERE %s ORDER BY closed DESC, id DESC LIMIT %d", rowColumns, t.where(), limit), t.args
		})
		return err
	})
}

func (v view) deadTerms(q ask.DeadQuery, after *cursor) terms {
	var t terms
	t.add("dead <> 0") // the condition of the index
	if !q.Redriven {
		t.add(fmt.Sprintf("dead = %d", deadLetter))
	}
	if q.Agent != "" {
		t.add("+agent IN (" + v.numbers([]string{q.Agent}) + ")")
	}
	if q.Source != "" {
		t.add("+source IN (" + v.numbers(v.sources(q.Source)) + ")")
	}
	if q.Outcome != "" {
		t.add("+outcome = ?", outcomes.number(q.Outcome))
	}
	if !q.Since.IsZero() {
		t.add("closed >= ?", toMicros(q.Since))
	}
	if after != nil {
		t.add("(closed, id) < (?, ?)", after.updated, after.id)
	}
	return t
}

// pageOf reads a page of rows, up to the limits of an answer, and the cursor that continues after
// it; the cursor is empty on the last one. query makes the SQL of so many rows.
func pageOf[R any](v view, limit int, hash []byte, row func(*sql.Rows) (R, cursor, error), query func(limit int) (string, []any)) (page []R, next string, err error) {
	limit = cmp.Or(limit, ask.PageDefault)
	text, args := query(limit + 1) // one more, to know whether there is another page
	page = []R{}
	var last cursor
	bytes := 0
	err = v.each(func(rows *sql.Rows) error {
		if next != "" {
			return nil
		}
		r, at, err := row(rows)
		if err != nil {
			return err
		}
		body, err := json.Marshal(r)
		if err != nil {
			return err
		}
		if len(page) == limit || len(page) > 0 && bytes+len(body) > ask.PageBytesMax {
			next = encodeCursor(last, hash)
			return nil
		}
		page, bytes, last = append(page, r), bytes+len(body)+1, at
		return nil
	}, text, args...)
	return page, next, err
}
