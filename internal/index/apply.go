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

// batch applies steps to the file in one transaction.
type batch struct {
	st    *store
	tx    *sql.Tx
	rows  map[uuid.UUID]*pendingRow
	order []*pendingRow
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
func (st *store) apply(ctx context.Context, steps []step) error {
	last := steps[len(steps)-1]
	// For a context that can end, the driver starts a goroutine per statement.
	ctx = context.WithoutCancel(ctx)
	tx, err := st.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // has no effect after the commit
	b := &batch{st: st, tx: tx, rows: make(map[uuid.UUID]*pendingRow, len(steps))}
	if err := b.applySteps(ctx, steps); err != nil {
		return err
	}
	if err := b.write(ctx); err != nil {
		return err
	}
	if err := b.count(ctx); err != nil {
		return err
	}
	next := slices.Clone(st.currentPosition().next)
	for i := range steps {
		next.Pass(steps[i].seq)
	}
	if _, err := tx.ExecContext(ctx, "UPDATE position SET next=?, at=?, drift=?", next.String(), toMicros(last.at), st.drift); err != nil {
		return err
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

// applySteps applies the steps to the rows of their handoffs.
func (b *batch) applySteps(ctx context.Context, steps []step) error {
	read, err := b.tx.PrepareContext(ctx, rowRead)
	if err != nil {
		return err
	}
	for i := range steps {
		s := &steps[i]
		if s.ticket == uuid.Nil {
			continue
		}
		l := b.rows[s.ticket]
		if l == nil {
			if l, err = b.row(ctx, read, s); err != nil {
				return err
			}
			b.rows[s.ticket], b.order = l, append(b.order, l)
		}
		for _, o := range s.observations {
			if err := b.observe(ctx, l, o); err != nil {
				return err
			}
		}
		if err := b.advance(ctx, l, s); err != nil {
			return err
		}
	}
	return nil
}

// row finds the row of a step's handoff, or makes it, even if the ledger has dropped its first
// entry.
func (b *batch) row(ctx context.Context, read *sql.Stmt, s *step) (*pendingRow, error) {
	l := &pendingRow{ticket: s.ticket, isNew: true}
	if s.first == nil || b.st.checkDuplicates {
		var acks, governed sql.NullString
		c := &l.counted
		err := read.QueryRowContext(ctx, s.ticket[:]).Scan(&l.id, &c.agent, &c.outcome, &c.phase, &c.priority, &c.kind,
			&l.offered, &l.taken, &l.queueMS, &l.accepts, &acks, &l.gate, &l.gated, &governed)
		switch {
		case errors.Is(err, sql.ErrNoRows):
		case err != nil:
			return nil, err
		default:
			l.isNew, l.agent = false, c.agent
			if acks.Valid {
				if err := json.Unmarshal([]byte(acks.String), &l.acks); err != nil {
					return nil, damagef("acknowledgements of %s: %w", l.ticket, err)
				}
			}
			if l.governed, err = parseGoverned(governed); err != nil {
				return nil, damagef("governance of %s: %w", l.ticket, err)
			}
		}
	}
	if l.isNew {
		var err error
		if l.id, err = b.newID(ctx, s.after.submitted); err != nil {
			return nil, err
		}
		l.first = s.first
	}
	return l, nil
}

// observe adds an event to the totals.
func (b *batch) observe(ctx context.Context, l *pendingRow, o observation) error {
	if l.govern(o) {
		return nil
	}
	switch o.kind {
	case "offered":
		l.offered = cmp.Or(l.offered, o.at)
		if o.to == "" {
			return nil
		}
		to, err := b.name(ctx, o.to)
		l.addPastAgent(to)
		return err
	case "accepted", "taken":
		l.taken = o.at
		if l.queueMS == nil && l.offered != 0 {
			queue := max(0, o.at-l.offered) / 1000
			l.queueMS = &queue
		}
	}
	if o.agent == "" {
		return nil
	}
	agent, err := b.name(ctx, o.agent)
	if err != nil {
		return err
	}
	if o.kind == "accepted" && l.acks == nil && (l.accepts == 0 || l.agent == agent) {
		l.accepts++
		l.agent = agent
		return nil
	}
	l.listAcks()
	row := ackRow{Agent: agent, Accepted: 1}
	if o.kind == "rejected" {
		row = ackRow{Agent: agent, Refused: 1, Reason: o.reason}
	}
	for i := range l.acks {
		if has := &l.acks[i]; has.Agent == row.Agent && has.Reason == row.Reason && (has.Refused > 0) == (row.Refused > 0) {
			has.Accepted, has.Refused = has.Accepted+row.Accepted, has.Refused+row.Refused
			return nil
		}
	}
	if len(l.acks) < ackRowsMax {
		l.acks = append(l.acks, row)
	}
	return nil
}

// listAcks turns the count of the current agent's acknowledgements into the list of all.
func (l *pendingRow) listAcks() {
	if l.acks == nil && l.accepts > 0 {
		l.acks = []ackRow{{Agent: l.agent, Accepted: l.accepts}}
	}
	l.accepts = 0
}

// advance sets the handoff to its state after the step.
func (b *batch) advance(ctx context.Context, l *pendingRow, s *step) error {
	agent, err := b.name(ctx, s.after.agent)
	if err != nil {
		return err
	}
	if agent != l.agent && l.accepts > 0 {
		l.listAcks()
	}
	if agent != l.agent {
		l.addPastAgent(l.agent)
	}
	l.seq, l.after = s.seq, s.after
	l.agent = agent
	l.settle(s)
	if l.inbox, err = b.name(ctx, s.after.inbox); err != nil {
		return err
	}
	if l.isNew && l.source == 0 { // these fields never change
		if l.source, err = b.name(ctx, s.after.source); err != nil {
			return err
		}
		l.target, err = b.name(ctx, s.after.target)
	}
	return err
}

// addPastAgent adds an agent that had the handoff.
func (l *pendingRow) addPastAgent(agent int32) {
	if agent != 0 && !slices.Contains(l.pastAgents, agent) {
		l.pastAgents = append(l.pastAgents, agent)
	}
}

// name interns a name.
func (b *batch) name(ctx context.Context, text string) (int32, error) {
	id, fresh := b.st.names.add(text)
	if !fresh {
		return id, nil
	}
	_, err := b.tx.ExecContext(ctx, "INSERT INTO name VALUES (?, ?)", id, text)
	return id, err
}

// idMax is the greatest id, in the year 6429. Later instants are forged.
const idMax = 1 << 57

// newID returns the first free id from an instant on. The store's drift is the greatest distance
// of an id from its instant.
func (b *batch) newID(ctx context.Context, submitted int64) (int64, error) {
	st := b.st
	at := min(max(submitted, 1), idMax)
	id := at
	if last, there := st.recent[at]; there {
		id = last + 1
	}
	for id <= st.maxID {
		there, err := b.idExists(ctx, id)
		if err != nil {
			return 0, err
		}
		if !there {
			break
		}
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
	return id, nil
}

// idsCachedMax bounds the ids that are kept in memory.
const idsCachedMax = 100_000

// idExists reports whether an id is taken.
func (b *batch) idExists(ctx context.Context, id int64) (taken bool, err error) {
	if _, taken = b.st.taken[id]; taken || id > b.st.floor {
		return taken, nil
	}
	err = b.tx.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM handoff WHERE id = ?)", id).Scan(&taken)
	return taken, err
}

// write stores the rows. New rows go in the order of their ids, which is fastest for the search
// engine.
func (b *batch) write(ctx context.Context) error {
	var insert, update, text, past *sql.Stmt // the end of the transaction closes them
	for query, statement := range map[string]**sql.Stmt{rowInsert: &insert, rowUpdate: &update,
		"INSERT INTO text (rowid, words) VALUES (?, ?)":             &text,
		"INSERT OR IGNORE INTO past (handoff, agent) VALUES (?, ?)": &past} {
		var err error
		if *statement, err = b.tx.PrepareContext(ctx, query); err != nil {
			return err
		}
	}
	slices.SortFunc(b.order, func(a, b *pendingRow) int { return cmp.Compare(a.id, b.id) })
	for _, l := range b.order {
		changing, err := l.stateColumns()
		if err != nil {
			return err
		}
		if !l.isNew {
			_, err = update.ExecContext(ctx, append(changing, l.id)...)
		} else {
			_, err = insert.ExecContext(ctx, append(l.fixedColumns(), changing...)...)
		}
		if err != nil {
			return fmt.Errorf("store %s: %w", l.ticket, err)
		}
		for _, agent := range l.pastAgents {
			if agent == l.agent {
				continue
			}
			if _, err := past.ExecContext(ctx, l.id, agent); err != nil {
				return fmt.Errorf("store the past agents of %s: %w", l.ticket, err)
			}
		}
		if l.first == nil || l.first.words == "" {
			continue
		}
		if _, err := text.ExecContext(ctx, l.id, l.first.words); err != nil {
			return fmt.Errorf("store the words of %s: %w", l.ticket, err)
		}
	}
	return nil
}

// hourMicros is an hour of the table of hours.
const hourMicros = 3_600_000_000

// inHour is the key of the table of hours.
type inHour struct {
	at      int64
	outcome int // 0: submitted
}

// count brings the tables of counts up to date.
func (b *batch) count(ctx context.Context) error {
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
		if n == 0 {
			continue
		}
		if _, err := b.tx.ExecContext(ctx, tallyAdd, c.agent, c.outcome, c.phase, c.priority, c.kind, n); err != nil {
			return fmt.Errorf("count handoffs: %w", err)
		}
	}
	for h, n := range hours {
		if _, err := b.tx.ExecContext(ctx, hourAdd, h.at, h.outcome, n); err != nil {
			return fmt.Errorf("count the hours: %w", err)
		}
	}
	return nil
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
func (l *pendingRow) stateColumns() ([]any, error) {
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
		text, err := json.Marshal(l.acks)
		if err != nil {
			return nil, err
		}
		acks = string(text)
	}
	governed, err := l.governed.column()
	if err != nil {
		return nil, err
	}
	return []any{int64(l.seq), a.phase, a.outcome, l.agent, offer, a.updated, a.closed, a.reason, a.holder,
		a.attempts, a.reroutes, a.level, a.tokens, a.cost, l.offered, l.taken, l.queueMS, work, whole, l.accepts, acks,
		a.waits, l.inbox, a.dead, l.gate, l.gated, l.governed.marks(), governed, nullIfEmpty(a.others)}, nil
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
