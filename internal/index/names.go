package index

import (
	"database/sql"
	"strings"
	"sync"
)

// names are the interned texts. None is ever removed.
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
			return damagef("name %d came where %d was due", id, len(n.text))
		}
		n.text, n.id[text] = append(n.text, text), int32(id)
	}
	return rows.Err()
}

// find returns the id of a name; false if no handoff has it.
func (n *names) find(text string) (int32, bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	id, ok := n.id[text]
	return id, ok
}

// under returns the names that begin with a prefix.
func (n *names) under(prefix string) (found []string) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	for _, text := range n.text {
		if strings.HasPrefix(text, prefix) {
			found = append(found, text)
		}
	}
	return found
}

// add returns the id of a name, which it adds if needed.
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

func (n *names) textOf(id int32) string {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if id < 0 || int(id) >= len(n.text) {
		return ""
	}
	return n.text[id]
}
