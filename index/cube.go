package index

import (
	"database/sql"
	"sync"
)

// cell is one combination of the fields that handoffs are counted by. Names are
// interned, words are numbers.
type cell struct {
	source, target, agent          int32
	phase, outcome, priority, kind uint8
}

// cube counts the handoffs of every cell. It is kept in memory: counting by
// these fields reads no row, and a list finds by it what is best looked up first.
// There are never more cells than handoffs, and as a rule far fewer.
type cube struct {
	place  map[cell]int32
	cells  []cell
	counts []int64
	free   []int32 // cells with none
	total  int64
}

func (c *cube) add(at cell, n int64) {
	if n == 0 {
		return
	}
	c.total += n
	i, there := c.place[at]
	if there {
		if c.counts[i] += n; c.counts[i] == 0 {
			delete(c.place, at)
			c.free = append(c.free, i)
		}
		return
	}
	if c.place == nil {
		c.place = map[cell]int32{}
	}
	if last := len(c.free) - 1; last >= 0 {
		i, c.free = c.free[last], c.free[:last]
		c.cells[i], c.counts[i] = at, n
	} else {
		i = int32(len(c.cells))
		c.cells, c.counts = append(c.cells, at), append(c.counts, n)
	}
	c.place[at] = i
}

// load counts what is in the file.
func (c *cube) load(db *sql.DB) error {
	rows, err := db.Query("SELECT source, target, agent, phase, outcome, priority, type FROM handoff")
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var at cell
		if err := rows.Scan(&at.source, &at.target, &at.agent, &at.phase, &at.outcome, &at.priority, &at.kind); err != nil {
			return err
		}
		c.add(at, 1)
	}
	return rows.Err()
}

// names are the interned texts. They are only ever added to.
type names struct {
	mu   sync.RWMutex
	text []string // by id, from 1
	id   map[string]int32
}

func (n *names) load(db *sql.DB) error {
	n.text, n.id = []string{""}, map[string]int32{"": 0}
	rows, err := db.Query("SELECT id, text FROM name ORDER BY id")
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var id int
		var text string
		if err := rows.Scan(&id, &text); err != nil {
			return err
		}
		if id != len(n.text) {
			return damaged("name %d came where %d was due", id, len(n.text))
		}
		n.text, n.id[text] = append(n.text, text), int32(id)
	}
	return rows.Err()
}

// find is the id of a name; false where no handoff has it.
func (n *names) find(text string) (int32, bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	id, ok := n.id[text]
	return id, ok
}

// add is find that adds what is not there.
func (n *names) add(text string) (id int32, fresh bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if id, ok := n.id[text]; ok {
		return id, false
	}
	id = int32(len(n.text))
	n.text, n.id[text] = append(n.text, text), id
	return id, true
}

func (n *names) of(id int32) string {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if id < 0 || int(id) >= len(n.text) {
		return ""
	}
	return n.text[id]
}
