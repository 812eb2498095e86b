package cli

import (
	"bytes"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/agenthandoff/handoff/protocol"
)

// table writes rows in columns; the first row is the heading.
func (a *app) table(rows [][]string) error { return writeTable(a.out, rows) }

// columnGap is the space between two columns.
const columnGap = 2

// paint is the colour of a cell, or empty. Row 0 is the heading.
type paint func(row, column int) string

func writeTable(to io.Writer, rows [][]string) error { return paintTable(to, rows, nil) }

// paintTable writes a table whose cells have colours.
func paintTable(to io.Writer, rows [][]string, colour paint) error {
	widths := map[int]int{}
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(protocol.Printable(cell)))
		}
	}
	var line strings.Builder
	for r, row := range rows {
		for i, cell := range row {
			cell = protocol.Printable(cell)
			code := ""
			if colour != nil {
				code = colour(r, i)
			}
			line.WriteString(inColour(code, cell))
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+columnGap))
			}
		}
		line.WriteByte('\n')
	}
	_, err := io.WriteString(to, line.String())
	return err
}

// wordsMin is how narrow the last column of a table may get before its words go
// onto a line of their own.
const wordsMin = 24

// tableFit is table for rows that end in words: on a terminal these are cut so
// that a line stays a line, or put below their row where too little room is left.
func (a *app) tableFit(rows [][]string, colour paint) error {
	if colour != nil && !a.colours() {
		colour = nil
	}
	if a.width == 0 || len(rows) == 0 {
		return paintTable(a.out, rows, colour)
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
		return paintTable(a.out, rows, colour)
	}
	var head bytes.Buffer // every row without its words, in columns
	short := make([][]string, len(rows))
	for i, row := range rows {
		short[i] = row[:last]
	}
	if err := paintTable(&head, short, colour); err != nil {
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
