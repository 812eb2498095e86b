//go:build proof

package process

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"
)

// wrapped is the field under which a message travels as base64 whose own form
// the protocol refuses: characters that no text may hold, or no object at all.
const wrapped = "recorded_bytes"

func wrapAll(messages []json.RawMessage) []json.RawMessage {
	all := make([]json.RawMessage, len(messages))
	for i, m := range messages {
		all[i] = wrap(m)
	}
	return all
}

func wrap(m json.RawMessage) json.RawMessage {
	// A backslash that is escaped itself makes this wrap once too often, which is harmless.
	lower := bytes.ToLower(m)
	if bytes.HasPrefix(m, []byte("{")) && utf8.Valid(m) &&
		!bytes.Contains(lower, []byte(`\u0000`)) && !bytes.Contains(lower, []byte(`\ud`)) {
		return m
	}
	body, _ := json.Marshal(map[string][]byte{wrapped: m}) // cannot fail
	return body
}

func unwrapAll(messages []json.RawMessage) []json.RawMessage {
	for i, m := range messages {
		var w map[string]json.RawMessage
		var body []byte
		if json.Unmarshal(m, &w) == nil && len(w) == 1 && json.Unmarshal(w[wrapped], &body) == nil {
			messages[i] = body
		}
	}
	return messages
}
