package protocol

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"
)

// store checks what was read from start on against its shape, and puts it into
// v, if there is one.
func (s *scanner) store(sh *shape, v reflect.Value, start int, escaped bool) {
	raw := s.data[start:s.pos]
	switch sh.kind {
	case kindAny:
		v.SetBytes(s.keep(start))
	case kindText:
		s.storeText(v, start, raw, escaped)
	case kindInstant:
		var at time.Time
		if err := at.UnmarshalJSON(raw); err != nil {
			s.complain(CodeInvalid, start, "must be %s", sh.wants())
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

// keep copies what was read from start on. Of a package most is free data, so
// all of it is copied at once.
func (s *scanner) keep(start int) []byte {
	switch {
	case s.own != nil:
	case s.lenient:
		return bytes.Clone(s.data[start:s.pos])
	default:
		s.own = bytes.Clone(s.data)
	}
	return s.own[start:s.pos:s.pos]
}

// storeText stores a string. Half a character would be replaced on decoding,
// so it is refused in fields of ours; free data keeps it.
func (s *scanner) storeText(v reflect.Value, start int, raw []byte, escaped bool) {
	if escaped && !s.lenient && halfCharacter(raw) {
		s.complain(CodeText, start, "holds half a character (a lone surrogate)")
		return
	}
	if !v.IsValid() {
		return
	}
	text := ""
	if escaped {
		text = unquote(raw)
	} else {
		text = s.copyText(raw[1 : len(raw)-1])
	}
	v.SetString(s.mend(text))
}

// mend replaces what is no UTF-8 in the ledger; elsewhere the whole document
// was checked.
func (s *scanner) mend(text string) string {
	if s.lenient {
		return strings.ToValidUTF8(text, "\uFFFD")
	}
	return text
}

// storeNumber stores a number, if it fits into the Go type behind the shape.
func (s *scanner) storeNumber(sh *shape, v reflect.Value, start int, text string) {
	switch sh.kind {
	case kindInteger:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			s.complain(CodeInvalid, start, "must be a whole number of at most 18 digits, written without point or exponent")
		} else if v.IsValid() {
			v.SetInt(n)
		}
	case kindCount:
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			s.complain(CodeInvalid, start, "must be a whole number, not negative, written without point or exponent")
		} else if v.IsValid() {
			v.SetUint(n)
		}
	default:
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			s.complain(CodeInvalid, start, "is too large a number")
		} else if v.IsValid() {
			v.SetFloat(n)
		}
	}
}

// halfCharacter tells whether a string has a surrogate without its other half.
func halfCharacter(raw []byte) bool {
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
	if utf8.Valid(raw) {
		return string(decodeText(raw[1 : len(raw)-1]))
	}
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
