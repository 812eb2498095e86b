package wirejson

import (
	"bytes"
	"unicode/utf8"
)

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
