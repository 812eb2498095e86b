package wirejson

import (
	"bytes"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// store checks a value, at start, against its shape, and puts it into v, if there is one.
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

// Keep copies a value, at start. Of a package most is free data, so all of it is
// copied at once.
func (s *Reader) Keep(raw []byte, start int) []byte {
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

// storeText stores a string. Half a character would be replaced on decoding,
// so it is refused in fields of ours; free data keeps it.
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

// replaceInvalidUTF8 mends a text of the ledger; elsewhere the whole document was checked.
func (s *Reader) replaceInvalidUTF8(text string) string {
	if s.invalidUTF8 {
		return strings.ToValidUTF8(text, "\uFFFD")
	}
	return text
}

// storeNumber stores a number, if it fits into the Go type behind the shape.
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

// unquote decodes a string that the scanner has read. The error says that it held
// broken text, which is replaced.
func unquote(raw []byte) (string, error) {
	text, err := jsontext.AppendUnquote(make([]byte, 0, len(raw)), raw)
	return string(text), err
}

// stringArena is memory that short texts share: a state has some twenty of them, and
// most are shorter than an allocation costs.
type stringArena struct {
	builder strings.Builder
	apart   bool // each text has its own memory: few are wanted
}

// arenaBytesMax bounds the memory that a text in use keeps with it.
const arenaBytesMax = 512

// copy is a text with the bytes of raw. left is how much of the document is still to be read.
func (a *stringArena) copy(raw []byte, left int) string {
	if len(raw) == 0 {
		return ""
	}
	if a.apart || len(raw) > arenaBytesMax/2 {
		return string(raw)
	}
	if a.builder.Cap()-a.builder.Len() < len(raw) {
		// A third of what is left to read is text, as a rule.
		a.builder = strings.Builder{}
		a.builder.Grow(max(len(raw), min(arenaBytesMax, left/3)))
	}
	start := a.builder.Len()
	a.builder.Write(raw)
	return a.builder.String()[start:]
}

// keys finds keys given twice: fields of ours by a bit each, free ones by name.
type keys struct {
	bits  uint64
	names map[string]struct{}
}

// mark notes a field; beyond 64 of them it does not look.
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

// NameIs tells whether the name of a member, in quotes, is this one.
func NameIs(raw []byte, name string) bool {
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1:len(raw)-1]) == name
	}
	text, _ := unquote(raw)
	return text == name
}
