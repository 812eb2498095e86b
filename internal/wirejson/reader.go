package wirejson

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// DepthMax is the nesting depth of lists and objects. RecordDepth is how many levels of a record
// may surround a package or a result.
const (
	DepthMax    = 128
	RecordDepth = 8
)

// Reader reads JSON in one pass with a jsontext.Decoder. It finds syntax errors (with line and
// column), invalid text, and, by a shape, values of the wrong type, unknown fields and repeated
// fields. It stores the content in the Go value of the shape, if given one.
//
// A lenient reader is for entries of the ledger, perhaps from a newer program or one in another
// language: it skips unknown and repeated fields, and replaces invalid text.
type Reader struct {
	// Around is how many levels may surround a document that has DepthMax itself.
	Around int
	// Err ends the reading: syntax, text, depth.
	Err *Error
	// Problem is the first disagreement with the shape. Reading continues after it, because a wrong
	// version explains it better.
	Problem *Error

	data      []byte
	dec       *jsontext.Decoder
	input     bytes.Buffer // of data, for dec
	depth     int          // levels around the next value
	outer     int          // levels around data
	path      []segment
	hint      string // of the root shape
	nul       bool   // data may contain an escaped NUL
	problemAt int    // the offset of Problem

	lenient     bool
	invalidUTF8 bool // data of the ledger has invalid UTF-8

	own      []byte // a copy of data, which free data share
	texts    stringArena
	unquoted []byte // the last text read, if it has escapes

	unknown []member // fields that the shape does not know
}

// decoderOptions leave repeated fields and invalid text to the reader.
var decoderOptions = []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}

// Begin starts reading data.
func (s *Reader) Begin(data []byte) {
	s.data = data
	if s.dec == nil {
		s.dec = new(jsontext.Decoder)
	}
	s.input = *bytes.NewBuffer(data)
	s.dec.Reset(&s.input, decoderOptions...)
}

// BeginLenient starts reading data of the ledger.
func (s *Reader) BeginLenient(data []byte) {
	s.Begin(data)
	s.lenient, s.invalidUTF8 = true, !utf8.Valid(data)
}

// Reset makes the reader ready for reuse, and keeps its memory.
func (s *Reader) Reset() {
	s.data, s.input = nil, bytes.Buffer{}
	if s.dec != nil {
		s.dec.Reset(&s.input) // releases the data
	}
	clear(s.path[:cap(s.path)])
	*s = Reader{path: s.path[:0], dec: s.dec, unquoted: s.unquoted[:0]}
	if cap(s.unquoted) > keptBytesMax {
		s.unquoted = nil
	}
}

var readers = sync.Pool{New: func() any { return new(Reader) }}

// NewReader returns a reader of data. Its caller frees it.
func NewReader(data []byte) *Reader {
	s := readers.Get().(*Reader)
	s.Begin(data)
	return s
}

// NewLenientReader returns a reader of data of the ledger. Its caller frees it.
func NewLenientReader(data []byte) *Reader {
	s := readers.Get().(*Reader)
	s.BeginLenient(data)
	return s
}

// Free returns the reader to the pool.
func (s *Reader) Free() {
	s.Reset()
	readers.Put(s)
}

// KeepTextsApart gives each text its own memory, for readers that keep few of them.
func (s *Reader) KeepTextsApart() { s.texts.apart = true }

// ShareData makes free data share memory with the input instead of a copy.
func (s *Reader) ShareData() { s.own = s.data }

// segment is one step of a path: a name, or an index where name is empty.
type segment struct {
	name  string
	index int
}

// member is a field that the shape does not know, with its error.
type member struct {
	start int
	err   *Error
}

// Read reads one JSON value and nothing after it. into is a pointer to the Go type of the shape, or
// nil.
func (s *Reader) Read(root *Shape, into any) {
	s.hint = root.hint
	var v reflect.Value
	if into != nil {
		v = reflect.ValueOf(into).Elem()
	}
	if s.checkText() && s.value(root, v, false) {
		s.End()
	}
}

// Decode reads the next value into a pointer to the Go type of the shape. optional allows null for
// an omitted value.
func (s *Reader) Decode(sh *Shape, into any, optional bool) bool {
	return s.value(sh, reflect.ValueOf(into).Elem(), optional)
}

// DecodeField reads the next value into a field of the struct that into points at.
func (s *Reader) DecodeField(f *Field, into any) bool {
	return s.value(f.shape, reflect.ValueOf(into).Elem().FieldByIndex(f.index), false)
}

// Strict returns the error of the input if every field must be known.
func (s *Reader) Strict() *Error {
	switch {
	case s.Err != nil:
		return s.Err
	case s.Problem != nil && (len(s.unknown) == 0 || s.problemFirst()):
		return s.Problem
	case len(s.unknown) > 0:
		return s.unknown[0].err
	}
	return nil
}

// known returns the error of the input if fields may be unknown.
func (s *Reader) known() *Error {
	if s.Err != nil {
		return s.Err
	}
	return s.Problem
}

// HasUnknown reports whether there are fields that the shape does not know.
func (s *Reader) HasUnknown() bool { return len(s.unknown) > 0 }

// problemFirst reports whether the shape was violated before the first unknown field.
func (s *Reader) problemFirst() bool { return s.problemAt < s.unknown[0].start }

// Broken returns the error of a document of the ledger, whose name is field.
func (s *Reader) Broken(field string) *Error {
	code := Malformed
	err := s.known()
	switch {
	case err == nil:
		return nil
	case s.Err != nil:
		code = err.Code
	}
	return errorf(code, field, "%s: %s", cmp.Or(err.Field, "the JSON"), err.Message)
}

// Data returns the bytes from one offset to another.
func (s *Reader) Data(from, to int) []byte { return s.data[from:to] }

// Ahead returns the unread bytes.
func (s *Reader) Ahead() []byte { return s.data[s.Next():] }

// Peek returns the kind of the next value.
func (s *Reader) Peek() jsontext.Kind { return s.dec.PeekKind() }

// End checks that nothing follows.
func (s *Reader) End() bool {
	at := s.Next()
	if _, err := s.dec.ReadToken(); err != io.EOF {
		return s.Malformed(at, "there is data after the end of the JSON")
	}
	return true
}

// Next returns the offset of the next value or token.
func (s *Reader) Next() int {
	i := s.Offset()
	for i < len(s.data) && strings.IndexByte(" \t\n\r,:", s.data[i]) >= 0 {
		i++
	}
	return i
}

// Offset returns the end of the last value or token.
func (s *Reader) Offset() int { return int(s.dec.InputOffset()) }

// Raw reads the next value, which is a part of data, and checks its depth and its text. start is
// its offset.
func (s *Reader) Raw() (raw []byte, start int, ok bool) {
	raw, err := s.dec.ReadValue()
	if err != nil {
		return nil, 0, s.syntax(err)
	}
	end := s.Offset()
	start = end - len(raw)
	if end < len(s.data) && isDigit(s.data[end]) && isDigit(raw[len(raw)-1]) {
		return nil, 0, s.Malformed(start, "a number may not begin with 0")
	}
	if s.nul && hasNUL(raw) {
		return nil, 0, s.fail(Text, start, nulEscape)
	}
	if (raw[0] == '{' || raw[0] == '[') && deeper(raw, s.depthMax()-s.depth) {
		return nil, 0, s.tooDeep(start)
	}
	return s.data[start:end:end], start, true
}

// Skip skips the next value.
func (s *Reader) Skip() bool {
	_, _, ok := s.Raw()
	return ok
}

// value reads one value, and stores it in v if valid. nullOK allows null for an omitted value.
func (s *Reader) value(sh *Shape, v reflect.Value, nullOK bool) bool {
	if sh.kind == kindAny {
		raw, start, ok := s.Raw()
		if ok && v.IsValid() {
			v.SetBytes(s.keep(raw, start))
		}
		return ok
	}
	kind := s.dec.PeekKind()
	if fits, into := s.choose(sh, kind, nullOK); fits != sh {
		v = part(v, sh, fits, into)
		sh = fits
	}
	if v.IsValid() && v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	switch {
	case sh.kind == kindObject || sh.kind == kindMap || sh.kind == kindList:
		return s.nested(sh, v)
	case sh.kind == kindAny: // of another type than the shape requires
		return s.Skip()
	}
	raw, start, ok := s.Raw()
	if ok {
		s.store(sh, v, start, raw)
	}
	return ok
}

// depthMax returns the nesting depth of lists and objects.
func (s *Reader) depthMax() int {
	if s.lenient {
		return DepthMax + RecordDepth
	}
	return DepthMax + s.Around
}

// part returns the destination for the value of one form of a union. Null and values of the wrong
// type have none.
func part(v reflect.Value, union, chosen *Shape, into Form) reflect.Value {
	if !v.IsValid() || chosen.kind == kindAny {
		return reflect.Value{}
	}
	if union.defaults.IsValid() {
		v.Set(union.defaults)
	}
	if into != Whole {
		return v.Field(int(into))
	}
	return v
}

// choose returns the shape for a value of this kind of JSON, and its field if it is a form of a
// union. It reports a problem if the shape allows no such value.
func (s *Reader) choose(sh *Shape, kind jsontext.Kind, nullOK bool) (fits *Shape, into Form) {
	if kind == jsontext.KindNull && (nullOK || sh.nullable) {
		return anything, Whole
	}
	if sh.kind == kindUnion {
		for _, form := range sh.forms {
			if form.shape.kind.begins(kind) {
				return form.shape, form.into
			}
		}
	} else if sh.kind.begins(kind) {
		return sh, Whole
	}
	switch kind { // invalid JSON is not a matter of type
	case jsontext.KindInvalid, jsontext.KindEndObject, jsontext.KindEndArray:
	default:
		s.complain(Invalid, s.Next(), "must be %s", sh.wants())
	}
	return anything, Whole
}

func (s *Reader) nested(sh *Shape, v reflect.Value) bool {
	if s.depth++; s.depth > s.depthMax() {
		return s.tooDeep(s.Next())
	}
	var ok bool
	if sh.kind == kindList {
		ok = s.list(sh, v)
	} else {
		ok = s.object(sh, v)
	}
	s.depth--
	return ok
}

func (s *Reader) list(sh *Shape, v reflect.Value) bool {
	s.path = append(s.path, segment{})
	var elem reflect.Value
	fill := v.IsValid()
	if fill {
		v.SetZero() // it may be repeated
	}
	ok := s.Elements(func(i int) bool {
		s.path[len(s.path)-1].index = i
		if fill {
			v.Grow(1)
			v.SetLen(i + 1)
			elem = v.Index(i)
		}
		return s.value(sh.elem, elem, false)
	})
	s.path = s.path[:len(s.path)-1]
	if fill && v.IsNil() {
		v.Set(reflect.MakeSlice(v.Type(), 0, 0)) // empty is not absent
	}
	return ok
}

// Elements reads the next list and calls fn at each element; fn reads it.
func (s *Reader) Elements(fn func(i int) bool) bool {
	if _, err := s.dec.ReadToken(); err != nil {
		return s.syntax(err)
	}
	for i := 0; s.dec.PeekKind() != jsontext.KindEndArray; i++ {
		if !fn(i) {
			return false
		}
	}
	if _, err := s.dec.ReadToken(); err != nil {
		return s.syntax(err)
	}
	return true
}

func (s *Reader) object(sh *Shape, v reflect.Value) bool {
	if sh.defaults.IsValid() && v.IsValid() {
		v.Set(sh.defaults)
	}
	if v.IsValid() && sh.kind == kindMap {
		v.Set(reflect.MakeMap(v.Type())) // empty is not absent
	}
	var seen keys
	next := 0 // index of the expected field
	return s.Members(func(start int, raw []byte) bool {
		if f := sh.fieldFrom(next, raw[1:len(raw)-1]); f != nil {
			next = f.order + 1
			return s.field(f, v, &seen, start)
		}
		return s.member(sh, v, &seen, start, raw)
	})
}

// Members reads the next object and calls fn at the value of each member: start is the offset of
// its key, raw the key in quotes. fn reads the value.
func (s *Reader) Members(fn func(start int, raw []byte) bool) bool {
	if _, err := s.dec.ReadToken(); err != nil {
		return s.syntax(err)
	}
	for s.dec.PeekKind() != jsontext.KindEndObject {
		raw, start, ok := s.Raw()
		if !ok || !fn(start, raw) {
			return false
		}
	}
	if _, err := s.dec.ReadToken(); err != nil {
		return s.syntax(err)
	}
	return true
}

// fieldFrom returns the field of this name, if it is the next one of the shape or a later one.
// Fields usually come in the order in which they are written.
func (sh *Shape) fieldFrom(next int, name []byte) *Field {
	for _, f := range sh.order[next:] {
		if len(f.Name) == len(name) && f.Name == string(name) {
			return f
		}
	}
	return nil
}

// member reads the value of a member whose key, in quotes, is raw.
func (s *Reader) member(sh *Shape, v reflect.Value, seen *keys, start int, raw []byte) bool {
	key := raw[1 : len(raw)-1]
	if bytes.IndexByte(key, '\\') >= 0 {
		text, err := unquote(raw)
		if err != nil && !s.lenient {
			s.complain(Text, start, "has a field name with half a character in it (a lone surrogate)")
		}
		key = []byte(text)
	}
	if sh.kind == kindMap {
		return s.entry(sh, v, seen, start, s.replaceInvalidUTF8(string(key)))
	}
	if f := sh.fields[string(key)]; f != nil {
		return s.field(f, v, seen, start)
	}
	return s.unknownField(sh, v, start, key)
}

// field reads the value of a field whose key begins at start.
func (s *Reader) field(f *Field, v reflect.Value, seen *keys, start int) bool {
	if f.unwanted {
		return s.Skip()
	}
	if v.IsValid() {
		for _, i := range f.index {
			v = v.Field(i)
		}
	}
	s.path = append(s.path, segment{name: f.Name})
	if !seen.mark(f.order) && !s.lenient {
		s.complain(Malformed, start, "occurs twice")
	}
	ok := s.value(f.shape, v, true)
	s.path = s.path[:len(s.path)-1]
	return ok
}

// entry reads the value of a name in a map.
func (s *Reader) entry(sh *Shape, v reflect.Value, seen *keys, start int, key string) bool {
	s.path = append(s.path, segment{name: key})
	if v.IsValid() && v.Type() == freeType {
		return s.freeEntry(v.Interface().(map[string]json.RawMessage), start, key)
	}
	if !seen.add(key) && !s.lenient {
		s.complain(Malformed, start, "occurs twice")
	}
	var value reflect.Value
	if v.IsValid() {
		value = reflect.New(v.Type().Elem()).Elem()
	}
	ok := s.value(sh.elem, value, false)
	if ok && v.IsValid() {
		v.SetMapIndex(reflect.ValueOf(key), value)
	}
	s.path = s.path[:len(s.path)-1]
	return ok
}

var freeType = reflect.TypeFor[map[string]json.RawMessage]()

// freeEntry is entry for free data.
func (s *Reader) freeEntry(all map[string]json.RawMessage, start int, key string) bool {
	if _, there := all[key]; there && !s.lenient {
		s.complain(Malformed, start, "occurs twice")
	}
	raw, start, ok := s.Raw()
	if ok {
		all[key] = s.keep(raw, start)
	}
	s.path = s.path[:len(s.path)-1]
	return ok
}

// unknownField reads a field that the shape does not know.
func (s *Reader) unknownField(sh *Shape, v reflect.Value, start int, key []byte) bool {
	if s.lenient {
		ok := s.Skip()
		if ok && sh.keeps && v.IsValid() {
			v.Addr().Interface().(keeper).KeepUnknown(s.data[start:s.Offset()])
		}
		return ok
	}
	name := string(key)
	m := member{start: start}
	s.path = append(s.path, segment{name: name})
	m.err = errorf(UnknownField, s.where(), "%s (%s)", sh.unknownField(name, s.hint), s.place(start))
	ok := s.Skip()
	s.path = s.path[:len(s.path)-1]
	s.unknown = append(s.unknown, m)
	return ok
}

// store checks a value, at start, against its shape, and stores it in v if valid.
func (s *Reader) store(sh *Shape, v reflect.Value, start int, raw []byte) {
	switch sh.kind {
	case kindText:
		s.storeText(v, start, raw)
	case kindInstant:
		var at time.Time
		if err := at.UnmarshalJSON(raw); err != nil {
			s.complain(Invalid, start, "must be %s", sh.wants())
		} else if v.IsValid() {
			*v.Addr().Interface().(*time.Time) = at
		}
	case kindBoolean:
		if v.IsValid() {
			v.SetBool(raw[0] == 't')
		}
	case kindInteger, kindCount, kindNumber:
		s.storeNumber(sh, v, start, string(raw))
	}
}

// keep copies a value, at start. Most of a package is free data, so all of it is copied at once.
func (s *Reader) keep(raw []byte, start int) []byte {
	switch {
	case s.own != nil:
	case s.lenient:
		return bytes.Clone(raw)
	default:
		s.own = bytes.Clone(s.data)
	}
	end := start + len(raw)
	return s.own[start:end:end]
}

// storeText stores a string. A lone surrogate would be replaced on decoding, so it is refused in
// known fields; free data keeps it.
func (s *Reader) storeText(v reflect.Value, start int, raw []byte) {
	content := raw[1 : len(raw)-1]
	if bytes.IndexByte(content, '\\') >= 0 {
		var err error
		content, err = jsontext.AppendUnquote(s.unquoted[:0], raw)
		if err != nil && !s.lenient {
			s.complain(Text, start, "holds half a character (a lone surrogate)")
			return
		}
		s.unquoted = content
	}
	if v.IsValid() {
		v.SetString(s.replaceInvalidUTF8(s.texts.copy(content, len(s.data)-start)))
	}
}

// replaceInvalidUTF8 repairs a text of the ledger; other documents are checked as a whole.
func (s *Reader) replaceInvalidUTF8(text string) string {
	if s.invalidUTF8 {
		return strings.ToValidUTF8(text, "\uFFFD")
	}
	return text
}

// storeNumber stores a number, if it fits into the Go type of the shape.
func (s *Reader) storeNumber(sh *Shape, v reflect.Value, start int, text string) {
	switch sh.kind {
	case kindInteger:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			s.complain(Invalid, start, "must be a whole number of at most 18 digits, written without point or exponent")
		} else if v.IsValid() {
			v.SetInt(n)
		}
	case kindCount:
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			s.complain(Invalid, start, "must be a whole number, not negative, written without point or exponent")
		} else if v.IsValid() {
			v.SetUint(n)
		}
	default:
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			s.complain(Invalid, start, "is too large a number")
		} else if v.IsValid() {
			v.SetFloat(n)
		}
	}
}

// unquote decodes a scanned string. An error reports that it had invalid text, which is replaced.
func unquote(raw []byte) (string, error) {
	text, err := jsontext.AppendUnquote(make([]byte, 0, len(raw)), raw)
	return string(text), err
}

// stringArena is memory that short texts share: a state has some twenty of them, and most are
// shorter than the overhead of an allocation.
type stringArena struct {
	builder strings.Builder
	apart   bool // each text has its own memory
}

// arenaBytesMax bounds the memory that one text keeps alive.
const arenaBytesMax = 512

// copy returns a text with the bytes of raw. left is the unread size of the document.
func (a *stringArena) copy(raw []byte, left int) string {
	if len(raw) == 0 {
		return ""
	}
	if a.apart || len(raw) > arenaBytesMax/2 {
		return string(raw)
	}
	if a.builder.Cap()-a.builder.Len() < len(raw) {
		// Usually a third of the remaining bytes is text.
		a.builder = strings.Builder{}
		a.builder.Grow(max(len(raw), min(arenaBytesMax, left/3)))
	}
	start := a.builder.Len()
	a.builder.Write(raw)
	return a.builder.String()[start:]
}

// keys detects repeated keys: known fields by a bit each, others by name.
type keys struct {
	bits  uint64
	names map[string]struct{}
}

// mark records a field, and reports a repetition; it ignores fields beyond 64.
func (k *keys) mark(order int) bool {
	bit := uint64(1) << order
	fresh := k.bits&bit == 0
	k.bits |= bit
	return fresh
}

func (k *keys) add(key string) bool {
	if _, there := k.names[key]; there {
		return false
	}
	if k.names == nil {
		k.names = map[string]struct{}{}
	}
	k.names[key] = struct{}{}
	return true
}

// NameIs reports whether the name of a member, in quotes, is this one.
func NameIs(raw []byte, name string) bool {
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1:len(raw)-1]) == name
	}
	text, _ := unquote(raw)
	return text == name
}

// hasNUL reports whether a JSON string has the escape of a NUL.
func hasNUL(raw []byte) bool {
	for i := 0; i < len(raw); i++ {
		if raw[i] == '\\' {
			if i++; bytes.HasPrefix(raw[i:], []byte("u0000")) {
				return true
			}
		}
	}
	return false
}

const nulEscape = `holds a NUL character (\u0000)`

func (s *Reader) tooDeep(at int) bool {
	return s.fail(TooLarge, at, "is nested more than %d levels deep", s.depthMax())
}

// deeper reports whether a JSON value has more than so many levels.
func deeper(raw []byte, most int) bool {
	if bytes.Count(raw, []byte{'{'})+bytes.Count(raw, []byte{'['}) <= most {
		return false
	}
	depth, quoted := 0, false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '[' || c == '{':
			if depth++; depth > most {
				return true
			}
		case c == ']' || c == '}':
			depth--
		}
	}
	return false
}

// checkText refuses invalid text before any other check.
func (s *Reader) checkText() bool {
	if i := bytes.IndexByte(s.data, 0); i >= 0 {
		return s.fail(Text, i, "holds a NUL byte")
	}
	s.nul = !s.lenient && bytes.Contains(s.data, []byte(`\u0000`))
	if utf8.Valid(s.data) {
		return true
	}
	i := 0
	for r, n := utf8.DecodeRune(s.data); r != utf8.RuneError || n > 1; r, n = utf8.DecodeRune(s.data[i:]) {
		i += n
	}
	return s.fail(Text, i, "holds bytes that are no UTF-8")
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }
