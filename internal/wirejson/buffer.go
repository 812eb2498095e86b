package wirejson

import (
	"bytes"
	"encoding/json"
	"sync"
)

// Writer is a buffer for writing JSON. Writers are pooled: every append writes JSON.
type Writer struct {
	buf   []byte
	names []string // of a map, for sorting
}

var writers = sync.Pool{New: func() any { return new(Writer) }}

// keptBytesMax is the largest buffer that is pooled.
const keptBytesMax = 1 << 20

// NewWriter returns an empty writer. Its caller frees it.
func NewWriter() *Writer { return writers.Get().(*Writer) }

// Free returns the writer to the pool, with its content.
func (w *Writer) Free() {
	w.Reset()
	writers.Put(w)
}

// Reset empties the writer, and keeps its memory unless that is large.
func (w *Writer) Reset() {
	if w.buf = w.buf[:0]; cap(w.buf) > keptBytesMax {
		w.buf = nil
	}
}

// Swap makes the writer append to buf, and returns its previous buffer.
func (w *Writer) Swap(buf []byte) []byte {
	buf, w.buf = w.buf, buf
	return buf
}

// Written returns a copy of the written bytes, which stay in the writer.
func (w *Writer) Written() []byte { return bytes.Clone(w.buf) }

// Len returns the number of written bytes.
func (w *Writer) Len() int { return len(w.buf) }

// Raw writes text unchanged.
func (w *Writer) Raw(text string) { w.buf = append(w.buf, text...) }

// RawBytes writes JSON unchanged.
func (w *Writer) RawBytes(raw []byte) { w.buf = append(w.buf, raw...) }

// Reopen removes the closing brace of the object just written, so that more fields can follow. The
// object is not empty.
func (w *Writer) Reopen() { w.buf = w.buf[:len(w.buf)-1] }

// Marshal writes JSON of any kind like Go's own encoder, but without escaping <, > and &: bodies
// are for programs and people, not for HTML.
func Marshal(v any) ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(out.Bytes(), []byte{'\n'}), nil
}

func unwritable(err error) *Error {
	return errorf(Malformed, "", "cannot be written: %v", err)
}
