package protocol

import (
	"bytes"
	"encoding/binary"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
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
	for name := range packageShape.fields {
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
	if p == redactPlan { // a field of a newer version: nobody knows what it is
		return freePlan
	}
	return nothing
}

// redaction walks over the JSON of a package and copies it as far as
// something in it changes.
type redaction struct {
	*Redactor
	allowance allowance
	in        []byte
	pos       int
	out       []byte
	copied    int // how much of in is in out
	count     int
}

// value reads one value. secret says that the name of its field calls it one.
// JSON that does not parse ends the walk.
func (w *redaction) value(p *plan, secret, inList bool) {
	switch w.next() {
	case 0: // the end, or a byte that stands in no JSON
		w.pos = len(w.in)
	case '{':
		w.object(p, inList)
	case '[':
		w.pos++
		for w.more(']') {
			w.value(p, secret, true)
		}
	case '"':
		start := w.pos
		if end := w.skipText(); p.mode != redactNot {
			w.text(start+1, end-1, secret)
		}
	default:
		w.skipScalar()
	}
}

func (w *redaction) object(p *plan, inList bool) {
	w.pos++
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
		w.value(next, next.mode == redactFree && w.secretName(decodeText(name)), false)
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
	if w.next() == ',' {
		w.pos++
	}
	if w.next() == closer {
		w.pos++
		return false
	}
	return w.pos < len(w.in)
}

func (w *redaction) skipText() (end int) {
	for w.pos++; w.pos < len(w.in); w.pos++ {
		// Eight bytes at a time as long as the text does not end in them.
		for len(w.in)-w.pos > 8 && special(binary.LittleEndian.Uint64(w.in[w.pos:])) == 0 {
			w.pos += 8
		}
		switch w.in[w.pos] {
		case '\\':
			w.pos++
		case '"':
			w.pos++
			return w.pos
		}
	}
	w.pos = len(w.in)
	return w.pos
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
func (w *redaction) text(start, end int, secret bool) {
	if start >= end {
		return
	}
	raw := w.in[start:end]
	if secret {
		if !isPlaceholder(raw) {
			w.replace(start, end)
		}
		return
	}
	text, searched := raw, raw
	if bytes.IndexByte(raw, '\\') >= 0 {
		unusual := unusualEscape(raw)
		if !unusual && !w.filter.any(raw) {
			return
		}
		text = decodeText(raw)
		if unusual {
			searched = text
		}
	}
	at, from := 0, 0 // the same place in raw and in text
	var found []span
	found, w.allowance = w.secretsIn(text, searched, w.allowance)
	for _, s := range found {
		at, from = advance(raw, at, from, s.start)
		first := at
		at, from = advance(raw, at, from, s.end)
		w.replace(start+first, start+at)
	}
}

func (w *redaction) replace(start, end int) {
	w.out = append(w.out, w.in[w.copied:start]...)
	w.out = append(w.out, Redacted...)
	w.copied = end
	w.count++
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
