package brief

import (
	"encoding/json"
	"strings"

	"github.com/agenthandoff/handoff/protocol"
)

// What others wrote never begins a line of a brief: it is quoted, fenced, or on the line of a
// list. So no text makes a section that is not there.

// lineEnds are all characters that some reader takes for the end of a line.
var lineEnds = strings.NewReplacer("\r\n", "\n", "\r", "\n", "\v", "\n", "\f", "\n", "\u0085", "\n", "\u2028", "\n", "\u2029", "\n", "\x1c", "\n", "\x1d", "\n", "\x1e", "\n")

// escapedEnds are those that may stand in JSON, escaped.
var escapedEnds = strings.NewReplacer("\u0085", `\u0085`, "\u2028", `\u2028`, "\u2029", `\u2029`)

// quoted is text as a block quotation, each line with a > before it.
func quoted(text string) string {
	lines := strings.Split(strings.TrimRight(lineEnds.Replace(text), "\n"), "\n")
	return "> " + strings.Join(lines, "\n> ") + "\n"
}

// oneLine is text on one line. Marks of Markdown at its beginning are escaped.
func oneLine(text string) string {
	text = strings.Join(strings.Fields(lineEnds.Replace(text)), " ")
	if text != "" && strings.ContainsRune("#>-+*`~=|_", rune(text[0])) {
		text = `\` + text
	}
	return text
}

// fenced is JSON between fences that are longer than any in it.
func fenced(raw json.RawMessage) string {
	fence := "```"
	for strings.Contains(string(raw), fence) {
		fence += "`"
	}
	return fence + "json\n" + escapedEnds.Replace(string(raw)) + "\n" + fence + "\n"
}

// value is JSON in words: a text as it is, all else as JSON.
func value(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	return string(raw)
}

// cutBytesMax is how much of one value a brief quotes. The package has all of it.
const cutBytesMax = 4 << 10

// cut is text that is cut to what a brief quotes.
func cut(text string) string { return protocol.CutText(text, cutBytesMax) }
