package wirejson

import (
	"bytes"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

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

// Keep copies a value, at start. Most of a package is free data, so all of it is copied at once.
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
