package cli

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/agenthandoff/handoff/protocol"
)

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
