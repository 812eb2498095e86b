package protocol

import (
	"encoding/binary"
	"reflect"
	"strings"
	"time"
)

// A state has some sixty fields, nearly all of them plain texts, whole numbers and
// instants. They are read here; what is odd about one is left to the scanner's
// value, which begins again at the same place.

// leaf reads the value at hand into v, and tells whether it did.
func (s *scanner) leaf(sh *shape, v reflect.Value) bool {
	switch sh.kind {
	case kindText:
		if v.Kind() != reflect.String { // behind a pointer
			return false
		}
		raw, ascii, ok := s.plainRaw()
		if ok {
			v.SetString(s.mended(s.copyText(raw), ascii))
		}
		return ok
	case kindInteger:
		if v.Kind() == reflect.Pointer {
			return false
		}
		n, ok := s.small()
		if ok {
			v.SetInt(int64(n))
		}
		return ok
	case kindInstant:
		return v.Kind() == reflect.Struct && s.readTime(v.Addr().Interface().(*time.Time))
	}
	return false
}

// plainRaw reads the text at hand, without its quotes, if nothing in it is escaped.
func (s *scanner) plainRaw() (raw []byte, ascii, ok bool) {
	data, i := s.data, s.pos
	if i >= len(data) || data[i] != '"' {
		return nil, false, false
	}
	i++
	start := i
	var high uint64
	for len(data)-i >= 8 {
		x := binary.LittleEndian.Uint64(data[i:])
		if special(x) != 0 {
			break
		}
		high |= x
		i += 8
	}
	for i < len(data) && plain[data[i]] {
		high |= uint64(data[i])
		i++
	}
	if i >= len(data) || data[i] != '"' {
		return nil, false, false
	}
	s.pos = i + 1
	return data[start:i], high&highBits == 0, true
}

// small reads a whole number that is not negative and has at most 18 digits.
func (s *scanner) small() (n uint64, ok bool) {
	data, i := s.data, s.pos
	for i < len(data) && data[i] >= '0' && data[i] <= '9' {
		n = n*10 + uint64(data[i]-'0')
		i++
	}
	size := i - s.pos
	if size == 0 || size > 18 || size > 1 && data[s.pos] == '0' || i < len(data) && (data[i] == '.' || data[i]|0x20 == 'e') {
		return 0, false
	}
	s.pos = i
	return n, true
}

// mended is mend for a text that may be ASCII, as most are.
func (s *scanner) mended(text string, ascii bool) string {
	if ascii {
		return text
	}
	return s.mend(text)
}

// pieces are memory that short texts share: a state has some twenty of them, and
// most are shorter than what a piece of memory costs.
type pieces struct {
	builder strings.Builder
	apart   bool // each has its own: few are wanted
}

// pieceBytesMax bounds a piece, and so what a text that is kept keeps with it.
const pieceBytesMax = 512

// copyText is a text with the bytes of raw.
func (s *scanner) copyText(raw []byte) string {
	t := &s.texts
	if len(raw) == 0 {
		return ""
	}
	if t.apart || len(raw) > pieceBytesMax/2 {
		return string(raw)
	}
	if t.builder.Cap()-t.builder.Len() < len(raw) {
		// A third of what is left to read is text, as a rule.
		t.builder = strings.Builder{}
		t.builder.Grow(max(len(raw), min(pieceBytesMax, (len(s.data)-s.pos)/3)))
	}
	start := t.builder.Len()
	t.builder.Write(raw)
	return t.builder.String()[start:]
}
