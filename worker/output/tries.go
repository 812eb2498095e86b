package output

import (
	"bytes"
	"encoding/json"
	"fmt"
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
	_ = json.Unmarshal(object, &all) // of what is no object there are none
	return all
}

// tries says why a JSON object that is no result was meant as one; empty is that it was not.
// err is what is wrong with it as a result. It tries to be one where
//
//   - it has a command, which goes somewhere; of an object that is the whole output, and has
//     the fields of a result alone, any command does;
//   - a field beside body is one edit away from a field of a result;
//   - a field that is nearly command goes somewhere;
//   - it has a goto that names agents, outside of a command;
//   - an object below it has a command that goes somewhere.
func tries(object []byte, err error, whole bool) string {
	all := fields(object)
	unknown := slices.DeleteFunc(sortedKeys(all), func(name string) bool { return slices.Contains(known, name) })
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
		return `goto stands outside of a command; write {"command": {"goto": …}}`
	}
	return triesBelow(object)
}

func sortedKeys(all map[string]json.RawMessage) []string {
	keys := make([]string, 0, len(all))
	for name := range all {
		keys = append(keys, name)
	}
	slices.Sort(keys)
	return keys
}

func quote(name string) string { return fmt.Sprintf("%q", protocol.CutText(name, protocol.IDBytesMax)) }

// goes tells whether a command is one that hands off.
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

// names tells whether a goto names agents.
func names(raw json.RawMessage) bool {
	if len(raw) == 0 || string(raw) == "null" {
		return false
	}
	targets, err := protocol.Command{Goto: raw}.Targets()
	return err == nil && len(targets) > 0
}

// triesBelow says that a command stands below the top of a JSON value, where it is not read.
func triesBelow(value []byte) string {
	if !bytes.Contains(value, []byte(`goto`)) && !bytes.Contains(value, []byte(`await`)) { // as a rule
		return ""
	}
	var of any
	if json.Unmarshal(value, &of) != nil {
		return ""
	}
	if text, isText := of.(string); isText {
		if value := []byte(strings.TrimSpace(text)); len(value) > 0 && value[0] == '{' && handsOff.Match(value) {
			return "it is a text that holds a result, and a result is an object"
		}
		return ""
	}
	if list, isList := of.([]any); isList && commandIn(list) {
		return "it is a list, and a result is an object: its command would be lost"
	}
	if commandIn(of) {
		return "a command stands below the top of the object, where it is not read"
	}
	return ""
}

// commandIn tells whether a value holds a command that goes somewhere. Values are at most
// 10,000 deep, which is what encoding/json reads.
func commandIn(value any) bool {
	switch v := value.(type) {
	case map[string]any:
		for name, field := range v {
			if command, is := field.(map[string]any); name == "command" && is && (command["goto"] != nil || command["await"] != nil) {
				return true
			}
			if commandIn(field) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, commandIn)
	}
	return false
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

// nearly tells whether two names differ by case, or by one character that is put in, left
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
	key = regexp.MustCompile(`["']?\b(?:comm?ands?|goto)\b["']?\s*:`)
	// handsOff is what a hand-off has in an object that does not parse.
	handsOff = regexp.MustCompile(`["']?\bgoto\b["']?\s*:|["']await["']\s*:\s*\[|["']?\bcomm?and\b["']?\s*:\s*\{`)
	// yaml is a command as YAML has it.
	yaml = regexp.MustCompile(`(?m)^[ \t]*comm?and:[ \t]*\r?\n[ \t]+goto:[ \t]*\S`)
	// inline is a command within a line, quoted as JSON has it.
	inline = regexp.MustCompile(`\{\s*["'](?:comm?and|goto)["']\s*:\s*[{\["']|["']comm?and["']\s*:\s*\{\s*["']?goto\b`)
	// code is what a sentence quotes.
	code = regexp.MustCompile("`[^`\n]*`")
)

// triesBroken says that a block which is no JSON object was meant as a result: it has command
// or goto in the place of a key. Of a block before the last that is so where a goto, or an
// object as the command, is there. at is the place that cannot be read.
func (d *document) triesBroken(b block, last bool) (at int, why string) {
	text := d.masked[b.from:b.to]
	begins := bytes.TrimLeft(text, " \t\r\n")
	switch {
	case yaml.Match(text):
		return b.from, "it is YAML, and a result is JSON"
	case len(begins) == 0:
	case begins[0] == '[' && json.Valid(text):
		return b.from, triesBelow(text)
	case begins[0] != '{' && begins[0] != '[':
	case handsOff.Match(text), last && key.Match(text):
		offset, why := syntax(begins)
		return b.to - len(begins) + offset, why
	}
	return 0, ""
}

// triesText says that what stands outside of all blocks was meant as a result: a command in
// the middle of a line, or YAML.
func (d *document) triesText(blocks []block) (at int, why string) {
	rest := bytes.Clone(d.masked)
	for _, b := range blocks {
		blank(rest, b.outer)
	}
	for _, quoted := range code.FindAllIndex(rest, -1) {
		blank(rest, span{quoted[0], quoted[1]})
	}
	if found := yaml.FindIndex(rest); found != nil {
		return found[0], "it is YAML, and a result is JSON"
	}
	if found := inline.FindIndex(rest); found != nil {
		return found[0], "a result begins a line, and this is in the middle of one"
	}
	return 0, ""
}

// blank puts blanks in the place of a part, and leaves line breaks.
func blank(text []byte, at span) {
	for i := at.from; i < at.to; i++ {
		if text[i] != '\n' {
			text[i] = ' '
		}
	}
}
