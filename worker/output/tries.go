package output

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/agenthandoff/handoff/protocol"
)

// reserved are the fields of a result that a worker writes, and no program.
var reserved = []string{"set_aside", "malformed"}

// known are the fields of a result that a program may write.
var known = func() (names []string) {
	result := reflect.TypeFor[protocol.Result]()
	for i := range result.NumField() {
		name, _, _ := strings.Cut(result.Field(i).Tag.Get("json"), ",")
		if !slices.Contains(reserved, name) {
			names = append(names, name)
		}
	}
	return names
}()

// fields are the fields of a JSON object.
func fields(object []byte) map[string]json.RawMessage {
	var all map[string]json.RawMessage
	_ = json.Unmarshal(object, &all) // a value that is no object has none
	return all
}

// tries returns why a JSON object that is no result was meant as one; empty if it was not.
// err is its fault as a result. It tries to be one where
//
//   - it has a command, which goes somewhere; of an object that is the whole output, and has
//     the fields of a result alone, any command does;
//   - a field beside body is one edit away from a field of a result;
//   - a field that is nearly command goes somewhere;
//   - it has a goto that names agents, outside of a command;
//   - an object or a text below it has a command that goes somewhere (hides);
//   - it is the whole output, and the report of a coding agent that has failed.
func (d *document) tries(object []byte, err error, whole bool) string {
	var hides *hidden
	if errors.As(err, &hides) {
		return hides.why
	}
	all := fields(object)
	unknown := slices.DeleteFunc(slices.Sorted(maps.Keys(all)), func(name string) bool { return slices.Contains(known, name) })
	if command, has := all["command"]; has && (goes(command) || whole && len(unknown) == 0 && string(command) != "null") {
		return err.Error()
	}
	_, hasBody := all["body"]
	for _, name := range unknown {
		near := nearest(name)
		if near != "" && (hasBody || near == "command" && goes(all[name])) {
			return fmt.Sprintf("%s is no field of a result; did you mean %s?", quote(name), near)
		}
	}
	if names(all["goto"]) {
		return `goto is outside of a command; write {"command": {"goto": …}}`
	}
	if why := d.triesBelow(object); why != "" || !whole {
		return why
	}
	return failedReport(object)
}

func quote(name string) string { return fmt.Sprintf("%q", protocol.CutText(name, protocol.IDBytesMax)) }

// goes reports whether a command is one that hands off.
func goes(command json.RawMessage) bool {
	for name, value := range fields(command) {
		for _, known := range []string{"goto", "await"} {
			if (name == known || nearly(name, known)) && string(value) != "null" {
				return true
			}
		}
	}
	return false
}

// names reports whether a goto names agents.
func names(raw json.RawMessage) bool {
	if len(raw) == 0 || string(raw) == "null" {
		return false
	}
	targets, err := protocol.Command{Goto: raw}.Targets()
	return err == nil && len(targets) > 0
}

// triesBelow returns how a JSON value names a next agent below its top, where it is not read.
func (d *document) triesBelow(value []byte) string {
	var of any
	if !mayName(value) && !bytes.Contains(value, []byte(`"is_error"`)) || json.Unmarshal(value, &of) != nil { // as a rule
		return ""
	}
	if list, isList := of.([]any); isList {
		for _, element := range list {
			if object, is := element.(map[string]any); is && object["command"] != nil && hides(map[string]any{"": object}, theTop, 0) != "" {
				return "it is a list, and a result is an object: its command would be lost"
			}
		}
		if why := hides(of, theTop, d.depth); why != "" || len(list) == 0 {
			return why
		}
		last, err := json.Marshal(list[len(list)-1])
		if err != nil {
			return ""
		}
		return failedReport(last)
	}
	if text, isText := of.(string); isText {
		if hides(text, theTop, d.depth) != "" {
			return "it is a text that holds a result, and a result is an object"
		}
		return ""
	}
	return hides(of, theTop, d.depth)
}

// nearest is the field of a result that a name is one edit away from, if there is one.
func nearest(name string) string {
	for _, field := range known {
		if nearly(name, field) {
			return field
		}
	}
	return ""
}

// nearly reports whether two names differ by case, or by one character that is put in, left
// out, changed, or changed places with its neighbour.
func nearly(a, b string) bool {
	if a == b {
		return false
	}
	if strings.EqualFold(a, b) {
		return true
	}
	if len(a) > len(b) {
		a, b = b, a
	}
	i := 0
	for i < len(a) && a[i] == b[i] {
		i++
	}
	switch {
	case len(b)-len(a) == 1:
		return a[i:] == b[i+1:]
	case len(a) != len(b):
		return false
	case a[i+1:] == b[i+1:]:
		return true
	}
	return i+1 < len(a) && a[i] == b[i+1] && a[i+1] == b[i] && a[i+2:] == b[i+2:]
}

var (
	// key is command or goto in the place of a key, as JSON, JavaScript and YAML write them.
	key = regexp.MustCompile(`(?i)["']?\b(?:comm?ands?|goto)\b["']?\s*:`)
	// handsOff is a hand-off in an object that does not parse.
	handsOff = regexp.MustCompile(`(?i)["']?\bgoto\b["']?\s*:|["']await["']\s*:\s*\[|["']?\bcomm?and\b["']?\s*:\s*\{`)
	// yaml and toml are a command in these languages, and bareYAML that of a result that has no more.
	yaml     = regexp.MustCompile(`(?mi)^[ \t]*["']?comm?and["']?:[ \t]*\r?\n(?:[ \t]+\S.*\r?\n)*?[ \t]+["']?goto["']?:[ \t]*\S`)
	toml     = regexp.MustCompile(`(?mi)^[ \t]*\[comm?and\][ \t]*\r?\n(?:.+\r?\n)*?goto[ \t]*=`)
	bareYAML = regexp.MustCompile(`(?m)^goto:[ \t]*["']?[A-Za-z0-9_-]+["']?[ \t]*\r?$`)
	// inline is a command within a line, quoted as JSON has it, or as JavaScript and YAML may.
	inline = regexp.MustCompile(`(?i)\{\s*["'](?:comm?and|goto)["']\s*:\s*[{\["']|\bcomm?and["']?\s*[:=]\s*\{\s*["']?(?:goto|await)\b|\{[^\n]*["'](?:goto|await)["']\s*:\s*["'\[{]`)
	// opens and gotoKey are a command over several lines.
	opens   = regexp.MustCompile(`(?i)["']comm?and["']\s*:\s*\{`)
	gotoKey = regexp.MustCompile(`(?i)["'](?:goto|await)["']\s*:\s*["'\[{]`)
	// python and xml name a next agent as these do.
	python = regexp.MustCompile(`\bCommand\([^\n]*\bgoto\s*=\s*["'\[(]`)
	xml    = regexp.MustCompile(`(?i)<goto>\s*[A-Za-z0-9_-]+\s*</goto>`)
	// code matches a quotation in a sentence.
	code = regexp.MustCompile("`[^`\n]*`")
)

// triesBroken finds that a block which is no JSON object was meant as a result: it has command
// or goto in the place of a key. Of a block before the last that is so where a goto, or an
// object as the command, is there. at is the place that cannot be read.
func (d *document) triesBroken(b block, last bool) (at int, why string) {
	text := d.masked[b.from:b.to]
	begins := bytes.TrimLeft(text, " \t\r\n")
	switch {
	case yaml.Match(text):
		return b.from, "it is YAML, and a result is JSON"
	case toml.Match(text):
		return b.from, "it is TOML, and a result is JSON"
	case len(begins) == 0:
	case (begins[0] == '[' || begins[0] == '"') && json.Valid(text):
		return b.from, d.triesBelow(text)
	case begins[0] != '{' && begins[0] != '[':
	case handsOff.Match(text), last && key.Match(text):
		offset, why := syntax(begins)
		return b.to - len(begins) + offset, why
	default:
		if how := disguised(text, handsOff.Match); how != "" {
			offset, _ := syntax(begins)
			return b.to - len(begins) + offset, "it is no JSON: " + how
		}
	}
	return 0, ""
}

// triesText finds that the text outside of all blocks was meant as a result: a command in
// the middle of a line, or YAML.
func (d *document) triesText(blocks []block) (at int, why string) {
	rest := bytes.Clone(d.masked)
	for _, b := range blocks {
		blank(rest, b.outer)
	}
	for _, quoted := range code.FindAllIndex(rest, -1) {
		blank(rest, span{quoted[0], quoted[1]})
	}
	if !mayName(rest) {
		return 0, ""
	}
	for _, form := range []struct {
		of  *regexp.Regexp
		why string
	}{
		{yaml, "it is YAML, and a result is JSON"},
		{toml, "it is TOML, and a result is JSON"},
		{bareYAML, "it is YAML, and a result is JSON"},
		{python, "it is a Python object, and a result is JSON"},
		{xml, "it is XML, and a result is JSON"},
		{inline, midLine},
	} {
		if found := form.of.FindIndex(rest); found != nil {
			return found[0], form.why
		}
	}
	if at := overLines(rest); at >= 0 {
		return at, midLine
	}
	if how := disguised(rest, func(text []byte) bool { return inline.Match(text) || overLines(text) >= 0 }); how != "" {
		return max(0, bytes.Index(rest, []byte("goto"))), "it is no JSON: " + how
	}
	return 0, ""
}

const midLine = "a result begins a line, and this is in the middle of one"

// overLines returns the offset of a command that has its goto on a later line; -1 is none.
func overLines(text []byte) int {
	commands := opens.FindAllIndex(text, -1)
	if commands == nil {
		return -1
	}
	for _, key := range gotoKey.FindAllIndex(text, -1) {
		if commands[0][0] < key[0] {
			return commands[0][0]
		}
	}
	return -1
}

// blank puts blanks in the place of a part, and leaves line breaks.
func blank(text []byte, at span) {
	for i := at.from; i < at.to; i++ {
		if text[i] != '\n' {
			text[i] = ' '
		}
	}
}
