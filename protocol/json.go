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

// free gives the writer back. What it wrote is gone then.
func (w *writer) free() {
	if w.buf.Cap() <= keptBytesMax {
		w.buf.Reset()
		writers.Put(w)
	}
}

// raw writes text as it is.
func (w *writer) raw(text string) { w.buf.WriteString(text) }

// value writes the JSON of v. What cannot be written is an Error with CodeMalformed.
func (w *writer) value(v any) *Error {
	if err := w.enc.Encode(v); err != nil {
		return Errorf(CodeMalformed, "", "cannot be written: %v", err)
	}
	w.buf.Truncate(w.buf.Len() - 1) // the encoder ends with a line break
	return nil
}

// marshal writes JSON without escaping <, > and &.
func marshal(v any) ([]byte, error) {
	w := writers.Get().(*writer)
	defer w.free()
	if err := w.value(v); err != nil {
		return nil, err
	}
	return bytes.Clone(w.buf.Bytes()), nil
}
