package redact

import (
	"bytes"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/agenthandoff/handoff/internal/wirejson"
	"github.com/agenthandoff/handoff/protocol"
)

// plan lists the parts of a JSON value that are redacted, at all depths.
type plan struct {
	mode   mode
	fields map[string]*plan
	// mapValues is the plan for the values if artifacts are a map, not a list of objects.
	mapValues *plan
}

type mode int

const (
	modeNone mode = iota
	modeText      // a text or a list of texts
	modeFree      // any JSON, in which names of fields may mark secrets
)

var (
	freePlan    = &plan{mode: modeFree}
	textPlan    = &plan{mode: modeText}
	skipPlan    = &plan{}
	packagePlan = planOf(reflect.TypeFor[protocol.Package]())
	resultPlan  = planOf(reflect.TypeFor[protocol.Result]())
)

// planOf is the plan of a type, made from the tags redact of its fields: text is a text of a person
// or a program, or a list of texts, and free is any JSON. Other fields are structure, and never
// changed. A test lists both kinds.
func planOf(of reflect.Type) *plan {
	p := &plan{}
	for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
		of = of.Elem()
	}
	switch {
	case of == reflect.TypeFor[protocol.Artifacts]():
		p = planOf(reflect.TypeFor[protocol.Artifact]())
		p.mapValues = textPlan
	case of.Kind() == reflect.Struct:
		p.fields = map[string]*plan{}
		for _, f := range reflect.VisibleFields(of) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			next := planOf(f.Type)
			switch f.Tag.Get("redact") {
			case "text":
				next.mode = modeText
			case "free":
				next = freePlan
			}
			p.fields[name] = next
		}
	}
	return p
}

// field is the plan for a field.
func (p *plan) field(name []byte, inList bool) *plan {
	switch {
	case p.mode == modeFree:
		return freePlan
	case p.mapValues != nil && !inList:
		return p.mapValues
	}
	if next := p.fields[string(name)]; next != nil {
		return next
	}
	if p == packagePlan { // an unknown field, of a newer version
		return freePlan
	}
	return skipPlan
}

// walker reads the JSON of a package and copies the parts between replacements.
type walker struct {
	*search
	reader *wirejson.Reader
	in     []byte
	read   int // how much of in is counted as read
	out    []byte
	copied int // how much of in has been copied to out
	count  int
}

// walkValue reads one value, and reports whether the walk goes on. It replaces the whole value if
// secret is true. Malformed JSON ends the walk, and so does the end of ctx.
func (w *walker) walkValue(p *plan, secret, inList bool) bool {
	kind, at := w.reader.Peek(), w.reader.Offset()
	if !w.countRead(at - w.read) {
		return false
	}
	w.read = at
	switch {
	case secret:
		return w.replaceValue()
	case kind == jsontext.KindBeginObject && p != skipPlan:
		return w.walkObject(p, inList)
	case kind == jsontext.KindBeginArray && p != skipPlan:
		return w.reader.Elements(func(int) bool { return w.walkValue(p, false, true) })
	}
	raw, start, ok := w.reader.Raw()
	if ok && raw[0] == '"' && p.mode != modeNone {
		w.redactString(start+1, start+len(raw)-1)
	}
	return ok
}

// replaceValue replaces a whole value, unless it only stands for a secret: empty, null, the name
// of a variable.
func (w *walker) replaceValue() bool {
	raw, start, ok := w.reader.Raw()
	end := start + len(raw)
	switch {
	case !ok, len(raw) <= 2 && !isNumber(raw), string(raw) == "null":
	case raw[0] != '"':
		w.replace(start, end, `"`+Marker+`"`)
	case !isPlaceholder(raw[1 : len(raw)-1]):
		w.replace(start+1, end-1, Marker)
	}
	return ok
}

func (w *walker) walkObject(p *plan, inList bool) bool {
	named := false // {"name": "DB_PASSWORD", "value": "…"}
	return w.reader.Members(func(_ int, quoted []byte) bool {
		name := quoted[1 : len(quoted)-1]
		next := p.field(name, inList)
		secret := next.mode == modeFree && (w.isSecretName(unescapeString(name)) || named && string(name) == "value")
		at := w.reader.Next()
		ok := w.walkValue(next, secret, false)
		if string(name) == "name" || string(name) == "key" {
			named = next.mode == modeFree && w.isSecretName(bytes.Trim(w.in[at:w.reader.Offset()], `"`))
		}
		return ok
	})
}

// redactString redacts the string whose content is in[start:end].
func (w *walker) redactString(start, end int) {
	if start >= end {
		return
	}
	raw := w.in[start:end]
	text := raw
	if bytes.IndexByte(raw, '\\') >= 0 {
		if !hasUnneededEscape(raw) && !w.keywords.containsAny(raw) && len(w.patterns) == 0 {
			return
		}
		text = unescapeString(raw)
	}
	at, from := 0, 0 // the same position in raw and in text
	for _, s := range w.find(text) {
		at, from = advance(raw, at, from, s.start)
		first := at
		at, from = advance(raw, at, from, s.end)
		w.replace(start+first, start+at, Marker)
	}
}

func (w *walker) replace(start, end int, marker string) {
	w.out = append(w.out, w.in[w.copied:start]...)
	w.out = append(w.out, marker...)
	w.copied = end
	w.count++
}

// hasUnneededEscape reports whether a string has escapes that JSON does not need: they may hide a
// keyword, as \u0070 or :\/\/.
func hasUnneededEscape(raw []byte) bool {
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

// unescapeString decodes the content of a JSON string.
func unescapeString(raw []byte) []byte {
	escape := bytes.IndexByte(raw, '\\')
	if escape < 0 {
		return raw
	}
	text := make([]byte, 0, len(raw))
	for ; escape >= 0; escape = bytes.IndexByte(raw, '\\') {
		size, char := decodeEscape(raw[escape:])
		text = append(append(text, raw[:escape]...), char...)
		raw = raw[escape+size:]
	}
	return append(text, raw...)
}

// advance moves from offset at of a raw string, which is offset from of the decoded text, to
// offset to of the decoded text. It returns both new offsets.
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
		size, char := decodeEscape(raw[at:])
		at, from = at+size, from+len(char)
	}
	return at, from
}

// decodeEscape decodes the next character of a raw string, and returns how many bytes it took.
// Half a surrogate pair is the replacement character.
func decodeEscape(raw []byte) (size int, char string) {
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

// hex4 parses the four hexadecimal digits at the start of text.
func hex4(text []byte) (unit rune, ok bool) {
	if len(text) < 4 {
		return 0, false
	}
	n, err := strconv.ParseUint(string(text[:4]), 16, 16)
	return rune(n), err == nil
}
