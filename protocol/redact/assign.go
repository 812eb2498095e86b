package redact

import (
	"bytes"
	"slices"
	"strings"
)

// assignment is a secret's name in a text and the start of its value: in JSON, YAML, INI and code,
// in a header, a query, an XML element, the environment or a flag.
type assignment struct {
	text        []byte
	start, stop int // of the name
	confidence  confidence
	quoted      bool // the name is in quotes
	flag        bool // --password
	operator    byte // : = > or, before the value of a flag, a space
	spaced      bool // there is space around the operator
	value       int
}

// matchAssignment is the value assigned to the name around text[at:end], if it is a secret.
func (s *search) matchAssignment(text []byte, at, end, prevEnd int) (span, bool) {
	a := assignment{text: text, start: at, stop: end}
	for a.stop < min(len(text), end+nameSuffixBytesMax) && isNameByte(text[a.stop]) {
		a.stop++
	}
	if !a.parseOperator() {
		return span{}, false
	}
	for a.start > max(prevEnd, at-nameBytesMax) && isNameByte(text[a.start-1]) {
		a.start--
	}
	if !a.hasSecretName() {
		return span{}, false
	}
	value, whole := a.parseValue()
	if !s.countSteps(a.value - a.start + value.end - value.start) {
		return span{}, false
	}
	return value, whole && value.start < value.end
}

// nameSuffixBytesMax is how much of a name may follow its keyword: password_confirmation.
const nameSuffixBytesMax = 24

func isNameByte(c byte) bool { return isWordByte(c) || c == '-' }

// hasSecretName reports whether the name is a secret's.
func (a *assignment) hasSecretName() bool {
	name := a.text[a.start:a.stop]
	a.flag = bytes.HasPrefix(name, []byte("--"))
	if a.operator == ' ' && !a.flag || a.operator == '>' && (a.start == 0 || a.text[a.start-1] != '<') {
		return false
	}
	a.confidence = confidenceOf(name)
	if a.confidence != certainSecret && a.start > 1 && a.text[a.start-1] == ' ' { // api key, access token
		before := a.start - 1
		for before > 0 && before > a.start-nameBytesMax && isWordByte(a.text[before-1]) {
			before--
		}
		if s := confidenceOf(a.text[before:a.stop]); s == certainSecret || s == noSecret {
			a.confidence = s
		}
	}
	return a.confidence != noSecret || a.isVariable()
}

// isVariable reports whether this is an assignment in an environment: NAME_KEY=value.
func (a *assignment) isVariable() bool {
	return a.operator == '=' && !a.spaced && !a.quoted && isSecretVariable(a.text[a.start:a.stop])
}

// parseOperator moves past the operator to the value, if there is one.
func (a *assignment) parseOperator() bool {
	i := skipAny(a.text, a.stop, 4, `"'\`)
	a.quoted = i > a.stop
	if a.quoted && i < len(a.text) && a.text[i] == ']' { // config["password"] =
		i++
	}
	from := i
	i = skipAny(a.text, i, 3, " \t")
	a.spaced = i > from
	if i >= len(a.text) {
		return false
	}
	switch c := a.text[i]; {
	case c == ':' || c == '=':
		a.operator = c
		if i++; i < len(a.text) && (c == '=' && a.text[i] == '>' || c == ':' && a.text[i] == '=') { // => and :=
			i++
		}
		if i < len(a.text) && (a.text[i] == '=' || a.text[i] == ':') { // == and ::
			return false
		}
	case c == '>' && !a.quoted:
		a.operator = c
		i++
	case a.spaced && !a.quoted:
		a.operator = ' '
	default:
		return false
	}
	a.value = skipAny(a.text, i, 3, " \t")
	a.spaced = a.spaced || a.value > i
	return a.value < len(a.text)
}

// skipAny skips at most limit bytes of a set.
func skipAny(text []byte, at, limit int, set string) int {
	for end := min(len(text), at+limit); at < end && strings.IndexByte(set, text[at]) >= 0; at++ {
	}
	return at
}

// parseValue returns the value, and whether it is a secret.
func (a *assignment) parseValue() (span, bool) {
	a.skipType()
	open := skipAny(a.text, a.value, 3, `\`)
	if open < len(a.text) {
		switch c := a.text[open]; {
		case c == '"' || c == '\'' || c == '`':
			value, closed := a.quotedValue(open)
			return value, a.isQuotedSecret(a.text[value.start:value.end], closed)
		case (c == '[' || c == '{') && a.quoted && a.operator == ':' && a.confidence == certainSecret:
			end, whole := closingBracket(a.text, open)
			return span{open, end}, whole && end > open+2
		}
	}
	end := a.value
	for end < len(a.text) && !bareTerminators[a.text[end]] {
		end++
	}
	if a.operator == '>' && (end == len(a.text) || a.text[end] != '<') {
		return span{a.value, end}, false
	}
	return span{a.value, end}, a.isBareSecret(end)
}

// skipType skips the type in password: string = "…".
func (a *assignment) skipType() {
	if a.operator != ':' || !a.spaced {
		return
	}
	i := a.value
	for i < min(len(a.text), a.value+32) && isWordByte(a.text[i]) {
		i++
	}
	if i < len(a.text) && i > a.value {
		if i = skipAny(a.text, i, 1, " "); i+1 < len(a.text) && a.text[i] == '=' && a.text[i+1] == ' ' {
			a.operator, a.value = '=', i+2
		}
	}
}

// quotedValue is the text between quotes, and whether the closing quote is there.
func (a *assignment) quotedValue(open int) (value span, closed bool) {
	escaped := open > a.value // \"…\" inside of a quoted text
	for i := open + 1; i < len(a.text); i++ {
		switch c := a.text[i]; {
		case c == a.text[open], c == '\\' && escaped:
			return span{open + 1, i}, true
		case c == '\n':
			return span{open + 1, i}, false
		case c == '\\':
			i++
		}
	}
	return span{open + 1, len(a.text)}, false
}

func (a *assignment) isQuotedSecret(value []byte, closed bool) bool {
	spaces := bytes.ContainsAny(value, " \t")
	switch {
	case !closed && (spaces || !looksRandom(value, 1)), isPlaceholderWord(value):
		return false
	case a.confidence == likelySecret:
		return len(value) >= 8 && !spaces && looksRandom(value, 1)
	case a.quoted && a.operator == ':': // a field of JSON
		return true
	}
	return len(value) >= 4 && !spaces || a.flag
}

// bareTerminators are the bytes that end a value without quotes.
var bareTerminators = func() (ends [256]bool) {
	for _, c := range []byte(" \t\n\v\f\r\"'&;,()[]{}<>`\\") {
		ends[c] = true
	}
	return ends
}()

// isBareSecret reports whether the value without quotes up to end is a secret.
func (a *assignment) isBareSecret(end int) bool {
	value := a.text[a.value:end]
	if len(value) == 0 || end < len(a.text) && a.text[end] == '(' || isPlaceholderWord(value) || isURL(value) {
		return false
	}
	switch first := value[0]; {
	case strings.IndexByte("=:$/.~*%|-", first) >= 0:
		return false
	case a.isVariable():
		return len(value) >= 4
	case a.confidence == likelySecret:
		return len(value) >= 12 && looksRandom(value, 3) && !isPath(value)
	case a.quoted && a.operator == ':' && isNumber(value):
		return true
	case a.isQueryParameter():
		return true
	case a.operator == '>', a.flag && a.operator == '=':
		return len(value) >= 4
	case a.flag:
		return len(value) >= 3 && bytes.ContainsAny(value, "0123456789!@#^+?_")
	case a.isWholeLine(end):
		return len(value) >= 4 && !isPath(value)
	case strings.IndexByte("0123456789!@#^+?", first) >= 0:
		return len(value) >= 4
	}
	return bytes.ContainsAny(value, "0123456789!@#^+?") && !isPath(value)
}

// isQueryParameter reports whether this is a parameter of a URL or of a connection string.
func (a *assignment) isQueryParameter() bool {
	return a.operator == '=' && !a.spaced && a.start > 0 && strings.IndexByte("?&;", a.text[a.start-1]) >= 0
}

// isWholeLine reports whether name and value are a whole line, as in YAML.
func (a *assignment) isWholeLine(end int) bool {
	before := bytes.TrimRight(a.text[max(0, a.start-nameBytesMax):a.start], " \t-\"'")
	after := skipAny(a.text, end, 8, " \t\r")
	return (len(before) == 0 && a.start < nameBytesMax || bytes.HasSuffix(before, []byte("\n"))) &&
		(after == len(a.text) || a.text[after] == '\n') && strings.IndexByte(".,:;!?", a.text[end-1]) < 0
}

// closingBracket is the offset behind the bracket that closes the one at open. It skips JSON
// strings.
func closingBracket(text []byte, open int) (end int, whole bool) {
	depth, inString := 0, false
	for i := open; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '[' || c == '{':
			depth++
		case c == ']' || c == '}':
			if depth--; depth == 0 {
				return i + 1, true
			}
		}
	}
	return len(text), false
}

// placeholderWords are words in place of a secret: types, states, descriptions.
var placeholderWords = []string{"string", "str", "text", "int", "integer", "number", "boolean", "bool", "object", "array", "bytes", "byte", "char", "varchar", "any", "option",
	"optional", "required", "secretstr", "null", "nil", "none", "undefined", "true", "false", "yes", "no", "password", "passwd", "secret", "token", "hidden", "masked",
	"missing", "invalid", "valid", "unset", "empty", "hashed", "encrypted", "wrong", "correct", "incorrect", "expired", "rotated", "unknown", "todo", "example", "value", "self", "input"}

// isPlaceholderWord reports whether a value is a word in place of a secret.
func isPlaceholderWord(value []byte) bool {
	return len(value) <= 12 && slices.ContainsFunc(placeholderWords, func(word string) bool { return len(word) == len(value) && hasPrefixFold(value, word) })
}

// isURL reports whether a value begins like a URL. The password in a URL has a kind of its own.
func isURL(value []byte) bool {
	scheme, _, ok := bytes.Cut(value[:min(len(value), 24)], []byte("://"))
	return ok && len(bytes.Trim(scheme, "abcdefghijklmnopqrstuvwxyz+.-0123456789")) == 0
}

func isNumber(value []byte) bool { return len(bytes.Trim(value, "0123456789.+-eE")) == 0 }

// isPath reports whether a value is a name such as settings.key2, or a file name.
func isPath(value []byte) bool {
	dots := false
	for part := range bytes.SplitSeq(value, []byte(".")) {
		if len(part) == 0 || '0' <= part[0] && part[0] <= '9' || bytes.ContainsFunc(part, func(r rune) bool { return r >= 0x80 || !isWordByte(byte(r)) && r != '/' && r != '-' }) {
			return false
		}
		dots = dots || len(part) < len(value)
	}
	return dots
}

// looksRandom reports whether letters and digits alternate at least so often.
func looksRandom(value []byte, changes int) bool {
	for i := 1; i < len(value); i++ {
		if a, b := value[i-1], value[i]; isWordByte(a) && isWordByte(b) && (a <= '9') != (b <= '9') {
			changes--
		}
	}
	return changes <= 0
}
