package protocol

import (
	"bytes"
	"encoding/json"
)

// Message is one opaque message of a conversation, as it came.
type Message = json.RawMessage

// marshal writes JSON without escaping <, > and &: bodies are for programs
// and people, not for HTML.
func marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(buf.Bytes(), "\n"), nil
}
