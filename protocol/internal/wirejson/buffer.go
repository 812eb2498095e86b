package wirejson

import (
	"bytes"
	"encoding/json"
	"sync"
)

// Writer is a buffer that JSON is written to. It is kept for the next use: every
// append writes JSON.
type Writer struct {
	buf   []byte
	names []string // of a map, to sort them
	err   *Error   // the first, of what is written field by field
}

var writers = sync.Pool{New: func() any { return new(Writer) }}

// keptBytesMax is the largest buffer that is kept for the next use.
const keptBytesMax = 1 << 20

// NewWriter returns an empty writer. Its caller frees it.
func NewWriter() *Writer { return writers.Get().(*Writer) }

// Free gives the writer back. What it wrote is gone then.
func (w *Writer) Free() {
	w.Reset()
	writers.Put(w)
}

// Reset makes the writer empty, and keeps its memory unless that is large.
func (w *Writer) Reset() {
	if w.buf, w.err = w.buf[:0], nil; cap(w.buf) > keptBytesMax {
		w.buf = nil
	}
}

// Swap makes the writer append to buf, and returns what it has appended to until now.
func (w *Writer) Swap(buf []byte) []byte {
	buf, w.buf = w.buf, buf
	return buf
}

// Written returns a copy of what was written, which stays.
func (w *Writer) Written() []byte { return bytes.Clone(w.buf) }

// Len returns how many bytes were written.
func (w *Writer) Len() int { return len(w.buf) }

// Raw writes text as it is.
func (w *Writer) Raw(text string) { w.buf = append(w.buf, text...) }

// RawBytes writes JSON as it is.
func (w *Writer) RawBytes(raw []byte) { w.buf = append(w.buf, raw...) }

// Reopen takes back the brace that ends the object just written, so that more fields
// follow. The object is not empty.
func (w *Writer) Reopen() { w.buf = w.buf[:len(w.buf)-1] }

// Marshal writes JSON of any kind, as Go's own encoder does but without escaping
// <, > and &: bodies are for programs and people, not for HTML.
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
