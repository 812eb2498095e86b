package demo

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/agenthandoff/handoff/protocol"
)

// Screen is where a run shows itself.
type Screen struct {
	Out io.Writer
	// Live draws a table that is refreshed in place; otherwise each change is a
	// line of its own.
	Live bool
	// Colour is welcome; only asked for where Live.
	Colour bool
	// Size of the terminal, in columns and rows; only asked for where Live.
	Size func() (columns, rows int)
}

// view shows the handoffs of a run.
type view struct {
	Screen
	began time.Time
	rows  []*row
	drawn int  // lines of the table that stand on the terminal
	final bool // the table is drawn no more
}

// row is one handoff.
type row struct {
	state protocol.State
	words string // what happened last
}

// note writes a line that stays.
func (v *view) note(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	if !v.Live {
		fmt.Fprintln(v.Out, line)
		return
	}
	var buf bytes.Buffer
	v.erase(&buf)
	columns, _ := v.Size()
	for part := range strings.SplitSeq(line, "\n") {
		buf.WriteString(wrap(part, columns) + "\n")
	}
	v.table(&buf, time.Now())
	v.Out.Write(buf.Bytes())
}

// change shows an append of the ledger.
func (v *view) change(c protocol.Change) {
	words, notable := describe(c)
	state := c.Record.State
	r := v.row(state.Ticket)
	r.state = state
	if words != "" {
		r.words = words
	}
	at := seconds(c.At.Sub(v.began))
	switch {
	case words == "" || v.Live && !notable:
	case v.Live: // the table says the rest
		v.note("%7s  %s  %s", at, short(state.Ticket), words)
	default:
		v.note("%7s  %s  %-22s  %-11s  %s", at, short(state.Ticket), route(state), state.Phase, words)
	}
}

func (v *view) row(ticket string) *row {
	for _, r := range v.rows {
		if r.state.Ticket == ticket {
			return r
		}
	}
	r := &row{}
	v.rows = append(v.rows, r)
	return r
}

// refresh draws the table anew: ages grow even where nothing happens.
func (v *view) refresh() {
	if !v.Live || v.final {
		return
	}
	var buf bytes.Buffer
	v.erase(&buf)
	v.table(&buf, time.Now())
	v.Out.Write(buf.Bytes())
}

// aside is a word of the demo's own on what it does.
func (v *view) aside(format string, args ...any) { v.note("         "+format, args...) }

// freeze leaves the table as it is: what follows stands below it.
func (v *view) freeze() {
	v.refresh()
	v.final, v.drawn = true, 0
}

// erase goes back to where the table begins and clears what is below.
func (v *view) erase(buf *bytes.Buffer) {
	if v.drawn > 0 {
		fmt.Fprintf(buf, "\x1b[%dA\r\x1b[J", v.drawn)
	}
	v.drawn = 0
}

func (v *view) table(buf *bytes.Buffer, now time.Time) {
	if len(v.rows) == 0 || v.final {
		return
	}
	columns, rows := v.Size()
	shown := v.rows
	if most := max(rows-4, 1); len(shown) > most { // a table taller than the terminal cannot be erased
		shown = shown[len(shown)-most:]
	}
	lines := []string{"", fit("TICKET    FROM → TO               PHASE        TRY    AGE  WHAT HAPPENED LAST", columns)}
	for _, r := range shown {
		s := r.state
		end := now
		if s.Closed {
			end = s.ClosedAt
		}
		line := fmt.Sprintf("%s  %-22s  %-11s  %3d  %5.1fs  %s", short(s.Ticket), route(s), s.Phase, s.Attempt, end.Sub(s.SubmittedAt).Seconds(), r.words)
		lines = append(lines, v.coloured(fit(line, columns), s))
	}
	buf.WriteString(strings.Join(lines, "\n") + "\n")
	v.drawn = len(lines)
}

func route(s protocol.State) string { return s.Source + " → " + s.Agent }

func (v *view) coloured(line string, s protocol.State) string {
	if !v.Colour {
		return line
	}
	const red, green, yellow, reset = "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"
	switch {
	case s.Closed && s.Outcome == protocol.OutcomeSuccess:
		return green + line + reset
	case s.Closed:
		return red + line + reset
	case s.Phase == protocol.Conditional, s.Phase == protocol.Retrying, s.EscalationLevel > 0:
		return yellow + line + reset
	}
	return line
}

// wrap breaks a line at blanks, and sets what follows in as far as its text.
func wrap(line string, columns int) string {
	const hang = "    "
	text := strings.TrimLeft(line, " ")
	indent := line[:len(line)-len(text)]
	var b strings.Builder
	used := 0
	for i, word := range strings.Split(text, " ") {
		switch {
		case i == 0:
			b.WriteString(indent)
			used = len(indent)
		case used+1+utf8.RuneCountInString(word) >= columns:
			b.WriteString("\n" + indent + hang)
			used = len(indent) + len(hang)
		default:
			b.WriteByte(' ')
			used++
		}
		b.WriteString(word)
		used += utf8.RuneCountInString(word)
	}
	return b.String()
}

// fit cuts a line to the terminal's width: one that wraps would take two rows,
// and the table could not be erased. Wide characters count twice.
func fit(line string, columns int) string {
	used := 0
	for i, r := range line {
		width := 1
		if r >= 0x2e80 || r >= 0x1100 && r < 0x1200 {
			width = 2
		}
		if used += width; used > columns-2 && i+utf8.RuneLen(r) < len(line) {
			return line[:i] + "…"
		}
	}
	return line
}
