package wirejson

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Codes of an Error. They are codes of the wire.
const (
	Malformed    = "malformed"
	Invalid      = "invalid"
	UnknownField = "unknown_field"
	TooLarge     = "too_large"
	Text         = "text"
)

// Error names a wrong field and its problem.
type Error struct{ Code, Field, Message string }

func errorf(code, field, format string, args ...any) *Error {
	return &Error{Code: code, Field: field, Message: fmt.Sprintf(format, args...)}
}

// Below prepends a step to the field's path.
func (e *Error) Below(step string) *Error {
	e.Field = Join(step, e.Field)
	return e
}

// Join prepends a step to a path.
func Join(step, path string) string {
	if path == "" || path[0] == '[' {
		return Clip(step) + path
	}
	return Clip(step) + "." + path
}

// Clip shortens untrusted text for an error message.
func Clip(s string) string { return CutText(s, 80) }

// CutText is protocol.CutText.
func CutText(s string, bytesMax int) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
	if len(s) <= bytesMax {
		return s
	}
	const end = "…"
	if bytesMax < len(end) {
		return ""
	}
	return Prefix(s, bytesMax-len(end)) + end
}

// Prefix is protocol.Prefix.
func Prefix(s string, bytesMax int) string {
	if len(s) <= bytesMax {
		return s
	}
	for bytesMax > 0 && !utf8.RuneStart(s[bytesMax]) {
		bytesMax--
	}
	return s[:bytesMax]
}
