package schema

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/agenthandoff/handoff/protocol"
)

// measured holds the counts of the parsed text of an output schema, before it is compiled. Words
// that only look like keywords, in an example perhaps, count too.
type measured struct {
	objects, pathBytes, references, patterns, instructions int
}

// measure counts a schema, and refuses one that exceeds a limit.
func measure(doc any) (*measured, *protocol.Error) {
	m := &measured{}
	if err := m.value(doc, nil, 0); err != nil {
		return nil, err
	}
	return m, nil
}

// value counts one value and its content; path leads to it.
func (m *measured) value(value any, path []string, pathBytes int) *protocol.Error {
	if len(path) > outputSchemaDepthMax {
		return tooLarge("is nested %d levels deep, at most %d are allowed", len(path), outputSchemaDepthMax)
	}
	switch value := value.(type) {
	case json.Number:
		if unwieldyNumber(value) {
			return protocol.Errorf(protocol.CodeInvalid, Field, "holds the number %s, which is too long", short(value.String()))
		}
		return nil
	case bool, map[string]any:
		m.objects++
		m.pathBytes += pathBytes
	}
	switch {
	case m.objects > outputSchemaObjectsMax:
		return tooLarge("has too many objects, at most %d are allowed", outputSchemaObjectsMax)
	case m.pathBytes > outputSchemaPathBytesMax:
		return tooLarge("has too long paths to its objects, at most %d bytes together are allowed", outputSchemaPathBytesMax)
	}
	switch value := value.(type) {
	case []any:
		for _, item := range value {
			if err := m.value(item, append(path, "[]"), pathBytes+8); err != nil {
				return err
			}
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(value)) {
			item := value[key]
			if err := m.keyword(key, item, path); err != nil {
				return err
			}
			if err := m.value(item, append(path, key), pathBytes+1+len(key)); err != nil {
				return err
			}
		}
	}
	return nil
}

// keyword counts the keywords that cost more than their bytes.
func (m *measured) keyword(key string, item any, path []string) *protocol.Error {
	switch item := item.(type) {
	case string:
		switch key {
		case "$ref", "$id", "id", "$anchor", "$dynamicAnchor":
			if m.references++; m.references > outputSchemaReferencesMax {
				return tooLarge("has too many references and names of schemas, at most %d are allowed", outputSchemaReferencesMax)
			}
		case "pattern":
			return m.pattern(item, append(path, key))
		}
	case map[string]any:
		if key != "patternProperties" {
			return nil
		}
		for _, text := range slices.Sorted(maps.Keys(item)) {
			if err := m.pattern(text, append(path, key)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *measured) pattern(text string, path []string) *protocol.Error {
	where := strings.TrimPrefix(place(path), ".")
	if m.patterns++; m.patterns > outputSchemaPatternsMax {
		return tooLarge("has too many regular expressions, at most %d are allowed", outputSchemaPatternsMax)
	}
	if len(text) > outputPatternBytesMax {
		return tooLarge("%s: a regular expression is %d bytes long, at most %d are allowed", where, len(text), outputPatternBytesMax)
	}
	size, err := instructions(text)
	if err != nil {
		return protocol.Errorf(protocol.CodeInvalid, Field, "%s: %s is no regular expression that can be used: %s", where, short(text), short(err.Error()))
	}
	if m.instructions += size; m.instructions > outputPatternInstructionsMax {
		return tooLarge("%s: the regular expressions so far compile to some %d instructions, at most %d are allowed", where, m.instructions, outputPatternInstructionsMax)
	}
	return nil
}

func tooLarge(format string, args ...any) *protocol.Error {
	return protocol.Errorf(protocol.CodeTooLarge, Field, format, args...)
}

// numberBytesMax and exponentDigitsMax bound checked numbers: computations are exact, and 1e999999
// has a million digits.
const (
	numberBytesMax    = 400
	exponentDigitsMax = 3
)

func unwieldyNumber(number json.Number) bool {
	_, exponent, _ := strings.Cut(strings.ToLower(number.String()), "e")
	return len(number) > numberBytesMax || len(strings.TrimLeft(exponent, "+-0")) > exponentDigitsMax
}

// survey returns the depth of a value, and a number in it that is too long for exact computations.
func survey(value any) (depth int, number string) {
	visit := func(item any) {
		below, long := survey(item)
		if depth = max(depth, below+1); long != "" {
			number = long
		}
	}
	switch value := value.(type) {
	case json.Number:
		if unwieldyNumber(value) {
			number = value.String()
		}
	case []any:
		for _, item := range value {
			visit(item)
		}
	case map[string]any:
		for _, item := range value {
			visit(item)
		}
	}
	return depth, number
}

// valuesIn counts the values in the text of a body, up to one more than most: a parsed value takes
// some hundred bytes, however short its text.
func valuesIn(body []byte, most int) int {
	values, quoted := 1, false
	for i := 0; i < len(body) && values <= most; i++ {
		switch body[i] {
		case '\\':
			i++
		case '"':
			quoted = !quoted
		case ',', '[', '{':
			if !quoted {
				values++
			}
		}
	}
	return values
}
