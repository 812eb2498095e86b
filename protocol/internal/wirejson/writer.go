package wirejson

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// Values are written by their shapes, which describe a type completely. The bytes equal those of
// Go's own encoder, without the escapes for HTML: they determine a package's digest, and a test
// compares the two. Writing takes a fifth of the time.

// omission is the rule for omitting a field.
type omission int

const (
	omitNever   omission = iota
	omitEmpty            // zero length, nil, false or 0
	omitZero             // by IsZero, if the type has it
	omitDefault          // equal to the defaults of the type
)

// zeroer is a type that decides whether it is absent.
type zeroer interface{ IsZero() bool }

// absent reports whether a field is omitted.
func (f *Field) absent(v reflect.Value) bool {
	switch f.omit {
	case omitNever:
		return false
	case omitDefault:
		return v.Equal(f.defaultsTo)
	case omitZero:
		if f.shape.kind == kindInstant {
			return v.Addr().Interface().(*time.Time).IsZero()
		}
		if f.knowsZero {
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

// Object writes the fields of v, a pointer to the Go type of sh.
func (w *Writer) Object(sh *Shape, v any) *Error {
	return w.fields(sh, reflect.ValueOf(v).Elem())
}

// fields writes an object with the fields of a struct.
func (w *Writer) fields(sh *Shape, v reflect.Value) *Error {
	if sh.direct {
		w.whole(v.Addr().Interface().(Direct))
		return w.err
	}
	start := len(w.buf)
	if err := w.members(sh, v, nil); err != nil {
		return err
	}
	if len(w.buf) == start {
		w.Raw("{}")
		return nil
	}
	w.buf[start] = '{' // instead of the first comma
	w.buf = append(w.buf, '}')
	return nil
}

// Fields writes the fields of a struct except one, each after a comma. value points at it.
func (w *Writer) Fields(sh *Shape, value any, but *Field) *Error {
	if x, ok := value.(Direct); ok {
		x.WriteFields(w)
		return w.err
	}
	return w.members(sh, reflect.ValueOf(value).Elem(), but)
}

func (w *Writer) members(sh *Shape, v reflect.Value, but *Field) *Error {
	var embedded reflect.Value
	at := -1
	for _, f := range sh.order {
		var value reflect.Value
		if len(f.index) == 1 {
			value = v.Field(f.index[0])
		} else { // embedded fields are adjacent
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
		w.buf = append(w.buf, f.Head...)
		if err := w.value(f.shape, value); err != nil {
			return err
		}
	}
	return nil
}

// value writes a value of a shape. v is addressable.
func (w *Writer) value(sh *Shape, v reflect.Value) *Error {
	switch v.Kind() {
	case reflect.String:
		w.Text(v.String())
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
		w.Raw("null")
	case reflect.Slice:
		return w.list(sh, v)
	case reflect.Map:
		return w.named(v)
	default:
		return w.structure(sh, v)
	}
	return nil
}

func (w *Writer) structure(sh *Shape, v reflect.Value) *Error {
	switch sh.kind {
	case kindInstant:
		return w.instant(*v.Addr().Interface().(*time.Time))
	case kindUnion:
		if sh, v = sh.chosen(v); v.Kind() != reflect.Struct {
			return w.value(sh, v)
		}
	}
	return w.fields(sh, v)
}

// chosen returns the form of a union for v, and the part to write.
func (sh *Shape) chosen(v reflect.Value) (*Shape, reflect.Value) {
	if sh.choose == nil {
		return sh.forms[len(sh.forms)-1].shape, v
	}
	i, part := sh.choose(v.Addr().Interface())
	return sh.forms[i].shape, reflect.ValueOf(part).Elem()
}

func (w *Writer) list(sh *Shape, v reflect.Value) *Error {
	if v.IsNil() {
		w.Raw("null")
		return nil
	}
	if sh.kind == kindAny {
		return w.FreeData(v.Bytes())
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
func (w *Writer) named(v reflect.Value) *Error {
	if v.IsNil() {
		w.Raw("null")
		return nil
	}
	switch all := v.Interface().(type) {
	case map[string]json.RawMessage:
		return writeMap(w, all, w.FreeData)
	case map[string]*string:
		return writeMap(w, all, func(text *string) *Error {
			if text == nil {
				w.Raw("null")
			} else {
				w.Text(*text)
			}
			return nil
		})
	}
	panic("protocol: no way to write " + v.Type().String())
}

func writeMap[V any](w *Writer, all map[string]V, write func(V) *Error) *Error {
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
		w.Text(name)
		w.buf = append(w.buf, ':')
		if err := write(all[name]); err != nil {
			return err
		}
	}
	w.buf = append(w.buf, '}')
	return nil
}

// FreeData writes JSON from outside, without its white space.
func (w *Writer) FreeData(raw json.RawMessage) *Error {
	if raw == nil {
		w.Raw("null")
		return nil
	}
	buf, err := jsontext.AppendFormat(w.buf, raw, freeDataOptions...)
	if err != nil {
		return unwritable(err)
	}
	w.buf = buf
	return nil
}

// freeDataOptions change only the white space of free data.
var freeDataOptions = []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true), jsontext.PreserveRawStrings(true)}

func (w *Writer) instant(at time.Time) *Error {
	w.buf = append(w.buf, '"')
	buf, err := at.AppendText(w.buf)
	if err != nil {
		return unwritable(err)
	}
	w.buf = append(buf, '"')
	return nil
}

// number writes a floating-point number as ECMAScript does, like Go's encoder.
func (w *Writer) number(n float64) *Error {
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

// Text writes a string in quotes.
func (w *Writer) Text(s string) {
	w.buf = append(w.buf, '"')
	done := 0 // written part of s
	for i := 0; i < len(s); {
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
		case r == '\u2028' || r == '\u2029': // JavaScript takes them for line breaks
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

// escape writes an ASCII character that must be escaped in a text.
func (w *Writer) escape(c byte) {
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

// plain marks the bytes of a JSON string that need no escape.
var plain = func() (table [256]bool) {
	for c := range table {
		table[c] = c >= 0x20 && c != '"' && c != '\\'
	}
	return table
}()
