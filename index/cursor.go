package index

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"slices"

	"github.com/agenthandoff/handoff/protocol"
)

// place is where a page ended: the keys of its last row. Pages go on behind
// keys, not behind a number of rows, so what is added meanwhile shifts nothing.
type place struct {
	id      int64
	updated int64 // by SortUpdated
}

// A cursor is, in base64: its version, a hash of the list that it is of, and a
// place in it.
const (
	cursorVersion = 1
	cursorHash    = 12
	cursorBytes   = 1 + cursorHash + 8 + 8
)

// cursor writes a place in the list of a question.
func (q ListQuery) cursor(at place) string {
	b := append([]byte{cursorVersion}, q.hash()...)
	b = binary.BigEndian.AppendUint64(b, uint64(at.id))
	b = binary.BigEndian.AppendUint64(b, uint64(at.updated))
	return base64.RawURLEncoding.EncodeToString(b)
}

// place reads the cursor of the question; nil if it has none.
func (q ListQuery) place() (*place, error) {
	if q.Cursor == "" {
		return nil, nil
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(q.Cursor)
	if err != nil || len(b) != cursorBytes || b[0] != cursorVersion {
		return nil, protocol.Errorf(protocol.CodeInvalid, "cursor", "is none that a list has given; begin without one")
	}
	hash, keys := b[1:1+cursorHash], b[1+cursorHash:]
	if !slices.Equal(hash, q.hash()) {
		return nil, protocol.Errorf(protocol.CodeInvalid, "cursor", "is of another list: it is good only with the filter and the order that it was given for")
	}
	return &place{id: int64(binary.BigEndian.Uint64(keys)), updated: int64(binary.BigEndian.Uint64(keys[8:]))}, nil
}

// hash tells lists apart: by filter and order, not by the length of a page.
func (q ListQuery) hash() []byte {
	body, err := json.Marshal(struct {
		Filter Filter
		Sort   Sort
	}{q.Filter, q.sort()})
	if err != nil {
		body = nil // an instant that JSON cannot hold: then no place is found either
	}
	sum := sha256.Sum256(body)
	return sum[:cursorHash]
}

func (q ListQuery) sort() Sort {
	if q.Sort == "" {
		return SortNewest
	}
	return q.Sort
}
