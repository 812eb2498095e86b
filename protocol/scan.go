package protocol

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"unicode/utf8"
)

// scanner reads JSON in one pass. It finds what does not parse (with line and
// column), text that is no text, and, against a shape, values of the wrong
// type, fields nobody knows and fields given twice; and it stores what it reads
// in the Go value that the shape was made from, if it is given one.
type scanner struct {
	data   []byte
	pos    int
	keyEnd int // of the key that was just read
	depth  int
	path   []segment
	hint   string // of the root shape

	// lenient is for what stands in the ledger already, perhaps from a newer
	// program or one in another language: unknown fields and fields given twice
	// are passed over, and broken text is mended.
	lenient bool
	// around is how many levels may be around what has DepthMax itself.
	around int

	// err ends the scan: syntax, text, depth.
	err   *Error
	own   []byte // a copy of data, of which free data are parts
	texts pieces

	// problem is the first disagreement with the shape. The scan goes on after
	// it, because a wrong version explains it better.
	problem   *Error
	problemAt int // where it stands
	// unknown are the members that the shape does not know.
	unknown []member
}

// segment is one step of a path: a name, or an index where name is empty.
type segment struct {
	name  string
	index int
}

// member is a field that the shape does not know, and what to say of it.
type member struct {
	start int
	err   *Error
}

// scan reads one JSON value and nothing after it. into is a pointer to the Go
// type of the shape, or nil.
func scan(data []byte, root *shape, into any) scanner {
	s := scanner{data: data, hint: root.hint}
	var v reflect.Value
	if into != nil {
		v = reflect.ValueOf(into).Elem()
	}
	s.read(root, v)
	return s
}

// read reads one value and nothing after it, into v if there is one.
func (s *scanner) read(root *shape, v reflect.Value) {
	if s.checkText() && s.value(root, v, false) {
		s.end()
	}
}

// emptyPath is the memory of the path, for the next scan.
func (s *scanner) emptyPath() []segment {
	clear(s.path[:cap(s.path)])
	return s.path[:0]
}

// end makes sure that nothing follows.
func (s *scanner) end() bool {
	s.space()
	if s.pos < len(s.data) {
		return s.malformed("there is something after the end of the JSON")
	}
	return true
}

// isText tells whether there is neither a NUL nor anything but UTF-8.
func isText(data []byte) bool { return bytes.IndexByte(data, 0) < 0 && utf8.Valid(data) }

// checkText refuses bytes that are no text before anything else looks at them.
func (s *scanner) checkText() bool {
	if i := bytes.IndexByte(s.data, 0); i >= 0 {
		s.pos = i
		return s.fail(CodeText, "holds a NUL byte")
	}
	if !utf8.Valid(s.data) {
		for s.pos < len(s.data) {
			r, n := utf8.DecodeRune(s.data[s.pos:])
			if r == utf8.RuneError && n <= 1 {
				break
			}
			s.pos += n
		}
		return s.fail(CodeText, "holds bytes that are no UTF-8")
	}
	return true
}

// fail ends the scan at the current position.
func (s *scanner) fail(code Code, format string, args ...any) bool {
	if s.err == nil {
		s.err = Errorf(code, s.where(), "%s, at %s", fmt.Sprintf(format, args...), s.place(s.pos))
	}
	return false
}

func (s *scanner) malformed(format string, args ...any) bool {
	return s.fail(CodeMalformed, format, args...)
}

// complain objects to what stands at start; the scan goes on.
func (s *scanner) complain(code Code, start int, format string, args ...any) {
	if s.problem == nil {
		s.problemAt = start
		s.problem = Errorf(code, s.where(), "%s (%s)", fmt.Sprintf(format, args...), s.place(start))
	}
}

// place says where in the text something stands, counted from 1, columns in characters.
func (s *scanner) place(pos int) string {
	before := s.data[:min(pos, len(s.data))]
	line := bytes.Count(before, []byte{'\n'}) + 1
	column := utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:]) + 1
	return fmt.Sprintf("line %d, column %d", line, column)
}

// where writes the path of the value at hand: context.decisions[2].made_by.
func (s *scanner) where() string {
	var b []byte
	for _, step := range s.path {
		switch {
		case step.name == "":
			b = append(b, '[')
			b = strconv.AppendInt(b, int64(step.index), 10)
			b = append(b, ']')
		case len(b) > 0:
			b = append(b, '.')
			fallthrough
		default:
			b = append(b, clip(step.name)...)
		}
	}
	return string(b)
}

func (s *scanner) space() {
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return
		}
	}
}

// value reads one value, and stores it in v if there is one. nullOK says that
// null stands for a value left out.
func (s *scanner) value(sh *shape, v reflect.Value, nullOK bool) bool {
	s.space()
	if s.pos >= len(s.data) {
		return s.malformed("the JSON ends too early")
	}
	start, c := s.pos, s.data[s.pos]
	if sh.kind == kindAny && s.skim(c) {
		if v.IsValid() {
			v.SetBytes(s.keep(start))
		}
		return true
	}
	if fits := s.choose(sh, c, nullOK); fits != sh {
		v = part(v, sh, fits)
		sh = fits
	}
	if v.IsValid() && v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	var escaped, ok bool
	switch {
	case c == '{' || c == '[':
		ok = s.nested(sh, v, c)
	case c == '"':
		escaped, ok = s.text()
	case c == '-' || c >= '0' && c <= '9':
		ok = s.number()
	case c == 't':
		ok = s.literal("true")
	case c == 'f':
		ok = s.literal("false")
	case c == 'n':
		ok = s.literal("null")
	default:
		return s.malformed("expected a value, found %s", s.found())
	}
	if ok && (v.IsValid() || sh.kind != kindAny) {
		s.store(sh, v, start, escaped)
	}
	return ok
}

// skim reads over free data that begins with c, if it is JSON and nothing about
// it is rare.
func (s *scanner) skim(c byte) bool {
	if c != '{' && c != '[' && c != '"' {
		return false
	}
	k := skimmer{data: s.data}
	end := k.value(s.pos, min(skimDepthMax, s.depthMax()-s.depth))
	if end < 0 || k.nul && !s.lenient {
		return false
	}
	s.pos = end
	return true
}

// depthMax is how deep lists and objects may be nested.
func (s *scanner) depthMax() int {
	if s.lenient {
		return DepthMax + recordDepth
	}
	return DepthMax + s.around
}

// part is where the value of one alternative of a union goes. What has the
// wrong type, and null, goes nowhere.
func part(v reflect.Value, union, chosen *shape) reflect.Value {
	if !v.IsValid() || chosen.kind == kindAny {
		return reflect.Value{}
	}
	if v.Type() == artifactsType {
		return v.Field(slices.Index(union.union, chosen)) // list or map
	}
	if v.Type() == capabilityType { // a proficiency that is not given is 1
		v.Set(reflect.ValueOf(Capability{Proficiency: 1}))
	}
	if chosen.kind == kindText {
		return v.Field(0) // of a bare string: the id, the path
	}
	return v
}

// found quotes the character at hand.
func (s *scanner) found() string {
	r, _ := utf8.DecodeRune(s.data[s.pos:])
	return strconv.QuoteRuneToASCII(r)
}

// choose complains if a value that begins with c is not what the shape wants,
// and returns the shape to read it with.
func (s *scanner) choose(sh *shape, c byte, nullOK bool) *shape {
	if sh.kind == kindAny {
		return sh
	}
	if c == 'n' && (nullOK || sh.nullable) {
		return anything
	}
	if sh.kind == kindUnion {
		for _, alternative := range sh.union {
			if alternative.kind.begins(c) {
				return alternative
			}
		}
	} else if sh.kind.begins(c) {
		return sh
	}
	switch c { // what is no JSON at all is not a matter of type
	case '{', '[', '"', 't', 'f', 'n', '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		s.complain(CodeInvalid, s.pos, "must be %s", sh.wants())
	}
	return anything
}

func (s *scanner) nested(sh *shape, v reflect.Value, open byte) bool {
	if s.depth++; s.depth > s.depthMax() {
		return s.fail(CodeTooLarge, "is nested more than %d levels deep", s.depthMax())
	}
	s.pos++
	var ok bool
	if open == '{' {
		ok = s.object(sh, v)
	} else {
		ok = s.list(sh, v)
	}
	s.depth--
	return ok
}

// next tells, after a value, whether another follows in the list or object
// that closer ends.
func (s *scanner) next(closer byte) (more, ok bool) {
	s.space()
	switch {
	case s.pos >= len(s.data):
		return false, s.malformed("the JSON ends too early")
	case s.data[s.pos] == ',':
		s.pos++
		return true, true
	case s.data[s.pos] == closer:
		s.pos++
		return false, true
	}
	return false, s.malformed("expected ',' or '%c', found %s", closer, s.found())
}

// empty tells whether closer follows at once.
func (s *scanner) empty(closer byte) bool {
	s.space()
	if s.pos < len(s.data) && s.data[s.pos] == closer {
		s.pos++
		return true
	}
	return false
}

func (s *scanner) list(sh *shape, v reflect.Value) bool {
	if sh.kind != kindList {
		return s.elements(func(int) bool { return s.value(anything, reflect.Value{}, true) })
	}
	s.path = append(s.path, segment{})
	var elem reflect.Value
	fill := v.IsValid()
	if fill {
		v.SetZero() // should it be there twice
	}
	ok := s.elements(func(i int) bool {
		s.path[len(s.path)-1].index = i
		if fill {
			v.Grow(1)
			v.SetLen(i + 1)
			if elem = v.Index(i); s.leaf(sh.elem, elem) {
				return true
			}
		}
		return s.value(sh.elem, elem, false)
	})
	s.path = s.path[:len(s.path)-1]
	if fill && v.IsNil() {
		v.Set(reflect.MakeSlice(v.Type(), 0, 0)) // empty is not absent
	}
	return ok
}

// elements reads a list behind its bracket and calls fn at each element, which
// reads it.
func (s *scanner) elements(fn func(i int) bool) bool {
	if s.empty(']') {
		return true
	}
	for i := 0; ; i++ {
		if !fn(i) {
			return false
		}
		if more, ok := s.next(']'); !ok || !more {
			return ok
		}
	}
}
