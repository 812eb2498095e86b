package wirejson

import (
	"encoding/json"
	"reflect"
	"strconv"
	"time"
)

// Reflection on a field costs as much as writing it. So the types that every handoff writes several
// times have generated code (GenerateWriters), from the same shapes. All other types are written by
// their shapes.

// Direct is a type with generated code.
type Direct interface {
	// WriteFields writes the fields, each after a comma.
	WriteFields(w *Writer)
}

// TextField and similar methods write a field after its head: a comma, its name, a colon. Those
// with Opt omit an empty field.
func (w *Writer) TextField(head, s string) {
	w.buf = append(w.buf, head...)
	w.Text(s)
}

func (w *Writer) OptText(head, s string) {
	if s != "" {
		w.TextField(head, s)
	}
}

// TextUnless omits a text with the usual value.
func (w *Writer) TextUnless(head, s, usual string) {
	if s != usual {
		w.TextField(head, s)
	}
}

// TextAt omits a nil text.
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

// IntUnless omits a number with the usual value.
func (w *Writer) IntUnless(head string, n, usual int64) {
	if n != usual {
		w.IntField(head, n)
	}
}

// IntAt omits a nil number.
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

// OtherField writes a field by its shape. value points at it.
func (w *Writer) OtherField(f *Field, value any) {
	v := reflect.ValueOf(value).Elem()
	if f.omit != omitNever && f.absent(v) {
		return
	}
	w.buf = append(w.buf, ',')
	w.buf = append(w.buf, f.Head...)
	w.fail(w.value(f.shape, v))
}

// fail records the first error.
func (w *Writer) fail(err *Error) {
	if w.err == nil {
		w.err = err
	}
}

// IsZero is for structs that Go cannot compare.
func IsZero(value any) bool { return reflect.ValueOf(value).Elem().IsZero() }
