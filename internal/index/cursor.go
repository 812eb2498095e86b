package index

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"slices"

	"github.com/agenthandoff/handoff/protocol"
)

// cursor has the keys of the last row of a page. The next page begins after these keys, not
// after a number of rows: handoffs that are added meanwhile shift nothing.
type cursor struct {
	id      int64
	updated int64 // in the order of the last change; of dead letters, when they closed
}

// Encoded, in base64, a cursor has its version, a hash of its question, and its keys.
const (
	cursorVersion = 1
	cursorHash    = 12
	cursorBytes   = 1 + cursorHash + 8 + 8
)

func encodeCursor(at cursor, hash []byte) string {
	b := append([]byte{cursorVersion}, hash...)
	b = binary.BigEndian.AppendUint64(b, uint64(at.id))
	b = binary.BigEndian.AppendUint64(b, uint64(at.updated))
	return base64.RawURLEncoding.EncodeToString(b)
}

// decodeCursor reads the cursor of a question with this hash; nil for the first page.
func decodeCursor(text string, hash []byte) (*cursor, error) {
	if text == "" {
		return nil, nil
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(b) != cursorBytes || b[0] != cursorVersion {
		return nil, protocol.Errorf(protocol.CodeInvalid, "cursor", "is not the cursor of a list; start without one")
	}
	keys := b[1+cursorHash:]
	if !slices.Equal(b[1:1+cursorHash], hash) {
		return nil, protocol.Errorf(protocol.CodeInvalid, "cursor", "is of another list: it is valid only with the same filter and order")
	}
	return &cursor{id: int64(binary.BigEndian.Uint64(keys)), updated: int64(binary.BigEndian.Uint64(keys[8:]))}, nil
}

// hashOf is a hash of a question, without the length of its page.
func hashOf(question ...any) []byte {
	body, err := json.Marshal(question)
	if err != nil {
		body = nil // an instant that JSON cannot hold, which no cursor was made for
	}
	sum := sha256.Sum256(body)
	return sum[:cursorHash]
}
