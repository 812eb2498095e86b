package index

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/internal/index/ask"
)

// List returns a page of handoffs. Its errors are *protocol.Error for a refused question, and
// ErrRebuilding.
func (ix *Index) List(ctx context.Context, q ask.ListQuery) (ask.ListAnswer, error) {
	if err := q.Validate(); err != nil {
		return ask.ListAnswer{}, err
	}
	q.Sort = cmp.Or(q.Sort, ask.SortNewest)
	hash := hashOf(q.Filter, q.Sort)
	after, err := decodeCursor(q.Cursor, hash)
	if err != nil {
		return ask.ListAnswer{}, err
	}
	return read(ctx, ix, q.Question, func(v view, a *ask.ListAnswer) error {
		s, err := v.selectionOf(q.Filter)
		if err != nil {
			return err
		}
		a.Handoffs, a.Cursor, err = pageOf(v, q.Limit, hash, func(rows *sql.Rows) (ask.Row, cursor, error) { return v.row(rows) }, func(limit int) (string, []any) {
			return s.pageQuery(q.Sort, after, limit)
		})
		return err
	})
}

// pageQuery is the SQL of a page. The ids come first, since an index may suffice to find them.
func (s selection) pageQuery(sort ask.Sort, after *cursor, limit int) (string, []any) {
	inner, outer, beyond := s.id+" DESC", "id DESC", s.id+" < ?"
	switch sort {
	case ask.SortOldest:
		inner, outer, beyond = s.id, "id", s.id+" > ?"
	case ask.SortUpdated:
		inner, outer = "h.updated DESC, h.id DESC", "updated DESC, id DESC"
	}
	switch {
	case after == nil:
	case sort == ask.SortUpdated:
		s.add("(h.updated, h.id) < (?, ?)", after.updated, after.id)
	default:
		s.add(beyond, after.id)
	}
	return fmt.Sprintf("SELECT %s FROM handoff WHERE id IN (SELECT %s FROM %s WHERE %s ORDER BY %s LIMIT %d) ORDER BY %s",
		rowColumns, s.id, s.from, s.where(), inner, limit, outer), s.args
}

// ticketIn reads the column of a ticket as its text. NULL is none.
type ticketIn struct{ to *string }

// Scan implements sql.Scanner.
func (c ticketIn) Scan(column any) error {
	bytes, _ := column.([]byte)
	if column == nil {
		return nil
	}
	id, err := uuid.FromBytes(bytes)
	if err != nil {
		return damagef("a ticket of %d bytes", len(bytes))
	}
	*c.to = id.String()
	return nil
}

const rowColumns = `id, ticket, seq, phase, outcome, reason, type, priority, source, target, agent, holder, attempts, reroutes, level,
	coalesce(workflow, ''), coalesce(conversation, ''), coalesce(task, ''), coalesce(variant, ''), parent, family, return_of, origin, description, why,
	submitted, updated, closed, queue_ms, work_ms, whole_ms, tokens, cost, gate, gated, marks`

// row reads the columns of rowColumns, and more columns after them.
func (v view) row(rows *sql.Rows, more ...any) (ask.Row, cursor, error) {
	var r ask.Row
	var at cursor
	var seq, submitted, closed, gated int64
	var phase, outcome, kind, priority, gate, marks int
	var source, target, agent int32
	into := append([]any{&at.id, ticketIn{&r.Ticket}, &seq, &phase, &outcome, &r.Reason, &kind, &priority, &source, &target, &agent, &r.Holder,
		&r.Attempts, &r.Reroutes, &r.Level, &r.WorkflowID, &r.ConversationID, &r.TaskID, &r.Variant, ticketIn{&r.Parent}, ticketIn{&r.Group}, ticketIn{&r.ReturnOf}, ticketIn{&r.Origin},
		&r.Description, &r.Why, &submitted, &at.updated, &closed, &r.QueueMS, &r.WorkMS, &r.WholeMS, &r.Tokens, &r.CostMicros, &gate, &gated, &marks}, more...)
	if err := rows.Scan(into...); err != nil {
		return ask.Row{}, cursor{}, err
	}
	r.Seq = uint64(seq)
	r.Phase, r.Outcome, r.Type, r.Priority = phases.word(phase), outcomes.word(outcome), types.word(kind), priorities.word(priority)
	r.Closed = outcome != 0
	r.Gate, r.GatedAt = gates.word(gate), fromMicros(gated)
	r.Barred, r.Deadlocked = marks&markBarred != 0, marks&markDeadlocked != 0
	r.SetFrom(v.st.names.textOf(source))
	r.Target, r.Agent = v.st.names.textOf(target), v.st.names.textOf(agent)
	r.SubmittedAt, r.UpdatedAt, r.ClosedAt = fromMicros(submitted), fromMicros(at.updated), fromMicros(closed)
	return r, at, nil
}
