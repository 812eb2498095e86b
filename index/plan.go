package index

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// plan is a filter in the terms of the file.
type plan struct {
	never   bool       // it names something that no handoff has
	fields  []selected // of the cube
	exact   []selected // texts and tickets, the most selective first
	parties []party
	since   int64 // by submission, µs; 0 is no bound
	until   int64
	updated int64
	match   string // the question to the search engine
}

// selected is one field and the values that it may have: numbers for a field of
// the cube, texts or tickets for the others.
type selected struct {
	column  string
	numbers []int64
	values  []any
}

// party is a name that a handoff must have in one of several places: in a column,
// or as the agent that has it, or had it before.
type party struct {
	column  string // source or target
	numbers []int64
}

// planOf checks a filter and translates it. Its errors are *protocol.Error.
func (st *store) planOf(f Filter) (plan, error) {
	if err := f.check(); err != nil {
		return plan{}, err
	}
	p := plan{since: micros(f.Since), until: micros(f.Until), updated: micros(f.UpdatedSince)}
	if f.Text != "" {
		var err error
		if p.match, err = match(f.Text); err != nil {
			return plan{}, err
		}
	}
	p.tickets("ticket", f.Ticket)
	p.tickets("parent", f.Parent)
	p.tickets("family", f.Group)
	p.texts("task", f.TaskID)
	p.texts("conversation", f.ConversationID)
	p.texts("workflow", f.WorkflowID)
	p.named(st, "agent", f.Agent)
	p.named(st, "source", f.Source)
	p.named(st, "target", f.Target)
	p.party(st, "source", f.From)
	p.party(st, "target", f.To)
	addWords(&p, "phase", f.Phase, phases)
	addWords(&p, "priority", f.Priority, priorities)
	addWords(&p, "type", f.Type, types)
	p.ends(f)
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
	for _, value := range once(lower) {
		id := uuid.MustParse(value) // which was checked
		s.values = append(s.values, id[:])
	}
	p.exact = append(p.exact, s)
}

func (p *plan) texts(column string, values []string) {
	if len(values) == 0 {
		return
	}
	s := selected{column: column}
	for _, value := range once(values) {
		s.values = append(s.values, value)
	}
	p.exact = append(p.exact, s)
}

// once is the values, each once: two streams of the same rows would be merged
// into pages with every row twice.
func once(values []string) []string {
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
	for _, value := range once(values) {
		if id, there := st.names.find(value); there {
			of.numbers = append(of.numbers, int64(id))
		}
	}
	p.never = p.never || len(of.numbers) == 0
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

// ends joins outcome and open into one: an open handoff has no outcome.
func (p *plan) ends(f Filter) {
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
		p.never = true
	}
	slices.Sort(s.numbers)
	s.numbers = slices.Compact(s.numbers)
	p.fields = append(p.fields, s)
}

// onlyFields tells whether the cube alone can count what is selected.
func (p plan) onlyFields() bool {
	return len(p.exact) == 0 && len(p.parties) == 0 && p.since == 0 && p.until == 0 && p.updated == 0 && p.match == ""
}

// of is what is selected of a field; nil is everything.
func (p plan) of(column string) []int64 {
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

func in(numbers []int64) string {
	texts := make([]string, len(numbers))
	for i, n := range numbers {
		texts[i] = strconv.FormatInt(n, 10)
	}
	return " IN (" + strings.Join(texts, ",") + ")"
}

// span are the bounds of time as a range of ids.
func (p plan) span(t *terms, id string, drift int64) {
	if p.since > 0 {
		t.add(id+" >= ?", p.since)
	}
	if p.until > 0 {
		t.add(id+" < ?", p.until+drift)
	}
}

// residual are the conditions that a way to the rows leaves to be checked row by
// row: all but those on the columns that led there. The + keeps SQLite from
// choosing another way by them: which one is best is decided here, where
// the numbers are known.
func (p plan) residual(t *terms, searched bool, led ...string) {
	for _, s := range p.fields {
		if !slices.Contains(led, s.column) {
			t.add("+h." + s.column + in(s.numbers))
		}
	}
	for _, s := range p.exact {
		if !slices.Contains(led, s.column) {
			t.add("+h."+s.column+" IN (?"+strings.Repeat(",?", len(s.values)-1)+")", s.values...)
		}
	}
	for _, of := range p.parties {
		if !slices.Contains(led, partyColumn+of.column) {
			among := in(of.numbers)
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
	if p.match != "" && !searched {
		t.add("EXISTS (SELECT 1 FROM text WHERE text MATCH ? AND rowid = h.id)", p.match)
	}
}

// way is how the rows of a plan are reached.
type way struct {
	kind    wayKind
	columns []string // that lead there
	streams []terms  // each gives rows in the order of their ids
	rows    int64    // that will be passed over, at most; -1 is unknown
}

type wayKind int

const (
	wayAll    wayKind = iota // all rows, in their order
	wayIndex                 // streams of an index
	waySearch                // what the search engine finds
	wayParty                 // the ids of what somebody had a part in, gathered
)

// partyColumn begins the name of a party among the columns of a way.
const partyColumn = "party:"

const (
	streamsMax = 64     // that are merged; beyond, rows are sorted
	fewRows    = 2_000  // so few that the search engine is asked about each
	sortRows   = 20_000 // that the search engine finds: so many that walking by the last change is better than sorting
)

// wayOf chooses how to reach the rows of a plan.
func (v view) wayOf(p plan) (way, error) {
	best := v.st.wayOf(p)
	if len(p.exact) > 0 || best.kind == waySearch || p.never {
		return best, nil
	}
	for _, of := range p.parties {
		rows := v.st.rowsWith(of.column, of.numbers) + v.st.rowsWith("agent", of.numbers)
		var past int64
		if err := v.tx.QueryRowContext(v.ctx, "SELECT count(*) FROM past WHERE agent"+in(of.numbers)).Scan(&past); err != nil {
			return way{}, err
		}
		if rows += past; rows < best.rows {
			best = way{kind: wayParty, columns: []string{partyColumn + of.column}, streams: []terms{of.ids()}, rows: rows}
		}
	}
	return best, nil
}

// ids selects the handoffs that a party had a part in.
func (of party) ids() terms {
	among := in(of.numbers)
	return terms{text: []string{"h.id IN (SELECT id FROM handoff WHERE " + of.column + among +
		" UNION ALL SELECT id FROM handoff WHERE agent" + among + " UNION ALL SELECT handoff FROM past WHERE agent" + among + ")"}}
}

// rowsWith counts the rows that have one of the names in a column.
func (st *store) rowsWith(column string, names []int64) int64 {
	st.mu.RLock()
	defer st.mu.RUnlock()
	return st.cube.sum(plan{fields: []selected{{column: column, numbers: names}}})
}

// wayOf chooses without a look at the parties.
func (st *store) wayOf(p plan) way {
	if len(p.exact) > 0 {
		s := p.exact[0]
		w := way{kind: wayIndex, columns: []string{s.column}, rows: -1}
		for _, value := range s.values {
			w.streams = append(w.streams, terms{[]string{"h." + s.column + " = ?"}, []any{value}})
		}
		return w
	}
	best := st.fieldWay(p)
	if p.match != "" && (best.kind == wayAll || best.rows > fewRows) {
		return way{kind: waySearch, rows: -1}
	}
	return best
}

// fieldWay chooses between the indexes over a field and passing over all rows,
// by how many rows each has.
func (st *store) fieldWay(p plan) way {
	st.mu.RLock()
	defer st.mu.RUnlock()
	best := way{kind: wayAll, rows: st.cube.total}
	if p.never {
		return best
	}
	ends := p.of("outcome")
	for _, column := range []string{"agent", "source", "target"} {
		values := p.of(column)
		if values == nil {
			continue
		}
		rows := st.cube.sum(plan{fields: []selected{{column: column, numbers: values}, {column: "outcome", numbers: orAll(ends)}}})
		if rows < best.rows {
			best = way{kind: wayIndex, columns: []string{column, "outcome"}, streams: pairs(column, values, "outcome", orAll(ends)), rows: rows}
		}
	}
	if at := p.of("phase"); ends != nil || at != nil {
		all := []selected{{column: "outcome", numbers: orAll(ends)}, {column: "phase", numbers: orAll(at)}}
		if rows := st.cube.sum(plan{fields: all}); rows < best.rows {
			best = way{kind: wayIndex, columns: []string{"outcome", "phase"}, streams: pairs("outcome", all[0].numbers, "phase", all[1].numbers), rows: rows}
		}
	}
	return best
}

var everyWord = func() (all []int64) {
	for number := range int64(unknownWord + 1) {
		all = append(all, number)
	}
	return all
}()

func orAll(numbers []int64) []int64 {
	if numbers == nil {
		return everyWord
	}
	return numbers
}

func pairs(first string, a []int64, second string, b []int64) (streams []terms) {
	for _, x := range a {
		for _, y := range b {
			streams = append(streams, terms{text: []string{fmt.Sprintf("h.%s = %d AND h.%s = %d", first, x, second, y)}})
		}
	}
	return streams
}

// unordered is the FROM and WHERE that give a plan's rows in any order.
func (v view) unordered(p plan) (string, terms, error) {
	w, err := v.wayOf(p)
	if err != nil {
		return "", terms{}, err
	}
	from, t := v.alongside(p, w)
	return from, t, nil
}

// alongside is the FROM and WHERE of a plan's rows by a way.
func (v view) alongside(p plan, w way) (string, terms) {
	var t terms
	switch w.kind {
	case waySearch:
		t.add("text MATCH ?", p.match)
		p.span(&t, "text.rowid", v.drift)
		p.residual(&t, true)
		return "text CROSS JOIN handoff h ON h.id = text.rowid", t
	case wayIndex:
		var either []string
		for _, s := range w.streams {
			either = append(either, s.where())
			t.args = append(t.args, s.args...)
		}
		t.text = []string{"(" + strings.Join(either, " OR ") + ")"}
		if len(p.exact) == 0 { // the same, in a form that an index serves
			t = terms{}
			for _, column := range w.columns {
				t.add("h." + column + in(orAll(p.of(column))))
			}
		}
	case wayParty:
		t.add(w.streams[0].where())
	case wayAll:
		p.span(&t, "h.id", v.drift)
	}
	p.residual(&t, false, w.columns...)
	return "handoff h", t
}

// sum counts what a plan selects that has only fields of the cube. The caller
// has the lock.
func (c *cube) sum(p plan) (sum int64) {
	c.each(p, func(_ cell, n int64) { sum += n })
	return sum
}

// each calls fn at every cell that a plan selects.
func (c *cube) each(p plan, fn func(cell, int64)) {
	if p.never {
		return
	}
	set := func(column string) func(int64) bool {
		switch numbers := p.of(column); len(numbers) {
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
	phase, outcome, priority, kind := table(p.of("phase")), table(p.of("outcome")), table(p.of("priority")), table(p.of("type"))
	for i := range c.cells {
		at, n := &c.cells[i], c.counts[i]
		if n == 0 || !phase[at.phase&15] || !outcome[at.outcome&15] || !priority[at.priority&15] || !kind[at.kind&15] ||
			agent != nil && !agent(int64(at.agent)) || source != nil && !source(int64(at.source)) || target != nil && !target(int64(at.target)) {
			continue
		}
		fn(*at, n)
	}
}

// table is a set of words.
func table(numbers []int64) (t [16]bool) {
	for _, n := range orAll(numbers) {
		t[n&15] = true
	}
	return t
}
