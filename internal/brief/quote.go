package brief

import (
	"encoding/json"
	"strings"

	"github.com/agenthandoff/handoff/protocol"
)

// Text of other authors never begins a line of a brief: it is quoted, fenced, or on the line of a
// list. So it cannot form a section.

// lineEnds replaces all characters that some reader takes for the end of a line.
var lineEnds = strings.NewReplacer("\r\n", "\n", "\r", "\n", "\v", "\n", "\f", "\n", "\u0085", "\n", "\u2028", "\n", "\u2029", "\n", "\x1c", "\n", "\x1d", "\n", "\x1e", "\n")

// escapedEnds escapes the line ends that JSON allows unescaped.
var escapedEnds = strings.NewReplacer("\u0085", `\u0085`, "\u2028", `\u2028`, "\u2029", `\u2029`)

// quoted returns text as a block quotation.
func quoted(text string) string {
	lines := strings.Split(strings.TrimRight(lineEnds.Replace(text), "\n"), "\n")
	return "> " + strings.Join(lines, "\n> ") + "\n"
}

// oneLine puts text on one line, and escapes a Markdown mark at its beginning.
func oneLine(text string) string {
	text = strings.Join(strings.Fields(lineEnds.Replace(text)), " ")
	if text != "" && strings.ContainsRune("#>-+*`~=|_", rune(text[0])) {
		text = `\` + text
	}
	return text
}

// fenced puts JSON between fences that are longer than any fence in it.
func fenced(raw json.RawMessage) string {
	fence := "```"
	for strings.Contains(string(raw), fence) {
		fence += "`"
	}
	return fence + "json\n" + escapedEnds.Replace(string(raw)) + "\n" + fence + "\n"
}

// value returns a JSON string as its text, and any other value as JSON.
func value(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	return string(raw)
}

// cutBytesMax bounds the quotation of one value. The package has all of it.
const cutBytesMax = 4 << 10

// cut shortens text to cutBytesMax.
func cut(text string) string { return protocol.CutText(text, cutBytesMax) }
