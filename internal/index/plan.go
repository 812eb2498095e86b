package index

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/internal/index/ask"
)

// plan is a filter in terms of the file.
type plan struct {
	matchesNone bool       // it has a value that no handoff has
	fields      []selected // of a cell
	exact       []selected // texts, tickets, gates and marks, the most selective first
	parties     []party
	since       int64 // by submission, µs; 0 is no bound
	until       int64
	updated     int64
	match       string // the question to the search engine
}

// selected is a field and its allowed values: numbers for a field of a cell, texts or tickets for
// the others, numbers for a gate or marks.
type selected struct {
	column  string
	numbers []int64
	values  []any
}

// party is an agent that a handoff must have in a column, or as its present or a past agent.
type party struct {
	column  string // source or target
	numbers []int64
}

// planOf checks a filter and translates it. Its errors are *protocol.Error.
func (st *store) planOf(f ask.Filter) (plan, error) {
	if err := f.Validate(); err != nil {
		return plan{}, err
	}
	p := plan{since: toMicros(f.Since), until: toMicros(f.Until), updated: toMicros(f.UpdatedSince)}
	if f.Text != "" {
		var err error
		if p.match, err = searchQuery(f.Text); err != nil {
			return plan{}, err
		}
	}
	p.tickets("ticket", f.Ticket)
	p.tickets("parent", f.Parent)
	p.tickets("family", f.Group)
	p.gates(f.Gate)
	p.texts("task", f.TaskID)
	p.texts("variant", f.Variant)
	p.texts("conversation", f.ConversationID)
	p.texts("workflow", f.WorkflowID)
	p.marks(f)
	p.named(st, "agent", f.Agent)
	p.named(st, "source", f.Source)
	p.named(st, "target", f.Target)
	p.party(st, "source", f.From)
	p.party(st, "target", f.To)
	addWords(&p, "phase", f.Phase, phases)
	addWords(&p, "priority", f.Priority, priorities)
	addWords(&p, "type", f.Type, types)
	p.outcomes(f)
	return p, nil
}

func (p *plan) tickets(column string, values []string) {
	if len(values) == 0 {
		return
	}
	s := selected{column: column}
	lower := make([]string, len(values))
	for i, value := range values {
		lower[i] = strings.ToLower(value) // a ticket may be written in capitals
	}
	for _, value := range distinct(lower) {
		id := uuid.MustParse(value) // Validate has checked it
		s.values = append(s.values, id[:])
	}
	p.exact = append(p.exact, s)
}

func (p *plan) texts(column string, values []string) {
	if len(values) == 0 {
		return
	}
	s := selected{column: column}
	for _, value := range distinct(values) {
		s.values = append(s.values, value)
	}
	p.exact = append(p.exact, s)
}

// distinct returns each value once: two streams of the same rows would make pages with every row
// twice.
func distinct(values []string) []string {
	values = slices.Sorted(slices.Values(values))
	return slices.Compact(values)
}

func (p *plan) named(st *store, column string, values []string) {
	if len(values) == 0 {
		return
	}
	s := selected{column: column}
	for _, value := range values {
		if id, there := st.names.find(value); there {
			s.numbers = append(s.numbers, int64(id))
		}
	}
	p.field(s)
}

func (p *plan) party(st *store, column string, values []string) {
	if len(values) == 0 {
		return
	}
	of := party{column: column}
	for _, value := range distinct(values) {
		if id, there := st.names.find(value); there {
			of.numbers = append(of.numbers, int64(id))
		}
	}
	p.matchesNone = p.matchesNone || len(of.numbers) == 0
	p.parties = append(p.parties, of)
}

func addWords[T ~string](p *plan, column string, values []T, known words[T]) {
	if len(values) == 0 {
		return
	}
	s := selected{column: column}
	for _, value := range values {
		s.numbers = append(s.numbers, int64(known.number(value)))
	}
	p.field(s)
}

// outcomes joins outcome and open into one: an open handoff has no outcome.
func (p *plan) outcomes(f ask.Filter) {
	if f.Outcome == nil && f.Open == nil {
		return
	}
	s := selected{column: "outcome"}
	for number := range int64(unknownWord + 1) {
		open := number == 0
		named := f.Outcome == nil || !open && slices.Contains(f.Outcome, outcomes.word(int(number)))
		if named && (f.Open == nil || *f.Open == open) {
			s.numbers = append(s.numbers, number)
		}
	}
	p.field(s)
}

func (p *plan) field(s selected) {
	if len(s.numbers) == 0 {
		p.matchesNone = true
	}
	slices.Sort(s.numbers)
	s.numbers = slices.Compact(s.numbers)
	p.fields = append(p.fields, s)
}

// onlyFields reports whether the counts in memory suffice for the plan.
func (p plan) onlyFields() bool {
	return len(p.exact) == 0 && len(p.parties) == 0 && p.since == 0 && p.until == 0 && p.updated == 0 && p.match == ""
}

// valuesOf returns the allowed values of a field; nil is all.
func (p plan) valuesOf(column string) []int64 {
	for _, s := range p.fields {
		if s.column == column {
			return s.numbers
		}
	}
	return nil
}

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

func inList(numbers []int64) string {
	texts := make([]string, len(numbers))
	for i, n := range numbers {
		texts[i] = strconv.FormatInt(n, 10)
	}
	return " IN (" + strings.Join(texts, ",") + ")"
}

// timeBounds adds the bounds of time as a range of ids.
func (p plan) timeBounds(t *terms, id string, drift int64) {
	if p.since > 0 {
		t.add(id+" >= ?", p.since)
	}
	if p.until > 0 {
		t.add(id+" < ?", p.until+drift)
	}
}

// residual adds the conditions to check row by row: all but those on the columns of the access
// path. The + keeps SQLite from choosing another path by them, since fieldPath knows the counts.
func (p plan) residual(t *terms, columns []string) {
	for _, s := range p.fields {
		if !slices.Contains(columns, s.column) {
			t.add("+h." + s.column + inList(s.numbers))
		}
	}
	for _, s := range p.exact {
		switch {
		case slices.Contains(columns, s.column):
		case s.numbers != nil:
			t.add("+h." + s.column + inList(s.numbers))
		default:
			t.add("+h."+s.column+" IN (?"+strings.Repeat(",?", len(s.values)-1)+")", s.values...)
		}
	}
	for _, of := range p.parties {
		if !slices.Contains(columns, partyColumn+of.column) {
			among := inList(of.numbers)
			t.add("(+h." + of.column + among + " OR +h.agent" + among +
				" OR EXISTS (SELECT 1 FROM past WHERE past.handoff = h.id AND past.agent" + among + "))")
		}
	}
	if p.since > 0 {
		t.add("+h.submitted >= ?", p.since)
	}
	if p.until > 0 {
		t.add("+h.submitted < ?", p.until)
	}
	if p.updated > 0 {
		t.add("+h.updated >= ?", p.updated)
	}
}

// matchText adds the condition of the text search. The search engine collects all matches once:
// row by row, it would scan its whole list for each.
func (p plan) matchText(t *terms) {
	if p.match != "" {
		t.add("+h.id IN (SELECT rowid FROM text WHERE text MATCH ?)", p.match)
	}
}

// accessPath is the way to the rows of a plan.
type accessPath struct {
	kind    pathKind
	columns []string // whose conditions it uses
	streams []terms  // each with rows in the order of their ids
	rows    int64    // the most rows to read; -1 is unknown
	among   terms    // that limit the matches of a search to few rows
}

type pathKind int

const (
	pathAllRows pathKind = iota // all rows, in their order
	pathIndex                   // streams of an index
	pathSearch                  // matches of the search engine
	pathParty                   // the collected ids of the handoffs of an agent
)

// partyColumn begins the name of a party among the columns of an access path.
const partyColumn = "party:"

const (
	streamsMax = 64     // to merge; rows of more streams are sorted
	fewRows    = 2_000  // up to which a search is limited to the rows of another path
	sortRows   = 20_000 // matches of a search up to which sorting beats walking by the last change
)

// accessPathOf chooses the access path of a plan.
func (v view) accessPathOf(p plan) (accessPath, error) {
	best, err := v.pathWithoutText(p)
	if err != nil || p.match == "" {
		return best, err
	}
	search := accessPath{kind: pathSearch, rows: -1}
	if best.kind != pathAllRows && best.rows <= fewRows {
		search.columns, search.among = best.columns, p.conditions(best)
	}
	return search, nil
}

// pathWithoutText is the access path of all conditions but the text.
func (v view) pathWithoutText(p plan) (accessPath, error) {
	if len(p.exact) > 0 {
		return p.exactPath(), nil
	}
	best := v.st.fieldPath(p)
	if p.matchesNone {
		return best, nil
	}
	for _, of := range p.parties {
		rows := v.st.rowsWith(of.column, of.numbers) + v.st.rowsWith("agent", of.numbers)
		var past int64
		if err := v.tx.QueryRowContext(v.ctx, "SELECT count(*) FROM past WHERE agent"+inList(of.numbers)).Scan(&past); err != nil {
			return accessPath{}, err
		}
		if rows += past; rows < best.rows {
			best = accessPath{kind: pathParty, columns: []string{partyColumn + of.column}, streams: []terms{of.ids()}, rows: rows}
		}
	}
	return best, nil
}

// ids selects the handoffs that a party had a part in.
func (of party) ids() terms {
	among := inList(of.numbers)
	return terms{text: []string{"h.id IN (SELECT id FROM handoff WHERE " + of.column + among +
		" UNION ALL SELECT id FROM handoff WHERE agent" + among + " UNION ALL SELECT handoff FROM past WHERE agent" + among + ")"}}
}

// rowsWith counts the rows that have one of the names in a column.
func (st *store) rowsWith(column string, names []int64) int64 {
	st.mu.RLock()
	defer st.mu.RUnlock()
	return st.counts.sum(plan{fields: []selected{{column: column, numbers: names}}})
}

// exactPath is the access path of the most selective text or ticket.
func (p plan) exactPath() accessPath {
	s := p.exact[0]
	w := accessPath{kind: pathIndex, columns: []string{s.column}, rows: -1}
	for _, number := range s.numbers { // the index has the rows that are not 0 alone
		w.streams = append(w.streams, terms{text: []string{fmt.Sprintf("h.%s <> 0 AND h.%s = %d", s.column, s.column, number)}})
	}
	for _, value := range s.values {
		w.streams = append(w.streams, terms{[]string{"h." + s.column + " = ?"}, []any{value}})
	}
	return w
}

// fieldPath chooses between the indexes over fields and reading all rows, by the number of rows.
func (st *store) fieldPath(p plan) accessPath {
	st.mu.RLock()
	defer st.mu.RUnlock()
	best := accessPath{kind: pathAllRows, rows: st.counts.total}
	if p.matchesNone {
		return best
	}
	ends := p.valuesOf("outcome")
	for _, column := range []string{"agent", "source", "target"} {
		values := p.valuesOf(column)
		if values == nil {
			continue
		}
		rows := st.counts.sum(plan{fields: []selected{{column: column, numbers: values}, {column: "outcome", numbers: orAnyNumber(ends)}}})
		if rows < best.rows {
			best = accessPath{kind: pathIndex, columns: []string{column, "outcome"}, streams: crossStreams(column, values, "outcome", orAnyNumber(ends)), rows: rows}
		}
	}
	if at := p.valuesOf("phase"); ends != nil || at != nil {
		all := []selected{{column: "outcome", numbers: orAnyNumber(ends)}, {column: "phase", numbers: orAnyNumber(at)}}
		if rows := st.counts.sum(plan{fields: all}); rows < best.rows {
			best = accessPath{kind: pathIndex, columns: []string{"outcome", "phase"}, streams: crossStreams("outcome", all[0].numbers, "phase", all[1].numbers), rows: rows}
		}
	}
	return best
}

var allNumbers = func() (all []int64) {
	for number := range int64(unknownWord + 1) {
		all = append(all, number)
	}
	return all
}()

func orAnyNumber(numbers []int64) []int64 {
	if numbers == nil {
		return allNumbers
	}
	return numbers
}

func crossStreams(first string, a []int64, second string, b []int64) (streams []terms) {
	for _, x := range a {
		for _, y := range b {
			streams = append(streams, terms{text: []string{fmt.Sprintf("h.%s = %d AND h.%s = %d", first, x, second, y)}})
		}
	}
	return streams
}

// rowsQuery is the FROM and WHERE that give a plan's rows in any order.
func (v view) rowsQuery(p plan) (string, terms, error) {
	w, err := v.accessPathOf(p)
	if err != nil {
		return "", terms{}, err
	}
	from, t := v.pathQuery(p, w)
	return from, t, nil
}

const fromSearch = "text CROSS JOIN handoff h ON h.id = text.rowid"

// pathQuery is the FROM and WHERE of a plan's rows by an access path.
func (v view) pathQuery(p plan, w accessPath) (string, terms) {
	from, t := "handoff h", p.conditions(w)
	switch w.kind {
	case pathSearch:
		from = fromSearch
		p.timeBounds(&t, "text.rowid", v.drift)
	case pathAllRows:
		p.timeBounds(&t, "h.id", v.drift)
	}
	p.residual(&t, w.columns)
	return from, t
}

// conditions are those by which an access path finds its rows.
func (p plan) conditions(w accessPath) (t terms) {
	switch {
	case w.kind == pathSearch:
		t.add("text MATCH ?", p.match)
		if len(w.among.text) > 0 {
			t.add("+text.rowid IN (SELECT h.id FROM handoff h WHERE "+w.among.where()+")", w.among.args...)
		}
	case w.kind == pathIndex && len(p.exact) == 0: // the streams, in a form for an index
		for _, column := range w.columns {
			t.add("h." + column + inList(orAnyNumber(p.valuesOf(column))))
		}
	case w.kind != pathAllRows:
		var either []string
		for _, s := range w.streams {
			either = append(either, s.where())
			t.args = append(t.args, s.args...)
		}
		t.text = []string{"(" + strings.Join(either, " OR ") + ")"}
	}
	return t
}

// sum counts the handoffs of a plan that has only fields of a cell. The caller has the lock.
func (c *counts) sum(p plan) (sum int64) {
	c.eachCell(p, func(_ cell, n int64) { sum += n })
	return sum
}

// eachCell calls fn for every cell that a plan selects.
func (c *counts) eachCell(p plan, fn func(cell, int64)) {
	if p.matchesNone {
		return
	}
	set := func(column string) func(int64) bool {
		switch numbers := p.valuesOf(column); len(numbers) {
		case 0:
			return nil
		case 1:
			only := numbers[0]
			return func(n int64) bool { return n == only }
		default:
			return func(n int64) bool { _, found := slices.BinarySearch(numbers, n); return found }
		}
	}
	source, target, agent := set("source"), set("target"), set("agent")
	phase, outcome, priority, kind := numberSet(p.valuesOf("phase")), numberSet(p.valuesOf("outcome")), numberSet(p.valuesOf("priority")), numberSet(p.valuesOf("type"))
	for i := range c.cells {
		at, n := &c.cells[i], c.n[i]
		if n == 0 || !phase[at.phase&15] || !outcome[at.outcome&15] || !priority[at.priority&15] || !kind[at.kind&15] ||
			agent != nil && !agent(int64(at.agent)) || source != nil && !source(int64(at.source)) || target != nil && !target(int64(at.target)) {
			continue
		}
		fn(*at, n)
	}
}

// numberSet is a set of words.
func numberSet(numbers []int64) (t [16]bool) {
	for _, n := range orAnyNumber(numbers) {
		t[n&15] = true
	}
	return t
}
