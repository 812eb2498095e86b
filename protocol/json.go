package protocol

import (
	"bytes"
	"encoding/json"
	"sync"
)

// Message is one opaque message of a conversation, as it came.
type Message = json.RawMessage

// writer is a buffer that JSON is written to. It is kept for the next use: every
// append writes JSON.
type writer struct {
	buf   []byte
	names []string // of a map, to sort them
	err   *Error   // the first, of what is written field by field

	// What reflection is shown lies on the heap: here, rather than anew each time.
	state State
	pkg   Package
}

var writers = sync.Pool{New: func() any { return new(writer) }}

// keptBytesMax is the largest buffer that is kept for the next use.
const keptBytesMax = 1 << 20

// free gives the writer back. What it wrote is gone then.
func (w *writer) free() {
	if cap(w.buf) <= keptBytesMax {
		w.buf, w.err = w.buf[:0], nil
		writers.Put(w)
	}
}

// written is a copy of what was written, which stays.
func (w *writer) written() []byte { return bytes.Clone(w.buf) }

// raw writes text as it is.
func (w *writer) raw(text string) { w.buf = append(w.buf, text...) }

// marshal writes JSON of any kind, as Go's own encoder does but without escaping
// <, > and &: bodies are for programs and people, not for HTML.
func marshal(v any) ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(out.Bytes(), []byte{'\n'}), nil
}

func unwritable(err error) *Error {
	return Errorf(CodeMalformed, "", "cannot be written: %v", err)
}
