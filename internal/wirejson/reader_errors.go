package wirejson

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// syntax ends the reading with an error of the decoder.
func (s *Reader) syntax(err error) bool {
	var syntactic *jsontext.SyntacticError
	at, reason := len(s.data), "the JSON ends too early"
	if errors.As(err, &syntactic) && !errors.Is(err, io.ErrUnexpectedEOF) {
		at, reason = int(syntactic.ByteOffset), syntactic.Err.Error()
		if s.lastComma(at) {
			reason = "there is a comma after the last entry; remove it"
		}
	}
	before := s.data[:min(at, len(s.data))]
	switch { // the first match counts
	case deeper(before, s.depthMax()-s.outer):
		return s.tooDeep(at)
	case s.nul && hasNUL(before):
		return s.fail(Text, at, nulEscape)
	}
	return s.Malformed(at, "%s", reason)
}

// lastComma reports whether only white space separates a comma from a closing bracket.
func (s *Reader) lastComma(at int) bool {
	if at >= len(s.data) || s.data[at] != ',' {
		return false
	}
	rest := bytes.TrimLeft(s.data[at+1:], " \t\r\n")
	return len(rest) > 0 && (rest[0] == '}' || rest[0] == ']')
}

// fail ends the reading at an offset.
func (s *Reader) fail(code string, at int, format string, args ...any) bool {
	if s.Err == nil {
		s.Err = errorf(code, s.where(), "%s, at %s", fmt.Sprintf(format, args...), s.place(at))
	}
	return false
}

func (s *Reader) Malformed(at int, format string, args ...any) bool {
	return s.fail(Malformed, at, format, args...)
}

// complain records a problem of the value at start; reading continues.
func (s *Reader) complain(code string, start int, format string, args ...any) {
	if s.Problem == nil {
		s.problemAt = start
		s.Problem = errorf(code, s.where(), "%s (%s)", fmt.Sprintf(format, args...), s.place(start))
	}
}

// place describes a position in the text, counted from 1, columns in characters.
func (s *Reader) place(pos int) string {
	before := s.data[:min(pos, len(s.data))]
	line := bytes.Count(before, []byte{'\n'}) + 1
	column := utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:]) + 1
	return fmt.Sprintf("line %d, column %d", line, column)
}

// where returns the path of the current value: context.decisions[2].made_by.
func (s *Reader) where() string {
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
			b = append(b, Clip(step.name)...)
		}
	}
	return string(b)
}
