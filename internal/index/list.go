package index

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/internal/index/ask"
)

// List returns a page of handoffs. Its errors are *protocol.Error for a refused question, and
// ErrRebuilding.
func (ix *Index) List(ctx context.Context, q ask.ListQuery) (ask.ListAnswer, error) {
	if err := q.Validate(); err != nil {
		return ask.ListAnswer{}, err
	}
	after, err := decodeCursor(q.Cursor, listHash(q))
	if err != nil {
		return ask.ListAnswer{}, err
	}
	return read(ctx, ix, q.Question, func(v view, a *ask.ListAnswer) error {
		a.Handoffs = []ask.Row{}
		p, err := v.st.planOf(q.Filter)
		if err != nil || p.matchesNone {
			return err
		}
		a.Handoffs, a.Cursor, err = pageOf(v, q.Limit, listHash(q), v.plainRow, func(limit int) (string, []any, error) {
			return v.pageQuery(q, p, after, limit)
		})
		return err
	})
}

// pageQuery is the SQL of a page.
func (v view) pageQuery(q ask.ListQuery, p plan, at *cursor, limit int) (string, []any, error) {
	if sortOf(q) == ask.SortUpdated {
		return v.updatedQuery(p, at, limit)
	}
	order, beyond := "DESC", "<"
	if sortOf(q) == ask.SortOldest {
		order, beyond = "", ">"
	}
	w, err := v.accessPathOf(p)
	if err != nil {
		return "", nil, err
	}
	if w.kind == pathParty && v.shouldWalk(w, limit) {
		w = accessPath{kind: pathAllRows}
	}
	ids := func(from, id string, t terms) (string, []any) {
		p.timeBounds(&t, id, v.drift)
		if at != nil {
			t.add(id+" "+beyond+" ?", at.id)
		}
		p.residual(&t, w.columns)
		return fmt.Sprintf("SELECT %s AS id FROM %s WHERE %s ORDER BY %s %s LIMIT %d", id, from, t.where(), id, order, limit), t.args
	}
	var query string
	var args []any
	switch {
	case w.kind == pathSearch:
		query, args = ids(fromSearch, "text.rowid", p.conditions(w))
	case w.kind == pathAllRows:
		query, args = ids("handoff h", "h.id", terms{})
	case w.kind == pathParty || len(w.streams) > streamsMax:
		from, t := v.pathQuery(p, w)
		if at != nil {
			t.add("h.id "+beyond+" ?", at.id)
		}
		query, args = fmt.Sprintf("SELECT h.id AS id FROM %s WHERE %s ORDER BY +h.id %s LIMIT %d", from, t.where(), order, limit), t.args
	default:
		parts := make([]string, len(w.streams))
		for i, stream := range w.streams {
			part, more := ids("handoff h", "h.id", stream)
			parts[i], args = "SELECT id FROM ("+part+")", append(args, more...)
		}
		query = strings.Join(parts, " UNION ALL ") + fmt.Sprintf(" ORDER BY id %s LIMIT %d", order, limit)
	}
	return fmt.Sprintf("SELECT %s FROM handoff WHERE id IN (%s) ORDER BY id %s", rowColumns, query, order), args, nil
}

// updatedQuery is the SQL of a page by the last change. It walks the rows from the last change on
// if the filter selects many, else it sorts them.
func (v view) updatedQuery(p plan, at *cursor, limit int) (string, []any, error) {
	w, err := v.accessPathOf(p)
	if err != nil {
		return "", nil, err
	}
	walk := w.kind == pathAllRows || v.shouldWalk(w, limit)
	if w.kind == pathSearch && len(w.among.text) == 0 {
		var many bool
		err := v.tx.QueryRowContext(v.ctx, "SELECT count(*) > ? FROM (SELECT 1 FROM text WHERE text MATCH ? LIMIT ?)",
			sortRows, p.match, sortRows+1).Scan(&many)
		if err != nil {
			return "", nil, err
		}
		walk = many
	}
	from, t := "handoff h", terms{}
	if walk {
		if p.updated > 0 {
			t.add("h.updated >= ?", p.updated)
		}
		p.residual(&t, nil)
		p.matchText(&t)
	} else {
		from, t = v.pathQuery(p, w)
	}
	if at != nil {
		t.add("(h.updated, h.id) < (?, ?)", at.updated, at.id)
	}
	by := "+h.updated DESC, +h.id DESC"
	if walk {
		by = "h.updated DESC, h.id DESC"
	}
	return fmt.Sprintf("SELECT %s FROM handoff WHERE id IN (SELECT h.id FROM %s WHERE %s ORDER BY %s LIMIT %d) ORDER BY updated DESC, id DESC",
		rowColumns, from, t.where(), by, limit), t.args, nil
}

// shouldWalk tells whether to walk over all rows in order rather than sort those of an access path.
// Sorting reads all of its rows; walking reads rows until the page is full.
func (v view) shouldWalk(w accessPath, limit int) bool {
	return w.rows > 0 && w.rows*w.rows > int64(limit)*v.st.currentPosition().count
}

const rowColumns = `id, ticket, seq, phase, outcome, reason, type, priority, source, target, agent, holder, attempts, reroutes, level,
	coalesce(workflow, ''), coalesce(conversation, ''), coalesce(task, ''), coalesce(variant, ''), parent, family, return_of, origin, description, why,
	submitted, updated, closed, queue_ms, work_ms, whole_ms, tokens, cost, gate, gated, marks`

// plainRow reads the columns of rowColumns.
func (v view) plainRow(rows *sql.Rows) (ask.Row, cursor, error) { return v.row(rows) }

// row reads the columns of rowColumns, and more columns after them.
func (v view) row(rows *sql.Rows, more ...any) (ask.Row, cursor, error) {
	var r ask.Row
	var at cursor
	var ticket, parent, family, returnOf, origin []byte
	var seq, submitted, closed, gated int64
	var phase, outcome, kind, priority, gate, marks int
	var source, target, agent int32
	into := append([]any{&at.id, &ticket, &seq, &phase, &outcome, &r.Reason, &kind, &priority, &source, &target, &agent, &r.Holder,
		&r.Attempts, &r.Reroutes, &r.Level, &r.WorkflowID, &r.ConversationID, &r.TaskID, &r.Variant, &parent, &family, &returnOf, &origin,
		&r.Description, &r.Why, &submitted, &at.updated, &closed, &r.QueueMS, &r.WorkMS, &r.WholeMS, &r.Tokens, &r.CostMicros, &gate, &gated, &marks}, more...)
	if err := rows.Scan(into...); err != nil {
		return ask.Row{}, cursor{}, err
	}
	for _, t := range []struct {
		from []byte
		to   *string
	}{{ticket, &r.Ticket}, {parent, &r.Parent}, {family, &r.Group}, {returnOf, &r.ReturnOf}, {origin, &r.Origin}} {
		if t.from == nil {
			continue
		}
		id, err := uuid.FromBytes(t.from)
		if err != nil {
			return ask.Row{}, cursor{}, damagef("a ticket of %d bytes", len(t.from))
		}
		*t.to = id.String()
	}
	r.Seq = uint64(seq)
	r.Phase, r.Outcome, r.Type, r.Priority = phases.word(phase), outcomes.word(outcome), types.word(kind), priorities.word(priority)
	r.Closed = outcome != 0
	r.Gate, r.GatedAt = gates.word(gate), fromMicros(gated)
	r.Barred, r.Deadlocked = marks&markBarred != 0, marks&markDeadlocked != 0
	r.Source, r.Target, r.Agent = v.st.names.textOf(source), v.st.names.textOf(target), v.st.names.textOf(agent)
	r.SubmittedAt, r.UpdatedAt, r.ClosedAt = fromMicros(submitted), fromMicros(at.updated), fromMicros(closed)
	return r, at, nil
}
