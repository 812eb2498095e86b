package index

import "database/sql"

// cell is one combination of the fields to count by. Names are interned, words are numbers.
type cell struct {
	source, target, agent          int32
	phase, outcome, priority, kind uint8
}

// counts has the number of handoffs of every cell. It is kept in memory: a count by these
// fields reads no row, and a list chooses its access path by it. There are never more cells than
// handoffs, and usually far fewer.
type counts struct {
	slot  map[cell]int32
	cells []cell
	n     []int64
	free  []int32 // empty cells
	total int64
}

func (c *counts) add(at cell, n int64) {
	if n == 0 {
		return
	}
	c.total += n
	i, there := c.slot[at]
	if there {
		if c.n[i] += n; c.n[i] == 0 {
			delete(c.slot, at)
			c.free = append(c.free, i)
		}
		return
	}
	if c.slot == nil {
		c.slot = map[cell]int32{}
	}
	if last := len(c.free) - 1; last >= 0 {
		i, c.free = c.free[last], c.free[:last]
		c.cells[i], c.n[i] = at, n
	} else {
		i = int32(len(c.cells))
		c.cells, c.n = append(c.cells, at), append(c.n, n)
	}
	c.slot[at] = i
}

// load counts the rows of the file.
func (c *counts) load(db *sql.DB) error {
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
