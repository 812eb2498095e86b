package protocol

import (
	"encoding/json"
	"reflect"
	"strconv"
	"time"
)

// Reflection costs as much for a field as writing it. So the types that every
// handoff writes and reads several times have code that names their fields, which
// direct_test.go makes of the same shapes: direct_write.go and direct_read.go.
// Whatever is not plain there goes the way of all other types.

//go:generate go test -run TestDirect -update .

// direct is a type with such code.
type direct interface {
	// write writes the fields, each behind a comma.
	write(w *writer)
	// read reads the value of the field with this number, and tells whether it did.
	read(s *scanner, field int) bool
}

var directType = reflect.TypeFor[direct]()

// textField and its like write a field behind its head: a comma, its name, a
// colon. Those called opt leave it out when it is empty.
func (w *writer) textField(head, s string) {
	w.buf = append(w.buf, head...)
	w.text(s)
}

func (w *writer) optText(head, s string) {
	if s != "" {
		w.textField(head, s)
	}
}

func (w *writer) intField(head string, n int64) {
	w.buf = append(w.buf, head...)
	w.buf = strconv.AppendInt(w.buf, n, 10)
}

func (w *writer) optInt(head string, n int64) {
	if n != 0 {
		w.intField(head, n)
	}
}

func (w *writer) countField(head string, n uint64) {
	w.buf = append(w.buf, head...)
	w.buf = strconv.AppendUint(w.buf, n, 10)
}

func (w *writer) optCount(head string, n uint64) {
	if n != 0 {
		w.countField(head, n)
	}
}

func (w *writer) boolField(head string, b bool) {
	w.buf = append(w.buf, head...)
	w.buf = strconv.AppendBool(w.buf, b)
}

func (w *writer) optBool(head string, b bool) {
	if b {
		w.boolField(head, b)
	}
}

func (w *writer) timeField(head string, at *time.Time) {
	w.buf = append(w.buf, head...)
	w.fail(w.instant(*at))
}

func (w *writer) optTime(head string, at *time.Time) {
	if !at.IsZero() {
		w.timeField(head, at)
	}
}

func (w *writer) optTexts(head string, all []string) {
	if len(all) == 0 {
		return
	}
	w.buf = append(w.buf, head...)
	for i, s := range all {
		w.buf = append(w.buf, "[,"[min(i, 1)])
		w.text(s)
	}
	w.buf = append(w.buf, ']')
}

func (w *writer) optFree(head string, raw json.RawMessage) {
	if len(raw) > 0 {
		w.buf = append(w.buf, head...)
		w.fail(w.freeData(raw))
	}
}

func (w *writer) objectField(head string, x direct) {
	w.buf = append(w.buf, head...)
	w.whole(x)
}

// whole writes an object.
func (w *writer) whole(x direct) {
	start := len(w.buf)
	x.write(w)
	if len(w.buf) == start {
		w.raw("{}")
		return
	}
	w.buf[start] = '{' // instead of the first comma
	w.buf = append(w.buf, '}')
}

// otherField writes a field the way that all types know. value points at it.
func (w *writer) otherField(f *field, value any) {
	v := reflect.ValueOf(value).Elem()
	if f.omit != omitNever && f.absent(v) {
		return
	}
	w.buf = append(w.buf, ',')
	w.buf = append(w.buf, f.head...)
	w.fail(w.value(f.shape, v))
}

// fail keeps the first error.
func (w *writer) fail(err *Error) {
	if w.err == nil {
		w.err = err
	}
}

// isZero is for structs that Go cannot compare.
func isZero(value any) bool { return reflect.ValueOf(value).Elem().IsZero() }

// readText and its like read a plain value, and tell whether there was one.
func (s *scanner) readText(into *string) bool {
	raw, ascii, ok := s.plainRaw()
	if ok {
		*into = s.mended(s.copyText(raw), ascii)
	}
	return ok
}

// readOwnText is readText for what shall have memory of its own.
func (s *scanner) readOwnText(into *string) bool {
	raw, ascii, ok := s.plainRaw()
	if ok {
		*into = s.mended(string(raw), ascii)
	}
	return ok
}

func (s *scanner) readInt(into *int) bool {
	n, ok := s.small()
	if ok {
		*into = int(n)
	}
	return ok
}

func (s *scanner) readInt64(into *int64) bool {
	n, ok := s.small()
	if ok {
		*into = int64(n)
	}
	return ok
}

func (s *scanner) readCount(into *uint64) bool {
	n, ok := s.small()
	if ok {
		*into = n
	}
	return ok
}

func (s *scanner) readBool(into *bool) bool {
	k := skimmer{data: s.data}
	if end := k.word(s.pos, "false"); end > 0 {
		*into, s.pos = false, end
		return true
	}
	if end := k.word(s.pos, "true"); end > 0 {
		*into, s.pos = true, end
		return true
	}
	return false
}

// readTexts reads a list of plain texts.
func (s *scanner) readTexts(into *[]string) bool {
	start := s.pos
	if start >= len(s.data) || s.data[start] != '[' {
		return false
	}
	s.pos++
	all := []string{} // empty is not absent
	for more := !s.empty(']'); more; {
		s.space()
		raw, ascii, ok := s.plainRaw()
		s.space()
		if !ok || s.pos >= len(s.data) || s.data[s.pos] != ',' && s.data[s.pos] != ']' {
			s.pos = start
			return false
		}
		all = append(all, s.mended(s.copyText(raw), ascii))
		more = s.data[s.pos] == ','
		s.pos++
	}
	*into = all
	return true
}

func (s *scanner) readTime(into *time.Time) bool {
	start := s.pos
	if _, _, ok := s.plainRaw(); !ok {
		return false
	}
	if into.UnmarshalJSON(s.data[start:s.pos]) != nil {
		s.pos = start
		return false
	}
	return true
}
