package cli

import (
	"cmp"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
)

// Help has 80 columns in a pipe, and at most 100 on a terminal: longer lines are hard to follow.
const (
	helpColumns = 80
	helpWidest  = 100
)

// printHelp prints a page of help that write makes, as wide as its reader sees it.
func (a *app) printHelp(cmd *cobra.Command, write func(io.Writer)) {
	var page strings.Builder
	write(&page)
	fmt.Fprint(cmd.OutOrStdout(), fitHelp(page.String(), min(cmp.Or(a.width, helpColumns), helpWidest)))
}

// fitHelp wraps a page of help: paragraphs as a whole, and the second column of a list or of flags
// below its own beginning. Commands, to be copied, and lines of more columns stay as they are.
func fitHelp(page string, most int) string {
	var fitted []string
	var head, text string
	flush := func() {
		if head+text != "" {
			fitted = append(fitted, hanging(head, text, most)...)
		}
		head, text = "", ""
	}
	examples := false
	for line := range strings.Lines(page) {
		line = strings.TrimSuffix(line, "\n")
		words := strings.TrimLeft(line, " ")
		switch indent := len(line) - len(words); {
		case indent == 0 && line != "" && head == "":
			examples = line == "Examples:"
			text = strings.TrimLeft(text+" "+line, " ")
		case indent > 0 && indent == columnsOf(head) && strings.TrimSpace(head) != "":
			text += " " + words
		default:
			flush()
			first := firstColumn.FindString(line)
			if examples = examples && indent > 0 || line == "Examples:"; examples || line == "" || strings.HasPrefix(words, "handoff ") || strings.Contains(line[len(first):], "  ") {
				fitted = append(fitted, line)
			} else {
				head, text = first, line[len(first):]
			}
		}
	}
	flush()
	return strings.Join(fitted, "\n") + "\n"
}

// firstColumn matches the first column of a line in a list, with the space behind it. Of a line
// without columns it matches the indent.
var firstColumn = regexp.MustCompile(`^ *(?:\S+(?: \S+)*  +)?`)

// hanging returns a text behind a head, with what does not fit below the text's own beginning.
func hanging(head, text string, most int) []string {
	indent := strings.Repeat(" ", columnsOf(head))
	lines := wrapColumns(text, max(most-len(indent), 20))
	for i := range lines {
		lines[i] = head + lines[i]
		head = indent
	}
	return lines
}
