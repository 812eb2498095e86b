package index

import (
	"fmt"
	"strings"

	"github.com/agenthandoff/handoff/internal/index/ask"
)

// terms are conditions of SQL and their arguments.
type terms struct {
	text []string
	args []any
}

func (t *terms) add(text string, args ...any) {
	t.text = append(t.text, text)
	t.args = append(t.args, args...)
}

func (t terms) where() string {
	if len(t.text) == 0 {
		return "1"
	}
	return strings.Join(t.text, " AND ")
}

// selection is a filter as SQL: the rows h of its handoffs, and their ids. SQLite chooses the
// indexes by the statistics of ANALYZE.
type selection struct {
	terms
	from, id  string
	countable bool // the table of counts has all columns of the terms
}

// selectionOf checks a filter and translates it. Its errors are *protocol.Error.
func (v view) selectionOf(f ask.Filter) (selection, error) {
	s := selection{from: "handoff h", id: "h.id"}
	if err := f.Validate(); err != nil {
		return s, err
	}
	if f.Text != "" {
		match, err := searchQuery(f.Text)
		if err != nil {
			return s, err
		}
		// The search comes first: it returns its matches in the order of their ids, and would
		// pass over all of them for each row that came before it.
		s.from, s.id = "text CROSS JOIN handoff h ON h.id = text.rowid", "text.rowid"
		s.add("text MATCH ?", match)
	}
	s.names(v, "agent", f.Agent)
	addWords(&s, "phase", f.Phase, phases)
	addWords(&s, "outcome", f.Outcome, outcomes)
	addWords(&s, "priority", f.Priority, priorities)
	addWords(&s, "type", f.Type, types)
	switch {
	case f.Open == nil:
	case *f.Open: // an open handoff has no outcome
		s.add("h.outcome = 0")
	default:
		s.add("h.outcome <> 0")
	}
	columns := len(s.text)
	s.names(v, "source", v.sources(f.Source...))
	s.names(v, "target", f.Target)
	s.party(v, "source", v.sources(f.From...))
	s.party(v, "target", f.To)
	s.among("task", f.TaskID, nullIfEmpty)
	s.among("variant", f.Variant, nullIfEmpty)
	s.among("conversation", f.ConversationID, nullIfEmpty)
	s.among("workflow", f.WorkflowID, nullIfEmpty)
	s.among("ticket", f.Ticket, ticketBytes)
	s.among("parent", f.Parent, ticketBytes)
	s.among("family", f.Group, ticketBytes)
	s.governed(f)
	if since := toMicros(f.Since); since > 0 { // an id is never before its instant
		s.add(s.id+" >= ? AND h.submitted >= ?", since, since)
	}
	if until := toMicros(f.Until); until > 0 {
		s.add(s.id+" < ? AND h.submitted < ?", until+v.drift, until)
	}
	if updated := toMicros(f.UpdatedSince); updated > 0 {
		s.add("h.updated >= ?", updated)
	}
	s.countable = f.Text == "" && len(s.text) == columns
	return s, nil
}

func (s *selection) names(v view, column string, values []string) {
	if len(values) > 0 {
		s.add("h." + column + " IN (" + v.numbers(values) + ")")
	}
}

// party selects the handoffs that one of the agents had a part in.
func (s *selection) party(v view, column string, values []string) {
	if len(values) == 0 {
		return
	}
	among := " IN (" + v.numbers(values) + ")"
	s.add("h.id IN (SELECT id FROM handoff WHERE " + column + among + " UNION ALL SELECT id FROM handoff WHERE agent" + among +
		" UNION ALL SELECT handoff FROM past WHERE agent" + among + ")")
}

func addWords[T ~string](s *selection, column string, values []T, known words[T]) {
	if len(values) == 0 {
		return
	}
	numbers := make([]string, len(values))
	for i, value := range values {
		numbers[i] = fmt.Sprint(known.number(value))
	}
	s.add("h." + column + " IN (" + strings.Join(numbers, ",") + ")")
}

// among selects by a column whose values have few rows each. A search collects their ids first, or
// it would look up the rows of all its matches. stored is the form of a value in the file.
func (s *selection) among(column string, values []string, stored func(string) any) {
	if len(values) == 0 {
		return
	}
	args := make([]any, len(values))
	for i, value := range values {
		args[i] = stored(value)
	}
	in := column + " IN (?" + strings.Repeat(",?", len(values)-1) + ")"
	if s.id == "h.id" {
		s.add("h."+in, args...)
	} else {
		s.add("+"+s.id+" IN (SELECT id FROM handoff WHERE "+in+")", args...)
	}
}

// governed selects by gates, limits and deadlocks, with the conditions of their partial indexes.
func (s *selection) governed(f ask.Filter) {
	if len(f.Gate) > 0 {
		s.add("h.gate <> 0")
		addWords(s, "gate", f.Gate, gates)
	}
	for mark, asked := range map[int]bool{markBarred: f.Barred, markDeadlocked: f.Deadlocked} {
		if asked {
			s.add(fmt.Sprintf("h.marks <> 0 AND h.marks & %d <> 0", mark))
		}
	}
}
