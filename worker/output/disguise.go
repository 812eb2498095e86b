package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/agenthandoff/handoff/protocol"
)

// disguises are the ways in which the quotes of a hand-off get lost, and with them the hand-off.
var disguises = []struct {
	why  string
	undo func(text []byte) []byte
}{
	{"it has NULs between its letters, as UTF-16 has", func(text []byte) []byte { return bytes.ReplaceAll(text, []byte{0}, nil) }},
	{"its quotes are typographic ones", func(text []byte) []byte { return []byte(straight.Replace(string(text))) }},
	{"its quotes are HTML entities", func(text []byte) []byte { return []byte(html.UnescapeString(string(text))) }},
	{"its quotes are escaped", func(text []byte) []byte { return escape.ReplaceAllFunc(text, unescape) }},
	{"it is percent-encoded", func(text []byte) []byte { return percent.ReplaceAllFunc(text, unpercent) }},
}

// disguiseRounds bounds the disguises around one hand-off.
const disguiseRounds = 3

var (
	straight = strings.NewReplacer("“", `"`, "”", `"`, "„", `"`, "‟", `"`, "″", `"`, "＂", `"`, "«", `"`, "»", `"`,
		"‘", `'`, "’", `'`, "‚", `'`, "‛", `'`, "′", `'`, "＇", `'`,
		"｛", `{`, "｝", `}`, "：", `:`, "，", `,`, "\u00a0", " ", "\u200b", "", "\u2060", "", "\ufeff", "")
	escape  = regexp.MustCompile(`\\+(?:["'n]|u00[0-9A-Fa-f]{2}|x[0-9A-Fa-f]{2})`)
	percent = regexp.MustCompile(`%[2357][0-9A-Fa-f]`)
)

func unescape(escaped []byte) []byte {
	text := bytes.TrimLeft(escaped, `\`)
	switch text[0] {
	case 'n':
		return []byte("\n")
	case 'u', 'x':
		return fromHex(text[len(text)-2:])
	}
	return text
}

func unpercent(escaped []byte) []byte { return fromHex(escaped[1:]) }

func fromHex(digits []byte) []byte {
	n, _ := strconv.ParseUint(string(digits), 16, 8)
	return []byte(string(rune(n)))
}

// disguised returns the disguise of a text that matches once the disguise is undone; empty if none
// does.
func disguised(text []byte, matches func([]byte) bool) string {
	if !mayName(text) {
		return ""
	}
	for range disguiseRounds {
		before := text
		for _, d := range disguises {
			undone := d.undo(text)
			if bytes.Equal(undone, text) {
				continue
			}
			if text = undone; matches(text) {
				return d.why
			}
		}
		if bytes.Equal(before, text) {
			break
		}
	}
	return ""
}

// mayName reports whether a text can name a next agent at all; most cannot.
func mayName(text []byte) bool {
	lower := bytes.ToLower(text)
	return bytes.Contains(lower, []byte("goto")) || bytes.Contains(lower, []byte("await")) ||
		bytes.Contains(lower, []byte(`\u00`)) || bytes.IndexByte(lower, 0) >= 0
}

// hidesMax bounds the depth to which texts in texts are read.
const hidesMax = 4

// hidden is a hand-off in a place where no result is read.
type hidden struct{ why string }

func (h *hidden) Error() string { return h.why }

// hides returns where a JSON value below the top of an output, or in the body of a result, names a
// next agent: as a command, or in a text that is a result with one, or tries to be. Each text is read
// as an output is. Values are at most 10,000 deep, which encoding/json reads.
func hides(value any, path string, depth int) string {
	switch v := value.(type) {
	case string:
		text := []byte(v)
		if depth == 0 || !mayName(text) || len(bytes.TrimSpace(text)) == 0 {
			return ""
		}
		read, err := readAuto(text, depth-1)
		switch {
		case err != nil:
			return fmt.Sprintf("%s is a text that tries to be a result, and no text in it is read; print the result alone", path)
		case namesNext(read.Result.Command):
			return fmt.Sprintf("%s is a text that holds a result with a command, where it is not read; print that text alone", path)
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if command, is := v[name].(map[string]any); is && strings.EqualFold(name, "command") && handsOn(command) {
				return fmt.Sprintf("%s has a command, and none is read there; print %[1]s alone", path)
			}
			if why := hides(v[name], join(path, name), depth); why != "" {
				return why
			}
		}
	case []any:
		for i, element := range v {
			if why := hides(element, join(path, fmt.Sprintf("[%d]", i)), depth); why != "" {
				return why
			}
		}
	}
	return ""
}

// handsOn reports whether a command hands off or waits, however its fields are spelled.
func handsOn(command map[string]any) bool {
	for name, value := range command {
		if value != nil && (strings.EqualFold(name, "goto") || strings.EqualFold(name, "await")) {
			return true
		}
	}
	return false
}

// pathMax bounds the path in a message.
const pathMax = 64

func join(path, name string) string {
	switch {
	case path == theTop:
	case name != "" && name[0] == '[':
		name = path + name
	default:
		name = path + "." + name
	}
	return protocol.CutText(protocol.Printable(name), pathMax)
}

// theTop is the path of a whole value.
const theTop = "the top"

// namesNext reports whether a command hands off or waits.
func namesNext(c *protocol.Command) bool {
	if c == nil {
		return false
	}
	targets, err := c.Targets()
	return err != nil || len(targets) > 0 || len(c.Await) > 0 && string(c.Await) != "null"
}

// bodyHides returns where the body of a result that names no next agent names one.
func bodyHides(result protocol.Result, depth int) string {
	if namesNext(result.Command) || !mayName(result.Body) {
		return ""
	}
	var body any
	if json.Unmarshal(result.Body, &body) != nil {
		return ""
	}
	if isCommand(result.Body) {
		return "the body is a command, and none is read there; write it next to the body"
	}
	return hides(body, "body", depth)
}

// failedReport returns why the report of a coding agent is no result: it reports a failure.
func failedReport(object []byte) string {
	var report struct {
		Type    string `json:"type"`
		Subtype string `json:"subtype"`
		IsError bool   `json:"is_error"`
	}
	if !bytes.Contains(object, []byte(`"result"`)) || json.Unmarshal(object, &report) != nil || report.Type != "result" {
		return ""
	}
	if !report.IsError && !strings.HasPrefix(report.Subtype, "error") {
		return ""
	}
	why := "is_error"
	if strings.HasPrefix(report.Subtype, "error") {
		why = protocol.CutText(protocol.Printable(report.Subtype), pathMax)
	}
	return "it is the report of a coding agent that has failed (" + why + ")"
}

// logLine is the beginning of a line as logs have it: an instant, a level in capitals, or logfmt.
var logLine = regexp.MustCompile(`^(?:\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d|\[?\d\d:\d\d:\d\d|\[?(?:TRACE|DEBUG|INFO|WARN|WARNING|ERROR|FATAL|CRITICAL)\b\]?[ :|]|(?:time|ts|level)=\S+ )`)

// logsBefore counts the log lines in front of other lines.
func logsBefore(text []byte) (n int) {
	for line := range bytes.Lines(bytes.TrimPrefix(text, byteOrderMark)) {
		switch {
		case len(bytes.TrimSpace(line)) == 0:
		case !logLine.Match(line):
			return n
		default:
			n++
		}
	}
	return 0 // it is a log
}
