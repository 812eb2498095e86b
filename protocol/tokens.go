package protocol

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Tokens estimates how many tokens a model makes of a text: letters and digits count in fours, and
// each other character counts by itself, as do those of scripts without spaces. White space is
// free. It is one fixed rule, and no model's own.
func Tokens(text string) int {
	var m meter
	for _, r := range text {
		m.add(r)
	}
	return m.tokens
}

// meter counts tokens rune by rune.
type meter struct {
	tokens int
	run    int // letters and digits since the last other character
}

// spacelessFrom is where the scripts begin that are written without spaces: Han, kana, Hangul.
const spacelessFrom = 0x2E80

func (m *meter) add(r rune) {
	switch {
	case unicode.IsSpace(r):
		m.run = 0
	case r < spacelessFrom && (unicode.IsLetter(r) || unicode.IsDigit(r)):
		if m.run%4 == 0 {
			m.tokens++
		}
		m.run++
	default:
		m.tokens++
		m.run = 0
	}
}

// ConversationTokens estimates the tokens of messages: of their texts and the names of their fields,
// without the marks of JSON.
func ConversationTokens(messages []Message) (n int) {
	for _, message := range messages {
		n += jsonTokens(message)
	}
	return n
}

// PackageTokens estimates the tokens of a package as JSON: of its texts and the names of its fields.
func PackageTokens(body []byte) int64 { return int64(jsonTokens(body)) }

func jsonTokens(raw []byte) int {
	var m meter
	isText := false
	for i := 0; i < len(raw); {
		r, size := utf8.DecodeRune(raw[i:])
		i += size
		switch {
		case r == '"':
			isText, m.run = !isText, 0
		case isText && r == '\\' && i < len(raw):
			escaped := raw[i]
			i++
			switch m.run = 0; escaped {
			case 'n', 't', 'r', 'b', 'f': // white space
			case 'u':
				m.tokens++
				i = min(i+4, len(raw))
			default:
				m.tokens++
			}
		case !isText && strings.ContainsRune("{}[]:,", r):
			m.run = 0
		default:
			m.add(r)
		}
	}
	return m.tokens
}

// cutTokens cuts a text to at most most tokens, at a space where one is near, and ends it with an
// ellipsis then. White space becomes single spaces.
func cutTokens(text string, most int) string {
	text = strings.Join(strings.Fields(text), " ")
	if most < 2 {
		return ""
	}
	var m meter
	end := -1 // of what fits together with an ellipsis
	for i, r := range text {
		if m.add(r); m.tokens >= most && end < 0 {
			end = i
		}
		if m.tokens > most {
			cut := text[:end]
			if space := strings.LastIndexByte(cut, ' '); space > len(cut)/2 {
				cut = cut[:space]
			}
			return strings.TrimRight(cut, " ") + "…"
		}
	}
	return text
}
