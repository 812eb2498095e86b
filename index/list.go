package index

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/protocol"
)

// List is a page of handoffs. Its errors are *protocol.Error where the question
// is refused, and ErrRebuilding.
func (ix *Index) List(ctx context.Context, q ListQuery) (ListAnswer, error) {
	if err := q.check(); err != nil {
		return ListAnswer{}, err
	}
	at, err := q.place()
	if err != nil {
		return ListAnswer{}, err
	}
	var a ListAnswer
	a.Stand, err = ix.answer(ctx, q.Ask, reading(func(v view) error {
		a.Handoffs, a.Cursor = []Row{}, ""
		p, err := v.st.planOf(q.Filter)
		if err != nil || p.never {
			return err
		}
		return v.page(q, p, at, &a)
	}))
	if err != nil {
		return ListAnswer{}, err
	}
	return a, nil
}

func (q ListQuery) check() error {
	if q.Limit < 0 || q.Limit > PageMax {
		return protocol.Errorf(protocol.CodeInvalid, "limit", "must be from 1 to %d, not %d", PageMax, q.Limit)
	}
	if err := known("sort", []Sort{q.sort()}, Sorts); err != nil {
		return err
	}
	return q.Filter.check()
}

func (q ListQuery) limit() int {
	if q.Limit == 0 {
		return PageDefault
	}
	return q.Limit
}

// page reads the rows of a page, and one more to know whether there is another.
func (v view) page(q ListQuery, p plan, at *place, a *ListAnswer) error {
	query, args, err := v.pageQuery(q, p, at, q.limit()+1)
	if err != nil {
		return err
	}
	bytes, more := 0, false
	var last place
	err = v.each(func(rows *sql.Rows) error {
		row, place, err := v.row(rows)
		if err != nil || more {
			return err
		}
		size, err := json.Marshal(row)
		if err != nil {
			return err
		}
		if len(a.Handoffs) == q.limit() || bytes+len(size) > PageBytesMax && len(a.Handoffs) > 0 {
			more = true
			return nil
		}
		bytes += len(size) + 1
		a.Handoffs, last = append(a.Handoffs, row), place
		return nil
	}, query, args...)
	if more {
		a.Cursor = q.cursor(last)
	}
	return err
}

// pageQuery is the SQL of a page.
func (v view) pageQuery(q ListQuery, p plan, at *place, limit int) (string, []any, error) {
	if q.sort() == SortUpdated {
		return v.updatedQuery(p, at, limit)
	}
	order, beyond := "DESC", "<"
	if q.sort() == SortOldest {
		order, beyond = "", ">"
	}
	w, err := v.wayOf(p)
	if err != nil {
		return "", nil, err
	}
	if w.kind == wayParty && v.walks(w, limit) {
		w = way{kind: wayAll}
	}
	ids := func(from, id string, t terms) (string, []any) {
		p.span(&t, id, v.drift)
		if at != nil {
			t.add(id+" "+beyond+" ?", at.id)
		}
		p.residual(&t, w.kind == waySearch, w.columns...)
		return fmt.Sprintf("SELECT %s AS id FROM %s WHERE %s ORDER BY %s %s LIMIT %d", id, from, t.where(), id, order, limit), t.args
	}
	var query string
	var args []any
	switch {
	case w.kind == waySearch:
		query, args = ids("text CROSS JOIN handoff h ON h.id = text.rowid", "text.rowid", terms{[]string{"text MATCH ?"}, []any{p.match}})
	case w.kind == wayAll:
		query, args = ids("handoff h", "h.id", terms{})
	case w.kind == wayParty || len(w.streams) > streamsMax:
		from, t := v.alongside(p, w)
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

// updatedQuery is the SQL of a page by the last change: by walking from the last
// change on where much is selected, else by sorting it.
func (v view) updatedQuery(p plan, at *place, limit int) (string, []any, error) {
	w, err := v.wayOf(p)
	if err != nil {
		return "", nil, err
	}
	walk := w.kind == wayAll || v.walks(w, limit)
	if w.kind == waySearch {
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
		p.residual(&t, false)
	} else {
		from, t = v.alongside(p, w)
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

// walks tells whether to walk over all rows in order, and not to sort those of a
// way: sorting passes over all of them, walking over as many as it takes to meet
// enough of them.
func (v view) walks(w way, limit int) bool {
	return w.rows > 0 && w.rows*w.rows > int64(limit)*v.st.where().count
}

const rowColumns = `id, ticket, seq, phase, outcome, reason, type, priority, source, target, agent, holder, attempts, reroutes, level,
	coalesce(workflow, ''), coalesce(conversation, ''), coalesce(task, ''), parent, family, return_of, origin, description, why,
	submitted, updated, closed, queue_ms, work_ms, whole_ms, tokens`

// row reads the columns of rowColumns.
func (v view) row(rows *sql.Rows) (Row, place, error) {
	var r Row
	var at place
	var ticket, parent, family, returnOf, origin []byte
	var seq, submitted, closed int64
	var phase, outcome, kind, priority int
	var source, target, agent int32
	err := rows.Scan(&at.id, &ticket, &seq, &phase, &outcome, &r.Reason, &kind, &priority, &source, &target, &agent, &r.Holder,
		&r.Attempts, &r.Reroutes, &r.Level, &r.WorkflowID, &r.ConversationID, &r.TaskID, &parent, &family, &returnOf, &origin,
		&r.Description, &r.Why, &submitted, &at.updated, &closed, &r.QueueMS, &r.WorkMS, &r.WholeMS, &r.Tokens)
	if err != nil {
		return Row{}, place{}, err
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
			return Row{}, place{}, damaged("a ticket of %d bytes", len(t.from))
		}
		*t.to = id.String()
	}
	r.Seq = uint64(seq)
	r.Phase, r.Outcome, r.Type, r.Priority = phases.word(phase), outcomes.word(outcome), types.word(kind), priorities.word(priority)
	r.Closed = outcome != 0
	r.Source, r.Target, r.Agent = v.st.names.of(source), v.st.names.of(target), v.st.names.of(agent)
	r.SubmittedAt, r.UpdatedAt, r.ClosedAt = instant(submitted), instant(at.updated), instant(closed)
	return r, at, nil
}
