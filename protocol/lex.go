package protocol

import "bytes"

// The words of JSON: literals, texts, numbers. Each function reads one from the
// place at hand and leaves the scanner behind it.

func (s *scanner) literal(word string) bool {
	if !bytes.HasPrefix(s.data[s.pos:], []byte(word)) {
		return s.malformed("expected a value, found %s", s.found())
	}
	s.pos += len(word)
	return true
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
		if unit == 0 && !s.lenient {
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
	s.skip('-')
	if s.skip('0') {
		if s.digits() {
			return s.malformed("a number may not begin with 0")
		}
	} else if !s.digits() {
		return s.malformed("expected a digit")
	}
	if s.skip('.') && !s.digits() {
		return s.malformed("expected a digit after the point")
	}
	if s.skip('e') || s.skip('E') {
		if !s.skip('+') {
			s.skip('-')
		}
		if !s.digits() {
			return s.malformed("expected a digit in the exponent")
		}
	}
	return true
}

// skip steps over c, if it is there.
func (s *scanner) skip(c byte) bool {
	if s.pos < len(s.data) && s.data[s.pos] == c {
		s.pos++
		return true
	}
	return false
}

// digits steps over digits and tells whether there were any.
func (s *scanner) digits() bool {
	start := s.pos
	for s.pos < len(s.data) && s.data[s.pos] >= '0' && s.data[s.pos] <= '9' {
		s.pos++
	}
	return s.pos > start
}
