package protocol

import (
	"bytes"
	"encoding/json"
	"sync"
)

// Message is one opaque message of a conversation, as it came.
type Message = json.RawMessage

// writer is a JSON encoder and the buffer it writes to. They are kept for the
// next use: every append writes JSON.
type writer struct {
	buf bytes.Buffer
	enc *json.Encoder
}

var writers = sync.Pool{New: func() any {
	w := new(writer)
	w.enc = json.NewEncoder(&w.buf)
	// Bodies are for programs and people, not for HTML: <, > and & stay.
	w.enc.SetEscapeHTML(false)
	return w
}}

// keptBytesMax is the largest buffer that is kept for the next use.
const keptBytesMax = 1 << 20

// appendJSON appends the JSON of v to dst.
func appendJSON(dst []byte, v any) ([]byte, error) {
	w := writers.Get().(*writer)
	w.buf.Reset()
	if err := w.enc.Encode(v); err != nil {
		return dst, err
	}
	dst = append(dst, bytes.TrimSuffix(w.buf.Bytes(), []byte{'\n'})...)
	if w.buf.Cap() <= keptBytesMax {
		writers.Put(w)
	}
	return dst, nil
}

// marshal writes JSON without escaping <, > and &.
func marshal(v any) ([]byte, error) { return appendJSON(nil, v) }
