package wirejson

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/go-json-experiment/json/jsontext"
)

// Values are written by their shapes, which describe a type completely. The bytes equal those of
// Go's own encoder, without the escapes for HTML: they determine a package's digest, and a test
// compares the two. Writing takes a fifth of the time.
//
// A field is read at its offset in the struct: reflection on a field costs as much as writing it.
// An object is written only by the shape of its own type, and a shape has the offsets of its type
// alone, so each pointer here points to a value of its type.

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

// absent reports whether the value of a field is omitted.
func (f *Field) absent(at unsafe.Pointer) bool {
	switch f.omit {
	case omitNever:
		return false
	case omitDefault:
		switch f.of.Kind() {
		case reflect.String:
			return *(*string)(at) == *(*string)(f.usual)
		case reflect.Int:
			return *(*int)(at) == *(*int)(f.usual)
		case reflect.Int64:
			return *(*int64)(at) == *(*int64)(f.usual)
		}
		return *(*bool)(at) == *(*bool)(f.usual)
	case omitZero:
		switch {
		case f.shape.kind == kindInstant:
			return (*time.Time)(at).IsZero()
		case f.knowsZero:
			return reflect.NewAt(f.of, at).Interface().(zeroer).IsZero()
		}
		return reflect.NewAt(f.of, at).Elem().IsZero()
	}
	switch f.of.Kind() {
	case reflect.String:
		return *(*string)(at) == ""
	case reflect.Bool:
		return !*(*bool)(at)
	case reflect.Int:
		return *(*int)(at) == 0
	case reflect.Int64, reflect.Uint64:
		return *(*uint64)(at) == 0
	case reflect.Float64:
		return *(*float64)(at) == 0
	case reflect.Slice:
		return len(*(*[]struct{})(at)) == 0
	case reflect.Pointer:
		return *(*unsafe.Pointer)(at) == nil
	case reflect.Map:
		return *(*unsafe.Pointer)(at) == nil || reflect.NewAt(f.of, at).Elem().Len() == 0
	}
	return false // structs are never empty
}

// Object writes the fields of v, a pointer to the Go type of sh.
func (w *Writer) Object(sh *Shape, v any) *Error {
	at := reflect.ValueOf(v)
	return w.object(sh, at.Type().Elem(), at.UnsafePointer())
}

// object writes an object with the fields of a struct.
func (w *Writer) object(sh *Shape, of reflect.Type, at unsafe.Pointer) *Error {
	start := len(w.buf)
	if err := w.members(sh, of, at, nil); err != nil {
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

// Fields writes the fields of a struct except one, each after a comma. v points at it.
func (w *Writer) Fields(sh *Shape, v any, but *Field) *Error {
	at := reflect.ValueOf(v)
	return w.members(sh, at.Type().Elem(), at.UnsafePointer(), but)
}

func (w *Writer) members(sh *Shape, of reflect.Type, at unsafe.Pointer, but *Field) *Error {
	if sh.of != of {
		panic("wirejson: a " + of.String() + " and the shape of another type")
	}
	for _, f := range sh.order {
		field := unsafe.Add(at, f.offset)
		if f == but || f.absent(field) {
			continue
		}
		w.buf = append(w.buf, ',')
		w.buf = append(w.buf, f.Head...)
		if err := w.value(f.shape, f.of, field); err != nil {
			return err
		}
	}
	return nil
}

// value writes a value of a type and its shape.
func (w *Writer) value(sh *Shape, of reflect.Type, at unsafe.Pointer) *Error {
	switch of.Kind() {
	case reflect.String:
		w.Text(*(*string)(at))
	case reflect.Bool:
		w.buf = strconv.AppendBool(w.buf, *(*bool)(at))
	case reflect.Int:
		w.buf = strconv.AppendInt(w.buf, int64(*(*int)(at)), 10)
	case reflect.Int64:
		w.buf = strconv.AppendInt(w.buf, *(*int64)(at), 10)
	case reflect.Uint64:
		w.Count(*(*uint64)(at))
	case reflect.Float64:
		return w.number(*(*float64)(at))
	case reflect.Pointer:
		if at = *(*unsafe.Pointer)(at); at != nil {
			return w.value(sh, of.Elem(), at)
		}
		w.Raw("null")
	case reflect.Slice:
		return w.list(sh, of, at)
	case reflect.Map:
		return w.named(of, at)
	default:
		return w.structure(sh, of, at)
	}
	return nil
}

func (w *Writer) structure(sh *Shape, of reflect.Type, at unsafe.Pointer) *Error {
	switch sh.kind {
	case kindInstant:
		return w.instant(*(*time.Time)(at))
	case kindUnion:
		sh, chosen := sh.chosen(reflect.NewAt(of, at).Elem())
		return w.value(sh, chosen.Type(), chosen.Addr().UnsafePointer())
	}
	return w.object(sh, of, at)
}

// chosen returns the form of a union for v, and the part to write.
func (sh *Shape) chosen(v reflect.Value) (*Shape, reflect.Value) {
	if sh.choose == nil {
		return sh.forms[len(sh.forms)-1].shape, v
	}
	i, part := sh.choose(v.Addr().Interface())
	return sh.forms[i].shape, reflect.ValueOf(part).Elem()
}

func (w *Writer) list(sh *Shape, of reflect.Type, at unsafe.Pointer) *Error {
	header := *(*[]struct{})(at) // the elements are read by their own type
	if header == nil {
		w.Raw("null")
		return nil
	}
	if sh.kind == kindAny {
		return w.FreeData(*(*[]byte)(at))
	}
	elem := of.Elem()
	first, size := unsafe.Pointer(unsafe.SliceData(header)), elem.Size()
	w.buf = append(w.buf, '[')
	for i := range header {
		if i > 0 {
			w.buf = append(w.buf, ',')
		}
		if err := w.value(sh.elem, elem, unsafe.Add(first, uintptr(i)*size)); err != nil {
			return err
		}
	}
	w.buf = append(w.buf, ']')
	return nil
}

// named writes a map, sorted by its names.
func (w *Writer) named(of reflect.Type, at unsafe.Pointer) *Error {
	switch all := reflect.NewAt(of, at).Interface().(type) {
	case *map[string]json.RawMessage:
		return writeMap(w, *all, w.FreeData)
	case *map[string]*string:
		return writeMap(w, *all, func(text *string) *Error {
			if text == nil {
				w.Raw("null")
			} else {
				w.Text(*text)
			}
			return nil
		})
	}
	panic("protocol: no way to write " + of.String())
}

func writeMap[V any](w *Writer, all map[string]V, write func(V) *Error) *Error {
	if all == nil {
		w.Raw("null")
		return nil
	}
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
	w.Raw(jsontext.Float(n).String())
	return nil
}

// Count writes a number that is not negative.
func (w *Writer) Count(n uint64) { w.buf = strconv.AppendUint(w.buf, n, 10) }

// Text writes a string in quotes.
func (w *Writer) Text(s string) {
	buf, err := jsontext.AppendQuote(w.buf, s)
	// Go's encoder escapes the replacement of invalid UTF-8, and the line breaks of JavaScript.
	if err != nil || strings.IndexByte(s, "\u2028"[0]) >= 0 && (strings.Contains(s, "\u2028") || strings.Contains(s, "\u2029")) {
		text, _ := Marshal(s) // of a string
		buf = append(w.buf, text...)
	}
	w.buf = buf
}

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
