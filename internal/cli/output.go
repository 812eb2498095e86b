package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"time"
	"unicode/utf16"

	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

const (
	formatText  = "text"
	formatJSON  = "json"
	formatJSONL = "jsonl"
)

var formats = []string{formatText, formatJSON, formatJSONL}

// text reports whether people read the output. In the other formats a program does.
func (a *app) text() bool { return a.format == formatText }

// printf writes text for people. Its arguments may come from anybody's package: they are escaped,
// the format itself is not.
func (a *app) printf(format string, args ...any) { fprintf(a.out, format, args...) }

// notef writes a remark that is no output, to stderr.
func (a *app) notef(format string, args ...any) { fprintf(a.err, format, args...) }

// progressEvery is the interval of progress reports of a long command.
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

// fields writes "name  value" lines, leaving out those without a value. On a terminal long values are
// wrapped, under themselves.
func (a *app) fields(pairs ...string) {
	var texts []string
	widest := 0
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			widest = max(widest, columnsOf(pairs[i]))
			texts = append(texts, pairs[i+1])
		}
	}
	shorten := a.shortens(texts...)
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			continue
		}
		indent := strings.Repeat(" ", widest+columnGap)
		a.hang(pairs[i]+indent[columnsOf(pairs[i]):], indent, shorten(pairs[i+1]), a.fitTo())
	}
}

// paragraph prints a text, on a terminal in lines that fit.
func (a *app) paragraph(text string) {
	a.hang("", "", a.shortens(text)(text), a.fitTo())
}

// commands prints commands, each behind its purpose; on a terminal that is too narrow for a pair,
// below it.
func (a *app) commands(pairs ...string) {
	shorten := a.shortens(pairs...)
	widest, whole := 0, 0
	for i := 0; i+1 < len(pairs); i += 2 {
		pairs[i], pairs[i+1] = protocol.Printable(pairs[i]), protocol.Printable(shorten(pairs[i+1]))
		widest, whole = max(widest, columnsOf(pairs[i])), max(whole, columnsOf(pairs[i+1]))
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		if most := a.fitTo(); most > 0 && widest+columnGap+whole > most {
			a.printf("%s\n  %s\n", styled(pairs[i]), a.coloured(bold, pairs[i+1]))
			continue
		}
		a.printf("%-*s%s\n", widest+columnGap, styled(pairs[i]), a.coloured(bold, pairs[i+1]))
	}
}

// hang prints a text behind first, and the further lines of so many columns behind next; of 0 columns
// it is one line.
func (a *app) hang(first, next, text string, columns int) {
	lines := []string{protocol.Printable(text)}
	if columns > 0 {
		lines = wrapColumns(lines[0], max(columns-columnsOf(next), 20))
	}
	for _, line := range lines {
		a.printf("%s%s\n", styled(first), line)
		first = next
	}
}

// phase is the phase of a handoff, in its colour.
func (a *app) phase(s protocol.State) styled {
	colour := phaseColour(explain.Phase(s))
	if !s.Closed && s.Agent == protocol.Human {
		colour = amber
	}
	return a.coloured(colour, explain.Phase(s))
}

// headline is the first line about a handoff: its ticket and its phase.
func (a *app) headline(s protocol.State) {
	a.printf("%s  %s\n", a.shortens(s.Ticket)(s.Ticket), a.phase(s))
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

// escapeJSON escapes characters that a terminal may act upon and JSON allows: controls beyond
// ASCII, marks that turn the direction of writing. It stays the same JSON.
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

// printed prints a value in the format asked for, or returns the error of the value.
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

// document writes JSON that came from an agent, indented. A pipe may end at a terminal, and escaped
// it is the same JSON.
func (a *app) document(raw json.RawMessage) error {
	var buf bytes.Buffer
	if err := json.Indent(&buf, raw, "", "  "); err != nil {
		return err
	}
	return a.body(escapeJSON(buf.Bytes()))
}

// log is the log of a process that runs on: for people, on stderr.
func (a *app) log(verbose bool) *slog.Logger {
	level := slog.LevelInfo
	if verbose {
		level = slog.LevelDebug
	}
	return slog.New(newRateLimitHandler(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: level}), time.Now))
}

const (
	// sameMost bounds the warnings or errors of the same words, with whatever attributes, in sameSpan:
	// a client that sends malformed messages must not fill the disk.
	sameMost = 20
	sameSpan = time.Minute
)

// rateLimitHandler leaves out warnings and errors that come too often. The first after a while
// carries the number left out.
type rateLimitHandler struct {
	slog.Handler
	now      func() time.Time
	counters *counters
}

// counters count messages by their words: as many as there are in the program.
type counters struct {
	mu      sync.Mutex
	byWords map[string]counter
}

type counter struct {
	since         time.Time
	n, suppressed int
}

func newRateLimitHandler(h slog.Handler, now func() time.Time) rateLimitHandler {
	return rateLimitHandler{h, now, &counters{byWords: map[string]counter{}}}
}

// Handle implements slog.Handler.
func (h rateLimitHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		suppressed, ok := h.counters.count(r.Message, h.now())
		if !ok {
			return nil
		}
		if suppressed > 0 {
			r = r.Clone()
			r.AddAttrs(slog.Int("left_out", suppressed))
		}
	}
	return h.Handler.Handle(ctx, r)
}

// count reports whether a message may be logged again, and how often it was not.
func (c *counters) count(words string, now time.Time) (suppressed int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.byWords[words]
	if now.Sub(of.since) >= sameSpan {
		suppressed, of = of.suppressed, counter{since: now}
	}
	if of.n++; of.n > sameMost {
		of.suppressed++
	}
	c.byWords[words] = of
	return suppressed, of.n <= sameMost
}

// WithAttrs implements slog.Handler.
func (h rateLimitHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	h.Handler = h.Handler.WithAttrs(attrs)
	return h
}

// WithGroup implements slog.Handler.
func (h rateLimitHandler) WithGroup(name string) slog.Handler {
	h.Handler = h.Handler.WithGroup(name)
	return h
}
