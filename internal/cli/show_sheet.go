package cli

import (
	"strings"
	"time"
	"unicode/utf8"

	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

// sheetWidth is how wide show writes where it does not know the terminal.
const sheetWidth = 80

// sheet writes sections of lines that are wrapped, never cut.
type sheet struct {
	a     *app
	width int
	title string // of the section, until its first line
}

func (s *sheet) section(title string) { s.title = title }

func (s *sheet) begin() {
	if s.title != "" {
		s.a.printf("\n%s\n", s.title)
		s.title = ""
	}
}

// line writes text under a hanging indent. label stands before its first line.
func (s *sheet) line(label, text string) {
	if text == "" {
		return
	}
	s.begin()
	const column = 12 // of the labels
	room := max(s.width-column-3, 20)
	for i, part := range wrapWords(protocol.Printable(text), room) {
		if i > 0 {
			label = ""
		}
		s.a.printf("  %-*s %s\n", column, label, part)
	}
}

// item writes a paragraph of its own, its further lines indented.
func (s *sheet) item(text string) {
	s.begin()
	for i, part := range wrapWords(protocol.Printable(text), max(s.width-4, 20)) {
		indent := "  "
		if i > 0 {
			indent = "    "
		}
		s.a.printf("%s%s\n", indent, part)
	}
}

// wrapWords breaks text between words; a word longer than a line stays whole.
func wrapWords(text string, width int) []string {
	lines := []string{""}
	for _, word := range strings.Fields(text) {
		switch last := &lines[len(lines)-1]; {
		case *last == "":
			*last = word
		case utf8.RuneCountInString(*last)+1+utf8.RuneCountInString(word) > width:
			lines = append(lines, word)
		default:
			*last += " " + word
		}
	}
	return lines
}

// countOf is count, and nothing of none.
func countOf(n int, thing string) string {
	if n == 0 {
		return ""
	}
	return explain.Count(n, thing)
}

func clockUTC(at time.Time) string { return at.UTC().Format("2006-01-02 15:04:05Z") }
