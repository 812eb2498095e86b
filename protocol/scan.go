package protocol

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"time"
	"unicode/utf16"
	"unicode/utf8"
)

// scanner reads JSON once, without building anything. It finds what does not
// parse (with line and column), text that is no text, and, against a shape,
// values of the wrong type, fields nobody knows and fields given twice. What
// passes it can be decoded into the Go type the shape was made from.
type scanner struct {
	data  []byte
	pos   int
	depth int
	path  []segment
	hint  string // of the root shape

	// err ends the scan: syntax, text, depth.
	err *Error
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

// member is a field of an object, as a range of bytes from its key to the end of its value.
type member struct {
	start, end int
	err        *Error
}

// scan reads one JSON value and nothing after it.
func scan(data []byte, root *shape) scanner {
	s := scanner{data: data, hint: root.hint}
	if s.checkText() && s.value(root, false) {
		s.space()
		if s.pos < len(data) {
			s.malformed("there is something after the end of the JSON")
		}
	}
	return s
}

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

// value reads one value. nullOK says that null stands for a value left out.
func (s *scanner) value(sh *shape, nullOK bool) bool {
	s.space()
	if s.pos >= len(s.data) {
		return s.malformed("the JSON ends too early")
	}
	start, c := s.pos, s.data[s.pos]
	sh = s.choose(sh, c, nullOK)
	switch {
	case c == '{' || c == '[':
		return s.nested(sh, c)
	case c == '"':
		escaped, ok := s.text()
		if ok && sh.kind != kindAny {
			s.checkTyped(sh, start, escaped)
		}
		return ok
	case c == '-' || c >= '0' && c <= '9':
		if !s.number() {
			return false
		}
		if sh.kind == kindInteger || sh.kind == kindNumber {
			s.checkNumber(sh, start)
		}
		return true
	case c == 't':
		return s.literal("true")
	case c == 'f':
		return s.literal("false")
	case c == 'n':
		return s.literal("null")
	}
	return s.malformed("expected a value, found %s", s.found())
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

func (s *scanner) literal(word string) bool {
	if !bytes.HasPrefix(s.data[s.pos:], []byte(word)) {
		return s.malformed("expected a value, found %s", s.found())
	}
	s.pos += len(word)
	return true
}

func (s *scanner) nested(sh *shape, open byte) bool {
	if s.depth++; s.depth > DepthMax {
		return s.fail(CodeTooLarge, "is nested more than %d levels deep", DepthMax)
	}
	s.pos++
	var ok bool
	if open == '{' {
		ok = s.object(sh)
	} else {
		ok = s.list(sh)
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

func (s *scanner) list(sh *shape) bool {
	elem := anything
	if sh.kind == kindList {
		elem = sh.elem
		s.path = append(s.path, segment{})
		defer func() { s.path = s.path[:len(s.path)-1] }()
	}
	if s.empty(']') {
		return true
	}
	for i := 0; ; i++ {
		if sh.kind == kindList {
			s.path[len(s.path)-1].index = i
		}
		if !s.value(elem, false) {
			return false
		}
		if more, ok := s.next(']'); !ok || !more {
			return ok
		}
	}
}

func (s *scanner) object(sh *shape) bool {
	var seen keys
	return s.members(func(start int, key []byte, escaped bool) bool {
		return s.member(sh, &seen, start, key, escaped)
	})
}

// members reads an object behind its brace and calls fn at the value of each
// member: start is where its key begins, raw the key in quotes. fn reads the value.
func (s *scanner) members(fn func(start int, raw []byte, escaped bool) bool) bool {
	if s.empty('}') {
		return true
	}
	for {
		s.space()
		start := s.pos
		if start >= len(s.data) {
			return s.malformed("the JSON ends too early")
		}
		if s.data[start] != '"' {
			return s.malformed("expected the name of a field in quotes, found %s", s.found())
		}
		escaped, ok := s.text()
		if !ok {
			return false
		}
		raw := s.data[start:s.pos]
		s.space()
		if s.pos >= len(s.data) || s.data[s.pos] != ':' {
			return s.malformed("expected ':' after the name of a field")
		}
		s.pos++
		if !fn(start, raw, escaped) {
			return false
		}
		if more, ok := s.next('}'); !ok || !more {
			return ok
		}
	}
}

// member reads the value of a field whose key, in quotes, is raw.
func (s *scanner) member(sh *shape, seen *keys, start int, raw []byte, escaped bool) bool {
	if sh.kind != kindObject && sh.kind != kindMap {
		return s.value(anything, true)
	}
	key := raw[1 : len(raw)-1]
	if escaped {
		if s.halfCharacter(raw) {
			s.complain(CodeText, start, "has a field name with half a character in it (a lone surrogate)")
		}
		key = []byte(unquote(raw))
	}
	if sh.kind == kindMap {
		s.path = append(s.path, segment{name: string(key)})
		if !seen.add(key) {
			s.complain(CodeMalformed, start, "is there twice")
		}
		ok := s.value(sh.elem, false)
		s.path = s.path[:len(s.path)-1]
		return ok
	}
	f := sh.fields[string(key)]
	if f == nil {
		return s.stranger(sh, start, string(key))
	}
	s.path = append(s.path, segment{name: f.name})
	if !seen.mark(f.index) {
		s.complain(CodeMalformed, start, "is there twice")
	}
	ok := s.value(f.shape, true)
	s.path = s.path[:len(s.path)-1]
	return ok
}

// stranger reads a field that the shape does not know.
func (s *scanner) stranger(sh *shape, start int, key string) bool {
	m := member{start: start}
	s.path = append(s.path, segment{name: key})
	m.err = Errorf(CodeUnknownField, s.where(), "%s (%s)", sh.unknownField(key, s.hint), s.place(start))
	ok := s.value(anything, true)
	s.path = s.path[:len(s.path)-1]
	m.end = s.pos
	s.unknown = append(s.unknown, m)
	return ok
}

// plain are the bytes of a string that need no second look.
var plain = func() (table [256]bool) {
	for c := range table {
		table[c] = c >= 0x20 && c != '"' && c != '\\'
	}
	return table
}()

// text reads a string. escaped says that there are escapes in it.
func (s *scanner) text() (escaped, ok bool) {
	data, i := s.data, s.pos+1
	for {
		for i < len(data) && plain[data[i]] {
			i++
		}
		s.pos = i
		switch {
		case i >= len(data):
			return escaped, s.malformed("a text in quotes does not end")
		case data[i] == '"':
			s.pos++
			return escaped, true
		case data[i] != '\\':
			return escaped, s.malformed("a text holds a control character (%#02x) that must be escaped", data[i])
		}
		if !s.escape() {
			return true, false
		}
		escaped, i = true, s.pos
	}
}

// escape reads one escape sequence. NUL is refused in this guise too.
func (s *scanner) escape() bool {
	rest := s.data[s.pos:]
	if len(rest) < 2 {
		return s.malformed("a text in quotes does not end")
	}
	switch rest[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.pos += 2
		return true
	case 'u':
		unit, ok := hex4(rest[2:])
		if !ok {
			return s.malformed(`\u must be followed by four hex digits`)
		}
		if unit == 0 {
			return s.fail(CodeText, `holds a NUL character (\u0000)`)
		}
		s.pos += 6
		return true
	}
	return s.malformed("there is no escape \\%c", rest[1])
}

func hex4(b []byte) (unit rune, ok bool) {
	if len(b) < 4 {
		return 0, false
	}
	for _, c := range b[:4] {
		switch {
		case c >= '0' && c <= '9':
			unit = unit<<4 | rune(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			unit = unit<<4 | rune(c|0x20-'a'+10)
		default:
			return 0, false
		}
	}
	return unit, true
}

// number reads a number as JSON has it: no leading zeros, no bare point.
func (s *scanner) number() bool {
	digits := func() bool {
		start := s.pos
		for s.pos < len(s.data) && s.data[s.pos] >= '0' && s.data[s.pos] <= '9' {
			s.pos++
		}
		return s.pos > start
	}
	at := func(set string) bool {
		return s.pos < len(s.data) && bytes.IndexByte([]byte(set), s.data[s.pos]) >= 0
	}
	if at("-") {
		s.pos++
	}
	if at("0") {
		s.pos++
		if at("0123456789") {
			return s.malformed("a number may not begin with 0")
		}
	} else if !digits() {
		return s.malformed("expected a digit")
	}
	if at(".") {
		s.pos++
		if !digits() {
			return s.malformed("expected a digit after the point")
		}
	}
	if at("eE") {
		s.pos++
		if at("+-") {
			s.pos++
		}
		if !digits() {
			return s.malformed("expected a digit in the exponent")
		}
	}
	return true
}

// checkNumber checks that a number fits into the Go type behind the shape.
func (s *scanner) checkNumber(sh *shape, start int) {
	text := string(s.data[start:s.pos])
	if sh.kind == kindInteger {
		if _, err := strconv.ParseInt(text, 10, 64); err != nil {
			s.complain(CodeInvalid, start, "must be a whole number of at most 18 digits, written without point or exponent")
		}
		return
	}
	if _, err := strconv.ParseFloat(text, 64); err != nil {
		s.complain(CodeInvalid, start, "is too large a number")
	}
}

// checkTyped checks a string that becomes a field of ours. Half a character
// would be replaced on decoding, so it is refused here and kept in free data.
func (s *scanner) checkTyped(sh *shape, start int, escaped bool) {
	raw := s.data[start:s.pos]
	if escaped && s.halfCharacter(raw) {
		s.complain(CodeText, start, "holds half a character (a lone surrogate)")
		return
	}
	if sh.kind == kindInstant {
		var at time.Time
		if err := at.UnmarshalJSON(raw); err != nil {
			s.complain(CodeInvalid, start, "must be %s", sh.wants())
		}
	}
}

// halfCharacter tells whether a string has a surrogate without its other half.
func (s *scanner) halfCharacter(raw []byte) bool {
	for i := 0; i+1 < len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		if i++; raw[i] != 'u' {
			continue
		}
		unit, _ := hex4(raw[i+1:])
		i += 4
		if !utf16.IsSurrogate(unit) {
			continue
		}
		if i+2 >= len(raw) || raw[i+1] != '\\' || raw[i+2] != 'u' {
			return true
		}
		low, _ := hex4(raw[i+3:])
		if utf16.DecodeRune(unit, low) == utf8.RuneError {
			return true
		}
		i += 6
	}
	return false
}

// unquote decodes a string that the scanner has read.
func unquote(raw []byte) string {
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return string(raw)
	}
	return text
}

// keys finds keys given twice: fields of ours by a bit each, free ones by name.
type keys struct {
	bits  uint64
	names map[string]struct{}
}

func (k *keys) mark(index int) bool {
	bit := uint64(1) << index
	fresh := k.bits&bit == 0
	k.bits |= bit
	return fresh
}

func (k *keys) add(key []byte) bool {
	if _, there := k.names[string(key)]; there {
		return false
	}
	if k.names == nil {
		k.names = map[string]struct{}{}
	}
	k.names[string(key)] = struct{}{}
	return true
}
