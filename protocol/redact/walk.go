package redact

import (
	"bytes"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/agenthandoff/handoff/protocol"
)

// redactable are the fields of a package that people and programs write freely.
// Everything else holds the package together and is never changed. A test
// compares the list with the type.
var redactable = map[string]redactMode{
	"reason":            redactText,
	"task.description":  redactText,
	"task.requirements": redactText,

	"context.original_request":        redactText,
	"context.user_intent":             redactText,
	"context.completed_steps":         redactFree,
	"context.remaining_steps":         redactFree,
	"context.summary":                 redactText,
	"context.key_points":              redactText,
	"context.context_url":             redactText,
	"context.conversation_history":    redactFree,
	"context.variables":               redactFree,
	"context.decisions.description":   redactText,
	"context.decisions.rationale":     redactText,
	"context.intermediate_results":    redactFree,
	"context.relevant_files":          redactText,
	"context.relevant_files.path":     redactText,
	"context.relevant_files.sections": redactText,
	"context.files_in_progress.path":  redactText,
	"context.artifacts.name":          redactText,
	"context.artifacts.path":          redactText,
	"context.artifacts.description":   redactText,
	"context.constraints":             redactText,
	"context.when_stuck":              redactText,
	"context.metrics":                 redactFree,
	"context.metadata":                redactFree,

	"expectations.success_criteria": redactText,
	"audit.decision_rationale":      redactText,

	"members.reason":                redactText,
	"members.task.description":      redactText,
	"members.task.requirements":     redactText,
	"members.variables":             redactFree,
	"members.artifacts.name":        redactText,
	"members.artifacts.path":        redactText,
	"members.artifacts.description": redactText,

	// A return hands over what others have said: results, refusals, errors.
	"returned.reason":                                         redactText,
	"returned.message":                                        redactText,
	"returned.rollback_reason":                                redactText,
	"returned.result.body":                                    redactFree,
	"returned.result.summary":                                 redactText,
	"returned.context_updates.variables_changed":              redactFree,
	"returned.context_updates.artifacts_produced.name":        redactText,
	"returned.context_updates.artifacts_produced.path":        redactText,
	"returned.context_updates.artifacts_produced.description": redactText,
	"returned.audit.notes":                                    redactText,
	"returned.progress.message":                               redactText,
	"returned.progress.details":                               redactFree,
	"returned.trail.words":                                    redactText,
	"returned.trail.assessment":                               redactText,
	"returned.members.result.body":                            redactFree,
	"returned.members.result.summary":                         redactText,
	"returned.members.result.artifacts.name":                  redactText,
	"returned.members.result.artifacts.path":                  redactText,
	"returned.members.result.artifacts.description":           redactText,
	"returned.members.result.variables":                       redactFree,
	"returned.members.result.notes":                           redactText,
	"returned.members.result.command.goto":                    redactFree,
	"returned.members.result.command.update":                  redactFree,
}

// mapsOrLists are the places of artifacts: maps from name to path, or lists.
var mapsOrLists = []string{"context.artifacts", "members.artifacts", "returned.context_updates.artifacts_produced", "returned.members.result.artifacts"}

type redactMode int

const (
	redactNot  redactMode = iota
	redactText            // a text, or a list of texts
	redactFree            // any JSON, with names of fields that may say what is a secret
)

// plan is what is redacted at one place of a package and below it.
type plan struct {
	mode   redactMode
	fields map[string]*plan
	// named is for the values of an object that is a map here, and a list of
	// objects otherwise: artifacts.
	named *plan
}

var (
	freePlan   = &plan{mode: redactFree}
	textPlan   = &plan{mode: redactText}
	nothing    = &plan{}
	redactPlan = planOf(redactable)
)

func planOf(paths map[string]redactMode) *plan {
	root := &plan{fields: map[string]*plan{}}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[protocol.Package]()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		root.fields[name] = nothing
	}
	for path, mode := range paths {
		at := root
		for name := range strings.SplitSeq(path, ".") {
			next := at.fields[name]
			if next == nil || next == nothing {
				next = &plan{fields: map[string]*plan{}}
				at.fields[name] = next
			}
			at = next
		}
		at.mode = mode
	}
	for _, path := range mapsOrLists {
		at := root
		for name := range strings.SplitSeq(path, ".") {
			at = at.fields[name]
		}
		at.named = textPlan
	}
	return root
}

// below is the plan for a field.
func (p *plan) below(name []byte, inList bool) *plan {
	switch {
	case p.mode == redactFree:
		return freePlan
	case p.named != nil && !inList:
		return p.named
	}
	if next := p.fields[string(name)]; next != nil {
		return next
	}
	if p == redactPlan { // a field of a newer version: what it is, is not known
		return freePlan
	}
	return nothing
}

// redaction walks over the JSON of a package and copies it as far as
// something in it changes.
type redaction struct {
	*search
	in     []byte
	pos    int
	out    []byte
	copied int // how much of in is in out
	count  int
}

// value reads one value. secret says that the name of its field calls it one: then all of it
// is replaced. JSON that does not parse ends the walk, and so does the end of the context.
func (w *redaction) value(p *plan, secret, inList bool) {
	c := w.next()
	if secret {
		w.secret(w.pos)
		return
	}
	switch c {
	case 0: // the end, or a byte that stands in no JSON
		w.pos = len(w.in)
	case '{':
		w.object(p, inList)
	case '[':
		w.pos++
		for w.more(']') {
			w.value(p, false, true)
		}
	case '"':
		start := w.pos
		if end := w.skipText(); p.mode != redactNot {
			w.text(start+1, w.inside(start, end))
		}
	default:
		w.skipScalar()
	}
}

// secret replaces a value as a whole, unless it only stands for a secret: an empty one,
// null, the name of a variable.
func (w *redaction) secret(start int) {
	w.value(nothing, false, false)
	raw := bytes.TrimRight(w.in[start:w.pos], " \t\r\n")
	switch {
	case len(raw) == 0, len(raw) <= 2 && !isNumber(raw), string(raw) == "null":
	case raw[0] != '"':
		w.replace(start, start+len(raw), `"`+Marker+`"`)
	default:
		if end := w.inside(start, w.pos); !isPlaceholder(w.in[start+1 : end]) {
			w.replace(start+1, end, Marker)
		}
	}
}

func (w *redaction) object(p *plan, inList bool) {
	w.pos++
	named := false // {"name": "DB_PASSWORD", "value": "…"}
	for w.more('}') {
		start := w.pos
		end := w.skipText()
		name := w.in[start+1 : max(end-1, start+1)]
		if w.in[start] != '"' || w.next() != ':' {
			w.pos = len(w.in)
			return
		}
		w.pos++
		next := p.below(name, inList)
		secret := next.mode == redactFree && (w.secretField(decodeText(name)) || named && string(name) == "value")
		at := w.pos
		w.value(next, secret, false)
		if string(name) == "name" || string(name) == "key" {
			named = next.mode == redactFree && w.secretField(bytes.Trim(w.in[at:w.pos], " \t\r\n\""))
		}
	}
}

// next moves over white space to the next byte; 0 at the end.
func (w *redaction) next() byte {
	for w.pos < len(w.in) {
		switch c := w.in[w.pos]; c {
		case ' ', '\t', '\r', '\n':
			w.pos++
		default:
			return c
		}
	}
	return 0
}

// more moves to the next element, or past closer if there is none.
func (w *redaction) more(closer byte) bool {
	from := w.pos
	if w.next() == ',' {
		w.pos++
	}
	if w.next() == closer {
		w.pos++
		return false
	}
	if !w.read(w.pos - from + 1) {
		w.pos = len(w.in)
	}
	return w.pos < len(w.in)
}

func (w *redaction) skipText() (end int) {
	for at := w.pos + 1; ; {
		quote := bytes.IndexByte(w.in[at:], '"')
		if quote < 0 {
			w.pos = len(w.in)
			return w.pos
		}
		before := w.in[w.pos+1 : at+quote]
		at += quote + 1
		if escapes := len(before) - len(bytes.TrimRight(before, `\`)); escapes%2 == 0 {
			w.pos = at
			return w.pos
		}
	}
}

// inside is the end of what stands in a string, which is not closed where the JSON is cut off.
func (w *redaction) inside(start, end int) int {
	if end > start+1 && w.in[end-1] == '"' {
		return end - 1
	}
	return end
}

func (w *redaction) skipScalar() {
	start := w.pos
	for w.pos < len(w.in) && w.in[w.pos] != ',' && w.in[w.pos] != '}' && w.in[w.pos] != ']' {
		w.pos++
	}
	if w.pos == start { // no value at all
		w.pos = len(w.in)
	}
}

// text redacts the string whose inside stands in in[start:end].
func (w *redaction) text(start, end int) {
	if start >= end {
		return
	}
	raw := w.in[start:end]
	text := raw
	if bytes.IndexByte(raw, '\\') >= 0 {
		if !unusualEscape(raw) && !w.kinds.any(raw) && len(w.added) == 0 {
			return
		}
		text = decodeText(raw)
	}
	at, from := 0, 0 // the same place in raw and in text
	for _, s := range w.secrets(text) {
		at, from = advance(raw, at, from, s.start)
		first := at
		at, from = advance(raw, at, from, s.end)
		w.replace(start+first, start+at, Marker)
	}
}

func (w *redaction) replace(start, end int, marker string) {
	w.out = append(w.out, w.in[w.copied:start]...)
	w.out = append(w.out, marker...)
	w.copied = end
	w.count++
}

// unusualEscape tells whether characters are escaped that need not be: a word
// may hide behind \u0070 or :\/\/.
func unusualEscape(raw []byte) bool {
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 || i+1 >= len(raw) {
			return false
		}
		if raw[i+1] == 'u' || raw[i+1] == '/' {
			return true
		}
		raw = raw[i+2:]
	}
}

// decodeText undoes the escapes of a JSON string, given without its quotes.
func decodeText(raw []byte) []byte {
	escape := bytes.IndexByte(raw, '\\')
	if escape < 0 {
		return raw
	}
	text := make([]byte, 0, len(raw))
	for ; escape >= 0; escape = bytes.IndexByte(raw, '\\') {
		size, char := unescape(raw[escape:])
		text = append(append(text, raw[:escape]...), char...)
		raw = raw[escape+size:]
	}
	return append(text, raw...)
}

// advance moves along a raw string, which stands at raw[at:] and at from in
// the decoded text, until it stands at to in the text.
func advance(raw []byte, at, from, to int) (int, int) {
	for at < len(raw) && from < to {
		plain := raw[at:min(len(raw), at+to-from)]
		if escape := bytes.IndexByte(plain, '\\'); escape != 0 {
			if escape < 0 {
				escape = len(plain)
			}
			at, from = at+escape, from+escape
			continue
		}
		size, char := unescape(raw[at:])
		at, from = at+size, from+len(char)
	}
	return at, from
}

// unescape reads what the next bytes of a raw string stand for, and how many
// they are. Half a character stands for the replacement character.
func unescape(raw []byte) (size int, char string) {
	if raw[0] != '\\' || len(raw) < 2 {
		return 1, string(raw[:1])
	}
	switch raw[1] {
	case 'u':
		size = min(6, len(raw))
		if unit, ok := hex4(raw[2:]); ok && unit >= 0xD800 && unit < 0xDC00 && len(raw) >= 12 && raw[6] == '\\' && raw[7] == 'u' {
			if low, ok := hex4(raw[8:]); ok && low >= 0xDC00 && low < 0xE000 {
				return 12, string(utf16.DecodeRune(unit, low))
			}
		} else if ok && (unit < 0xD800 || unit >= 0xE000) {
			return size, string(unit)
		}
		return size, string(utf8.RuneError)
	case 'b':
		return 2, "\b"
	case 'f':
		return 2, "\f"
	case 'n':
		return 2, "\n"
	case 'r':
		return 2, "\r"
	case 't':
		return 2, "\t"
	}
	return 2, string(raw[1:2])
}

// hex4 reads the four hexadecimal digits that text begins with.
func hex4(text []byte) (unit rune, ok bool) {
	if len(text) < 4 {
		return 0, false
	}
	n, err := strconv.ParseUint(string(text[:4]), 16, 16)
	return rune(n), err == nil
}
