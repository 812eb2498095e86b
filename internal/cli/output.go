package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/agenthandoff/handoff/explain"
	"github.com/agenthandoff/handoff/protocol"
)

const (
	formatText  = "text"
	formatJSON  = "json"
	formatJSONL = "jsonl"
)

var formats = []string{formatText, formatJSON, formatJSONL}

// text tells whether people read the output. In the other formats a program does.
func (a *app) text() bool { return a.format == formatText }

// printf writes text for people. What its arguments hold may come from
// anybody's package: it is escaped, the format itself is not.
func (a *app) printf(format string, args ...any) { fprintf(a.out, format, args...) }

// notef writes a remark that is no output, to stderr.
func (a *app) notef(format string, args ...any) { fprintf(a.err, format, args...) }

// progressEvery is how often a long command says how far it is.
const progressEvery = 2 * time.Second

// progress returns a notef for a long command, which most calls pass over. Many goroutines
// may call it.
func (a *app) progress() func(format string, args ...any) {
	var mu sync.Mutex
	said := time.Now()
	return func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(said) > progressEvery {
			said = time.Now()
			a.notef(format, args...)
		}
	}
}

// styled is text of our own that reaches the terminal as it is.
type styled string

func fprintf(w io.Writer, format string, args ...any) {
	for i, arg := range args {
		switch arg := arg.(type) {
		case styled:
		case error:
			args[i] = protocol.Printable(arg.Error())
		case fmt.Stringer:
			args[i] = protocol.Printable(arg.String())
		default:
			if v := reflect.ValueOf(arg); v.Kind() == reflect.String {
				args[i] = protocol.Printable(v.String())
			}
		}
	}
	fmt.Fprintf(w, format, args...)
}

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

// table writes rows in columns; the first row is the heading.
func (a *app) table(rows [][]string) error { return writeTable(a.out, rows) }

// columnGap is the space between two columns.
const columnGap = 2

func writeTable(to io.Writer, rows [][]string) error {
	w := tabwriter.NewWriter(to, 0, 0, columnGap, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			if i > 0 {
				fmt.Fprint(w, "\t")
			}
			fmt.Fprint(w, protocol.Printable(cell))
		}
		fmt.Fprint(w, "\n")
	}
	return w.Flush()
}

// wordsMin is how narrow the last column of a table may get before its words go
// onto a line of their own.
const wordsMin = 24

// tableFit is table for rows that end in words: on a terminal these are cut so
// that a line stays a line, or put below their row where too little room is left.
func (a *app) tableFit(rows [][]string) error {
	if a.width == 0 || len(rows) == 0 {
		return a.table(rows)
	}
	last := len(rows[0]) - 1
	before := 0
	for i := range last {
		widest := 0
		for _, row := range rows {
			widest = max(widest, utf8.RuneCountInString(protocol.Printable(row[i])))
		}
		before += widest + columnGap
	}
	room := a.width - before
	if room >= wordsMin {
		for _, row := range rows {
			row[last] = cutColumns(row[last], room)
		}
		return a.table(rows)
	}
	var head bytes.Buffer // every row without its words, in columns
	short := make([][]string, len(rows))
	for i, row := range rows {
		short[i] = row[:last]
	}
	if err := writeTable(&head, short); err != nil {
		return err
	}
	for i, line := range strings.Split(strings.TrimSuffix(head.String(), "\n"), "\n") {
		text := strings.TrimRight(line, " ") + "\n"
		if words := rows[i][last]; words != "" && i > 0 {
			text += "  " + cutColumns(words, a.width-2) + "\n"
		}
		if _, err := io.WriteString(a.out, text); err != nil {
			return err
		}
	}
	return nil
}

// cutColumns cuts a text to so many columns of a terminal.
func cutColumns(text string, most int) string {
	text = protocol.Printable(text)
	if utf8.RuneCountInString(text) <= most {
		return text
	}
	return string([]rune(text)[:max(most-1, 0)]) + "…"
}

// fields writes "name  value" lines, leaving out those without a value.
func (a *app) fields(pairs ...string) error {
	var rows [][]string
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			rows = append(rows, []string{pairs[i], pairs[i+1]})
		}
	}
	return a.table(rows)
}

// phase is the phase of a handoff, in its colour.
func (a *app) phase(s protocol.State) styled {
	colour := ""
	switch {
	case s.Closed && failed(s) == nil:
		colour = green
	case s.Closed:
		colour = red
	case s.Phase == protocol.Conditional, s.Phase == protocol.Retrying, s.EscalationLevel > 0:
		colour = yellow
	}
	return a.coloured(colour, explain.Phase(s))
}

const red, green, yellow = "\x1b[31m", "\x1b[32m", "\x1b[33m"

// colours tells whether stdout is a terminal whose owner wants colours.
func (a *app) colours() bool {
	return a.terminal && a.env("NO_COLOR") == "" && a.env("TERM") != "dumb"
}

// coloured is a word of our own in a colour, if it has one.
func (a *app) coloured(colour, word string) styled {
	if colour == "" || !a.colours() {
		return styled(word)
	}
	return styled(colour + word + "\x1b[0m")
}
