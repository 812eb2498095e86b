package index

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
)

// pendingRow is the row of a handoff while a batch applies entries to it.
type pendingRow struct {
	id     int64
	isNew  bool
	ticket uuid.UUID
	first  *firstEntry
	seq    uint64
	after  handoffState
	eventTotals
	source, target, agent int32
	counted               cell    // before these entries
	pastAgents            []int32 // agents that had it, by these entries
	inbox                 int32   // the agent in whose inbox it is, closed
	governance
}

// cell is the key of the table of counts.
type cell struct {
	agent                          int32
	outcome, phase, priority, kind int
}

// eventTotals sums up the events of a handoff, as far as its state does not.
type eventTotals struct {
	offered int64 // first
	taken   int64 // last accepted, or taken by a person
	queueMS *int64
	accepts int64    // by its agent, while acks is empty
	acks    []ackRow // of every agent, once there are several
}

// ackRow counts the acknowledgements of an agent.
type ackRow struct {
	Agent    int32  `json:"a"`
	Accepted int64  `json:"n,omitempty"`
	Refused  int64  `json:"r,omitempty"`
	Reason   string `json:"c,omitempty"` // of these refusals
}

// batch applies steps to the file in one transaction. After its first error it does nothing more.
// No context ends its statements: for one that can end, the driver starts a goroutine per statement.
type batch struct {
	st    *store
	tx    *sql.Tx
	rows  map[uuid.UUID]*pendingRow
	order []*pendingRow
	err   error
}

const (
	rowInsert = `INSERT INTO handoff VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)`
	rowUpdate = `UPDATE handoff SET seq=?,phase=?,outcome=?,agent=?,offer=?,updated=?,closed=?,reason=?,holder=?,
		attempts=?,reroutes=?,level=?,tokens=?,cost=?,offered=?,taken=?,queue_ms=?,work_ms=?,whole_ms=?,accepts=?,acks=?,waits=?,inbox=?,dead=?,gate=?,gated=?,marks=?,governed=?,others=? WHERE id=?`
	tallyAdd = `INSERT INTO tally VALUES (?,?,?,?,?,?) ON CONFLICT DO UPDATE SET n = n + excluded.n`
	hourAdd  = `INSERT INTO hour VALUES (?,?,?) ON CONFLICT DO UPDATE SET n = n + excluded.n`
	rowRead  = `SELECT id,agent,outcome,phase,priority,type,offered,taken,queue_ms,accepts,acks,gate,gated,governed FROM handoff WHERE ticket=?`
)

// apply stores the next steps of the ledger in order. Readers see them when it returns. After an
// error the store must be opened again: its memory may be ahead of the file.
func (st *store) apply(steps []step) error {
	last := steps[len(steps)-1]
	tx, err := st.db.Begin()
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // has no effect after the commit
	b := &batch{st: st, tx: tx, rows: make(map[uuid.UUID]*pendingRow, len(steps))}
	b.applySteps(steps)
	b.write()
	b.count()
	next := slices.Clone(st.currentPosition().next)
	for i := range steps {
		next.Pass(steps[i].seq)
	}
	b.exec("UPDATE position SET next=?, at=?, drift=?", next.String(), toMicros(last.at), st.drift)
	if b.err != nil {
		return b.err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	if len(st.taken) > idsCachedMax { // they are all in the file now
		clear(st.taken)
		st.floor = st.maxID
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.position.next, st.position.at = next, last.at
	return nil
}

func (b *batch) exec(query string, args ...any) {
	if b.err == nil {
		_, b.err = b.tx.Exec(query, args...)
	}
}

// prepare returns a statement, which the end of the transaction closes.
func (b *batch) prepare(query string) (s *sql.Stmt) {
	if b.err == nil {
		s, b.err = b.tx.Prepare(query)
	}
	return s
}

// run executes a statement for a handoff.
func (b *batch) run(s *sql.Stmt, l *pendingRow, args ...any) {
	if b.err != nil {
		return
	}
	if _, err := s.Exec(args...); err != nil {
		b.err = fmt.Errorf("store %s: %w", l.ticket, err)
	}
}

// applySteps applies the steps to the rows of their handoffs.
func (b *batch) applySteps(steps []step) {
	read := b.prepare(rowRead)
	for i := range steps {
		s := &steps[i]
		if s.ticket == uuid.Nil || b.err != nil {
			continue
		}
		l := b.rows[s.ticket]
		if l == nil {
			l = b.row(read, s)
			b.rows[s.ticket], b.order = l, append(b.order, l)
		}
		for _, o := range s.observations {
			b.observe(l, o)
		}
		b.advance(l, s)
	}
}

// row finds the row of a step's handoff, or makes it, even if the ledger has dropped its first
// entry.
func (b *batch) row(read *sql.Stmt, s *step) *pendingRow {
	l := &pendingRow{ticket: s.ticket, isNew: true}
	if s.first == nil || b.st.checkDuplicates {
		var acks, governed sql.NullString
		c := &l.counted
		err := read.QueryRow(s.ticket[:]).Scan(&l.id, &c.agent, &c.outcome, &c.phase, &c.priority, &c.kind,
			&l.offered, &l.taken, &l.queueMS, &l.accepts, &acks, &l.gate, &l.gated, &governed)
		switch l.isNew = errors.Is(err, sql.ErrNoRows); {
		case l.isNew:
		case err != nil:
			b.err = err
		default:
			l.agent, b.err = c.agent, l.parse(acks, governed)
		}
	}
	if l.isNew {
		l.id, l.first = b.newID(s.after.submitted), s.first
	}
	return l
}

// parse reads the columns that are JSON.
func (l *pendingRow) parse(acks, governed sql.NullString) (err error) {
	if l.governed, err = parseGoverned(governed); err == nil && acks.Valid {
		err = json.Unmarshal([]byte(acks.String), &l.acks)
	}
	if err != nil {
		return damagef("row of %s: %w", l.ticket, err)
	}
	return nil
}

// observe adds an event to the totals.
func (b *batch) observe(l *pendingRow, o observation) {
	if l.govern(o) {
		return
	}
	switch o.kind {
	case "offered":
		l.offered = cmp.Or(l.offered, o.at)
		l.addPastAgent(b.name(o.to))
		return
	case "accepted", "taken":
		l.taken = o.at
		if l.queueMS == nil && l.offered != 0 {
			queue := max(0, o.at-l.offered) / 1000
			l.queueMS = &queue
		}
	}
	if o.agent == "" {
		return
	}
	agent := b.name(o.agent)
	if o.kind == "accepted" && l.acks == nil && (l.accepts == 0 || l.agent == agent) {
		l.accepts++
		l.agent = agent
		return
	}
	l.listAcks()
	row := ackRow{Agent: agent, Accepted: 1}
	if o.kind == "rejected" {
		row = ackRow{Agent: agent, Refused: 1, Reason: o.reason}
	}
	for i := range l.acks {
		if has := &l.acks[i]; has.Agent == row.Agent && has.Reason == row.Reason && (has.Refused > 0) == (row.Refused > 0) {
			has.Accepted, has.Refused = has.Accepted+row.Accepted, has.Refused+row.Refused
			return
		}
	}
	if len(l.acks) < ackRowsMax {
		l.acks = append(l.acks, row)
	}
}

// listAcks turns the count of the current agent's acknowledgements into the list of all.
func (l *pendingRow) listAcks() {
	if l.acks == nil && l.accepts > 0 {
		l.acks = []ackRow{{Agent: l.agent, Accepted: l.accepts}}
	}
	l.accepts = 0
}

// advance sets the handoff to its state after the step.
func (b *batch) advance(l *pendingRow, s *step) {
	agent := b.name(s.after.agent)
	if agent != l.agent {
		if l.accepts > 0 {
			l.listAcks()
		}
		l.addPastAgent(l.agent)
	}
	l.seq, l.after, l.agent = s.seq, s.after, agent
	l.settle(s)
	l.inbox = b.name(s.after.inbox)
	if l.isNew && l.source == 0 { // these fields never change
		l.source, l.target = b.name(s.after.source), b.name(s.after.target)
	}
}

// addPastAgent adds an agent that had the handoff.
func (l *pendingRow) addPastAgent(agent int32) {
	if agent != 0 && !slices.Contains(l.pastAgents, agent) {
		l.pastAgents = append(l.pastAgents, agent)
	}
}

// name interns a name.
func (b *batch) name(text string) int32 {
	id, fresh := b.st.names.add(text)
	if fresh {
		b.exec("INSERT INTO name VALUES (?, ?)", id, text)
	}
	return id
}

// idMax is the greatest id, in the year 6429. Later instants are forged.
const idMax = 1 << 57

// newID returns the first free id from an instant on. The store's drift is the greatest distance
// of an id from its instant.
func (b *batch) newID(submitted int64) int64 {
	st := b.st
	at := min(max(submitted, 1), idMax)
	id := at
	if last, there := st.recent[at]; there {
		id = last + 1
	}
	for id <= st.maxID && b.idExists(id) {
		id++
	}
	if len(st.recent) > idsCachedMax {
		clear(st.recent)
	}
	st.recent[at], st.taken[id] = id, struct{}{}
	st.maxID = max(st.maxID, id)
	if at == submitted || submitted < 1 {
		st.drift = max(st.drift, id-at)
	}
	return id
}

// idsCachedMax bounds the ids that are kept in memory.
const idsCachedMax = 100_000

// idExists reports whether an id is taken.
func (b *batch) idExists(id int64) (taken bool) {
	if _, taken = b.st.taken[id]; taken || id > b.st.floor || b.err != nil {
		return taken
	}
	b.err = b.tx.QueryRow("SELECT EXISTS (SELECT 1 FROM handoff WHERE id = ?)", id).Scan(&taken)
	return taken
}

// write stores the rows. New rows go in the order of their ids, which is fastest for the search
// engine.
func (b *batch) write() {
	insert, update := b.prepare(rowInsert), b.prepare(rowUpdate)
	text, past := b.prepare("INSERT INTO text (rowid, words) VALUES (?, ?)"), b.prepare("INSERT OR IGNORE INTO past (handoff, agent) VALUES (?, ?)")
	slices.SortFunc(b.order, func(a, b *pendingRow) int { return cmp.Compare(a.id, b.id) })
	for _, l := range b.order {
		if l.isNew {
			b.run(insert, l, append(l.fixedColumns(), l.stateColumns()...)...)
		} else {
			b.run(update, l, append(l.stateColumns(), l.id)...)
		}
		for _, agent := range l.pastAgents {
			if agent != l.agent {
				b.run(past, l, l.id, agent)
			}
		}
		if l.first != nil && l.first.words != "" {
			b.run(text, l, l.id, l.first.words)
		}
	}
}

// hourMicros is an hour of the table of hours.
const hourMicros = 3_600_000_000

// inHour is the key of the table of hours.
type inHour struct {
	at      int64
	outcome int // 0: submitted
}

// count brings the tables of counts up to date.
func (b *batch) count() {
	changes, hours := map[cell]int64{}, map[inHour]int64{}
	for _, l := range b.order {
		if l.isNew {
			hours[inHour{l.after.submitted / hourMicros, 0}]++
		}
		if l.after.outcome != 0 && (l.isNew || l.counted.outcome == 0) {
			hours[inHour{l.after.closed / hourMicros, l.after.outcome}]++
		}
		now := cell{l.agent, l.after.outcome, l.after.phase, l.after.priority, l.after.kind}
		if !l.isNew {
			changes[l.counted]--
			now.priority, now.kind = l.counted.priority, l.counted.kind // they never change
		}
		changes[now]++
	}
	for c, n := range changes {
		if n != 0 {
			b.exec(tallyAdd, c.agent, c.outcome, c.phase, c.priority, c.kind, n)
		}
	}
	for h, n := range hours {
		b.exec(hourAdd, h.at, h.outcome, n)
	}
}

// fixedColumns are the columns that never change, in their order.
func (l *pendingRow) fixedColumns() []any {
	var description, why string
	if l.first != nil {
		description, why = l.first.description, l.first.why
	}
	a := &l.after
	return []any{l.id, l.ticket[:], a.submitted, l.source, l.target, a.kind, a.priority,
		nullIfEmpty(a.workflow), nullIfEmpty(a.conversation), nullIfEmpty(a.task), nullIfEmpty(a.variant),
		ticketBytes(a.parent), ticketBytes(a.family), ticketBytes(a.returnOf), ticketBytes(a.origin), description, why}
}

// stateColumns are the columns that follow the state, in their order.
func (l *pendingRow) stateColumns() []any {
	a := &l.after
	var offer, work, whole, acks any
	if a.offer != 0 {
		offer = int64(a.offer)
	}
	if a.outcome != 0 && a.closed != 0 {
		whole = max(0, a.closed-a.submitted) / 1000
		if l.taken != 0 {
			work = max(0, a.closed-l.taken) / 1000
		}
	}
	if l.acks != nil {
		acks = jsonText(l.acks)
	}
	return []any{int64(l.seq), a.phase, a.outcome, l.agent, offer, a.updated, a.closed, a.reason, a.holder,
		a.attempts, a.reroutes, a.level, a.tokens, a.cost, l.offered, l.taken, l.queueMS, work, whole, l.accepts, acks,
		a.waits, l.inbox, a.dead, l.gate, l.gated, l.governed.marks(), l.governed.column(), nullIfEmpty(a.others)}
}

// jsonText is the JSON of numbers and texts, which cannot fail.
func jsonText(value any) string {
	text, _ := json.Marshal(value)
	return string(text)
}

func nullIfEmpty(text string) any {
	if text == "" {
		return nil
	}
	return text
}

func ticketBytes(text string) any {
	id, err := uuid.Parse(text)
	if err != nil {
		return nil
	}
	return id[:]
}

// setLedger stores which ledger this is the index of.
func (st *store) setLedger(ctx context.Context, ledger time.Time) error {
	if _, err := st.db.ExecContext(ctx, "UPDATE position SET ledger=?", ledger.UTC().Format(time.RFC3339Nano)); err != nil {
		return err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.position.ledger = ledger.UTC()
	return nil
}
