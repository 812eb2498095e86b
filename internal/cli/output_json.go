package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf16"

	"github.com/agenthandoff/handoff/protocol"
)

// value writes one value for programs.
func (a *app) value(v any) error {
	body, err := encode(v, a.format == formatJSON)
	if err != nil {
		return err
	}
	if a.terminal {
		body = escapeJSON(body)
	}
	_, err = a.out.Write(body)
	return err
}

// escapeJSON writes out what a terminal may act upon and JSON allows as it is:
// controls beyond ASCII, marks that turn the direction of writing. It stays the
// same JSON.
func escapeJSON(body []byte) []byte {
	text := string(body)
	if protocol.PrintableLines(text) == text {
		return body
	}
	var b strings.Builder
	for _, r := range text {
		if char := string(r); r < 0x7f || protocol.Printable(char) == char {
			b.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&b, `\u%04x`, unit)
		}
	}
	return []byte(b.String())
}

// line writes one value for programs, or a line about it for people.
func (a *app) line(v any, format string, args ...any) error {
	if !a.text() {
		return a.value(v)
	}
	a.printf(format, args...)
	return nil
}

// printed prints a value in the format asked for, or returns the error of what it comes from.
func printed[T any](a *app, v T, err error, text func(T) error) error {
	switch {
	case err != nil:
		return err
	case !a.text():
		return a.value(v)
	}
	return text(v)
}

// printedList is printed for a list, of which programs read each value.
func printedList[T any](a *app, values []T, err error, text func([]T) error) error {
	switch {
	case err != nil:
		return err
	case !a.text():
		return list(a, values)
	}
	return text(values)
}

// list writes values for programs: an array, or one to a line.
func list[T any](a *app, values []T) error {
	if a.format == formatJSON {
		return a.value(orEmpty(values))
	}
	for _, v := range values {
		if err := a.value(v); err != nil {
			return err
		}
	}
	return nil
}

// orEmpty is a list that JSON has as [] where it is empty.
func orEmpty[T any](values []T) []T {
	if values == nil {
		return []T{}
	}
	return values
}

// encode writes JSON with a line end. <, > and & stay: nothing here is HTML.
func encode(v any, indent bool) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if indent {
		enc.SetIndent("", "  ")
	}
	err := enc.Encode(v)
	return buf.Bytes(), err
}

// body writes something that came from an agent: as
// it is into a file or a pipe, escaped to a terminal.
func (a *app) body(raw []byte) error {
	if a.terminal {
		raw = []byte(protocol.PrintableLines(string(raw)))
	}
	_, err := a.out.Write(raw)
	if err == nil && (len(raw) == 0 || raw[len(raw)-1] != '\n') {
		_, err = io.WriteString(a.out, "\n")
	}
	return err
}

// document writes JSON that came from an agent, indented.
func (a *app) document(raw json.RawMessage) error {
	var buf bytes.Buffer
	if err := json.Indent(&buf, raw, "", "  "); err != nil {
		return err
	}
	return a.body(buf.Bytes())
}
