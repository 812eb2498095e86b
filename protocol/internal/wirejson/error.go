package wirejson

import (
	"fmt"
	"strings"
)

// Codes of an Error. They are codes of the wire.
const (
	Malformed    = "malformed"
	Invalid      = "invalid"
	UnknownField = "unknown_field"
	TooLarge     = "too_large"
	Text         = "text"
)

// Error says which field is wrong, and what about it.
type Error struct{ Code, Field, Message string }

func errorf(code, field, format string, args ...any) *Error {
	return &Error{Code: code, Field: field, Message: fmt.Sprintf(format, args...)}
}

// Below puts a step in front of the field's path.
func (e *Error) Below(step string) *Error {
	e.Field = Join(step, e.Field)
	return e
}

// Join puts a step in front of a path.
func Join(step, path string) string {
	if path == "" || path[0] == '[' {
		return Clip(step) + path
	}
	return Clip(step) + "." + path
}

// Clip shortens untrusted text for an error message.
func Clip(s string) string {
	const most = 80
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
