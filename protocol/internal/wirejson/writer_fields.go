package wirejson

import (
	"encoding/json"
	"reflect"
	"strconv"
	"time"
)

// Reflection costs as much for a field as writing it. So the types that every
// handoff writes several times have code that names their fields, which
// GenerateWriters makes of the same shapes. All other types are written by way of
// their shapes.

// Direct is a type with generated code.
type Direct interface {
	// WriteFields writes the fields, each behind a comma.
	WriteFields(w *Writer)
}

// TextField and its like write a field behind its head: a comma, its name, a
// colon. Those called opt leave it out when it is empty.
func (w *Writer) TextField(head, s string) {
	w.buf = append(w.buf, head...)
	w.Text(s)
}

func (w *Writer) OptText(head, s string) {
	if s != "" {
		w.TextField(head, s)
	}
}

// TextUnless leaves out a text that is the usual one.
func (w *Writer) TextUnless(head, s, usual string) {
	if s != usual {
		w.TextField(head, s)
	}
}

// TextAt leaves out a text that is not there.
func TextAt[T ~string](w *Writer, head string, s *T) {
	if s != nil {
		w.TextField(head, string(*s))
	}
}

func (w *Writer) IntField(head string, n int64) {
	w.buf = append(w.buf, head...)
	w.buf = strconv.AppendInt(w.buf, n, 10)
}

func (w *Writer) OptInt(head string, n int64) {
	if n != 0 {
		w.IntField(head, n)
	}
}

// IntUnless leaves out a number that is the usual one.
func (w *Writer) IntUnless(head string, n, usual int64) {
	if n != usual {
		w.IntField(head, n)
	}
}

// IntAt leaves out a number that is not there.
func IntAt[T ~int | ~int64](w *Writer, head string, n *T) {
	if n != nil {
		w.IntField(head, int64(*n))
	}
}

func (w *Writer) CountField(head string, n uint64) {
	w.buf = append(w.buf, head...)
	w.buf = strconv.AppendUint(w.buf, n, 10)
}

func (w *Writer) OptCount(head string, n uint64) {
	if n != 0 {
		w.CountField(head, n)
	}
}

func (w *Writer) BoolField(head string, b bool) {
	w.buf = append(w.buf, head...)
	w.buf = strconv.AppendBool(w.buf, b)
}

func (w *Writer) OptBool(head string, b bool) {
	if b {
		w.BoolField(head, b)
	}
}

func (w *Writer) TimeField(head string, at *time.Time) {
	w.buf = append(w.buf, head...)
	w.fail(w.instant(*at))
}

func (w *Writer) OptTime(head string, at *time.Time) {
	if !at.IsZero() {
		w.TimeField(head, at)
	}
}

func (w *Writer) OptTexts(head string, all []string) {
	if len(all) == 0 {
		return
	}
	w.buf = append(w.buf, head...)
	for i, s := range all {
		w.buf = append(w.buf, "[,"[min(i, 1)])
		w.Text(s)
	}
	w.buf = append(w.buf, ']')
}

func (w *Writer) OptFree(head string, raw json.RawMessage) {
	if len(raw) > 0 {
		w.buf = append(w.buf, head...)
		w.fail(w.FreeData(raw))
	}
}

func (w *Writer) ObjectField(head string, x Direct) {
	w.buf = append(w.buf, head...)
	w.whole(x)
}

// whole writes an object.
func (w *Writer) whole(x Direct) {
	start := len(w.buf)
	x.WriteFields(w)
	if len(w.buf) == start {
		w.Raw("{}")
		return
	}
	w.buf[start] = '{' // instead of the first comma
	w.buf = append(w.buf, '}')
}

// OtherField writes a field the way that all types know. value points at it.
func (w *Writer) OtherField(f *Field, value any) {
	v := reflect.ValueOf(value).Elem()
	if f.omit != omitNever && f.absent(v) {
		return
	}
	w.buf = append(w.buf, ',')
	w.buf = append(w.buf, f.Head...)
	w.fail(w.value(f.shape, v))
}

// fail keeps the first error.
func (w *Writer) fail(err *Error) {
	if w.err == nil {
		w.err = err
	}
}

// IsZero is for structs that Go cannot compare.
func IsZero(value any) bool { return reflect.ValueOf(value).Elem().IsZero() }
