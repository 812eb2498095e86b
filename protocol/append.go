package protocol

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"
)

// Values are written from their shapes, which know all that there is to know of
// a type. The bytes are those that Go's own encoder would write, without the
// escapes for HTML: a package's digest is made of them, and a test compares the
// two. It takes a fifth of the time.

// omission says when a field is left out.
type omission int

const (
	omitNever omission = iota
	omitEmpty          // without a length, nil, false or 0
	omitZero           // as IsZero has it, if the type has one
	omitUsual          // what the type has as a rule
)

// zeroer is what tells by itself whether it is absent.
type zeroer interface{ IsZero() bool }

// absent tells whether a field is left out.
func (f *field) absent(v reflect.Value) bool {
	switch f.omit {
	case omitNever:
		return false
	case omitUsual:
		return v.Equal(f.usual)
	case omitZero:
		if f.shape.kind == kindInstant {
			return v.Addr().Interface().(*time.Time).IsZero()
		}
		if f.tells {
			return v.Addr().Interface().(zeroer).IsZero()
		}
		return v.IsZero()
	}
	switch v.Kind() {
	case reflect.String, reflect.Slice, reflect.Map:
		return v.Len() == 0
	case reflect.Bool:
		return !v.Bool()
	case reflect.Int, reflect.Int64:
		return v.Int() == 0
	case reflect.Uint64:
		return v.Uint() == 0
	case reflect.Float64:
		return v.Float() == 0
	case reflect.Pointer:
		return v.IsNil()
	}
	return false // structs are never empty
}

// object writes the fields of v, a pointer to the Go type that sh was made from.
func (w *writer) object(sh *shape, v any) *Error {
	return w.fields(sh, reflect.ValueOf(v).Elem())
}

// fields writes an object with the fields of a struct.
func (w *writer) fields(sh *shape, v reflect.Value) *Error {
	if sh.direct {
		w.whole(v.Addr().Interface().(direct))
		return w.err
	}
	start := len(w.buf)
	if err := w.members(sh, v, nil); err != nil {
		return err
	}
	if len(w.buf) == start {
		w.raw("{}")
		return nil
	}
	w.buf[start] = '{' // instead of the first comma
	w.buf = append(w.buf, '}')
	return nil
}

// members writes the fields of a struct but one, each behind a comma.
func (w *writer) members(sh *shape, v reflect.Value, but *field) *Error {
	var embedded reflect.Value
	at := -1
	for _, f := range sh.order {
		var value reflect.Value
		if len(f.index) == 1 {
			value = v.Field(f.index[0])
		} else { // the fields of an embedded struct stand together
			if f.index[0] != at {
				at = f.index[0]
				embedded = v.Field(at)
			}
			value = embedded.FieldByIndex(f.index[1:])
		}
		if f == but || f.omit != omitNever && f.absent(value) {
			continue
		}
		w.buf = append(w.buf, ',')
		w.buf = append(w.buf, f.head...)
		if err := w.value(f.shape, value); err != nil {
			return err
		}
	}
	return nil
}

// value writes what has a shape. v is addressable.
func (w *writer) value(sh *shape, v reflect.Value) *Error {
	switch v.Kind() {
	case reflect.String:
		w.text(v.String())
	case reflect.Bool:
		w.buf = strconv.AppendBool(w.buf, v.Bool())
	case reflect.Int, reflect.Int64:
		w.buf = strconv.AppendInt(w.buf, v.Int(), 10)
	case reflect.Uint64:
		w.buf = strconv.AppendUint(w.buf, v.Uint(), 10)
	case reflect.Float64:
		return w.number(v.Float())
	case reflect.Pointer:
		if !v.IsNil() {
			return w.value(sh, v.Elem())
		}
		w.raw("null")
	case reflect.Slice:
		return w.list(sh, v)
	case reflect.Map:
		return w.named(v)
	default:
		return w.structure(sh, v)
	}
	return nil
}

func (w *writer) structure(sh *shape, v reflect.Value) *Error {
	switch {
	case sh.kind == kindInstant:
		return w.instant(*v.Addr().Interface().(*time.Time))
	case sh.kind == kindUnion && v.Type() == artifactsType:
		a := v.Addr().Interface().(*Artifacts)
		if a.List == nil && a.ByName != nil {
			return w.value(sh.union[1], v.Field(1))
		}
		// Should a program have set both, the names follow the list, so that
		// nothing is lost.
		all := a.All()
		return w.value(sh.union[0], reflect.ValueOf(&all).Elem())
	case sh.kind == kindUnion:
		return w.fields(sh.union[1], v)
	}
	return w.fields(sh, v)
}

func (w *writer) list(sh *shape, v reflect.Value) *Error {
	if v.IsNil() {
		w.raw("null")
		return nil
	}
	if sh.kind == kindAny {
		return w.freeData(v.Bytes())
	}
	w.buf = append(w.buf, '[')
	for i := range v.Len() {
		if i > 0 {
			w.buf = append(w.buf, ',')
		}
		if err := w.value(sh.elem, v.Index(i)); err != nil {
			return err
		}
	}
	w.buf = append(w.buf, ']')
	return nil
}

// named writes a map, sorted by its names.
func (w *writer) named(v reflect.Value) *Error {
	if v.IsNil() {
		w.raw("null")
		return nil
	}
	switch all := v.Interface().(type) {
	case map[string]json.RawMessage:
		return writeMap(w, all, w.freeData)
	case map[string]*string:
		return writeMap(w, all, func(text *string) *Error {
			if text == nil {
				w.raw("null")
			} else {
				w.text(*text)
			}
			return nil
		})
	}
	panic("protocol: no way to write " + v.Type().String())
}

func writeMap[V any](w *writer, all map[string]V, write func(V) *Error) *Error {
	names := w.names[:0]
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	defer func() {
		clear(names)
		w.names = names[:0]
	}()
	w.buf = append(w.buf, '{')
	for i, name := range names {
		if i > 0 {
			w.buf = append(w.buf, ',')
		}
		w.text(name)
		w.buf = append(w.buf, ':')
		if err := write(all[name]); err != nil {
			return err
		}
	}
	w.buf = append(w.buf, '}')
	return nil
}

// freeData writes JSON that came from elsewhere, without its white space.
func (w *writer) freeData(raw json.RawMessage) *Error {
	if raw == nil {
		w.raw("null")
		return nil
	}
	k := skimmer{data: raw}
	if end := k.value(0, skimDepthMax); end < 0 || k.space(end) != len(raw) {
		return w.oddData(raw)
	}
	if !k.spaced {
		w.buf = append(w.buf, raw...)
		return nil
	}
	for i := 0; i < len(raw); {
		switch c := raw[i]; c {
		case ' ', '\t', '\n', '\r':
			i++
		case '"':
			end := k.text(i)
			w.buf = append(w.buf, raw[i:end]...)
			i = end
		default:
			w.buf = append(w.buf, c)
			i++
		}
	}
	return nil
}

// oddData writes what is nested deeper than the skimmer goes, and says what is
// wrong with what is no JSON.
func (w *writer) oddData(raw json.RawMessage) *Error {
	body, err := marshal(raw)
	if err != nil {
		return unwritable(err)
	}
	w.buf = append(w.buf, body...)
	return nil
}

func (w *writer) instant(at time.Time) *Error {
	w.buf = append(w.buf, '"')
	buf, err := at.AppendText(w.buf)
	if err != nil {
		return unwritable(err)
	}
	w.buf = append(buf, '"')
	return nil
}

// number writes a floating-point number as ECMAScript does, which is what Go's
// encoder does.
func (w *writer) number(n float64) *Error {
	if math.IsNaN(n) || math.IsInf(n, 0) {
		return unwritable(fmt.Errorf("%g is no number in JSON", n))
	}
	format := byte('f')
	if size := math.Abs(n); size != 0 && (size < 1e-6 || size >= 1e21) {
		format = 'e'
	}
	w.buf = strconv.AppendFloat(w.buf, n, format, -1, 64)
	if end := len(w.buf); format == 'e' && end >= 4 && w.buf[end-4] == 'e' && w.buf[end-3] == '-' && w.buf[end-2] == '0' {
		w.buf[end-2] = w.buf[end-1] // e-09 is e-9
		w.buf = w.buf[:end-1]
	}
	return nil
}

// text writes a string in quotes.
func (w *writer) text(s string) {
	w.buf = append(w.buf, '"')
	done := 0 // how much of s is written
	for i := plainPrefix(s); i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if !plain[c] {
				w.buf = append(w.buf, s[done:i]...)
				w.escape(c)
				done = i + 1
			}
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			w.buf = append(append(w.buf, s[done:i]...), `\ufffd`...)
			done = i + size
		case r == '\u2028' || r == '\u2029': // which JavaScript takes for line breaks
			w.buf = append(append(w.buf, s[done:i]...), `\u202`...)
			w.buf = append(w.buf, hexDigits[r&0xF])
			done = i + size
		}
		i += size
	}
	w.buf = append(w.buf, s[done:]...)
	w.buf = append(w.buf, '"')
}

const hexDigits = "0123456789abcdef"

// escape writes a character of ASCII that may not stand in a text as it is.
func (w *writer) escape(c byte) {
	switch c {
	case '"', '\\':
		w.buf = append(w.buf, '\\', c)
	case '\b':
		w.buf = append(w.buf, '\\', 'b')
	case '\f':
		w.buf = append(w.buf, '\\', 'f')
	case '\n':
		w.buf = append(w.buf, '\\', 'n')
	case '\r':
		w.buf = append(w.buf, '\\', 'r')
	case '\t':
		w.buf = append(w.buf, '\\', 't')
	default:
		w.buf = append(w.buf, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0xF])
	}
}

// plainPrefix is how much of s, in steps of eight bytes, is ASCII that needs no
// escape.
func plainPrefix(s string) int {
	i := 0
	for ; len(s)-i >= 8; i += 8 {
		x := uint64(s[i]) | uint64(s[i+1])<<8 | uint64(s[i+2])<<16 | uint64(s[i+3])<<24 |
			uint64(s[i+4])<<32 | uint64(s[i+5])<<40 | uint64(s[i+6])<<48 | uint64(s[i+7])<<56
		if special(x)|x&highBits != 0 {
			break
		}
	}
	return i
}
