package cli

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/agenthandoff/handoff/protocol"
)

// parseDuration reads what Go reads ("1h30m") and days before it ("2d", "1d12h"):
// deadlines are thought of in days.
func parseDuration(text string) (time.Duration, error) {
	wrong := fmt.Errorf("%q is not a duration; write 30s, 10m, 2h or 3d", text)
	rest, sign := strings.TrimPrefix(text, "-"), time.Duration(1)
	if rest != text {
		sign = -1
	}
	var total time.Duration
	if days, after, ok := strings.Cut(rest, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		if err != nil {
			return 0, wrong
		}
		total, rest = time.Duration(n)*24*time.Hour, after
		if rest == "" {
			return sign * total, nil
		}
	}
	d, err := time.ParseDuration(rest)
	if err != nil || d < 0 {
		return 0, wrong
	}
	return sign * (total + d), nil
}

// parseInstant reads a deadline: an instant, or a duration from now on.
func parseInstant(text string, now time.Time) (at time.Time, relative bool, err error) {
	if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return at.UTC(), false, nil
	}
	d, err := parseDuration(text)
	if err != nil {
		return time.Time{}, false, fmt.Errorf("%q is neither a duration (2h, 3d) nor an instant (2026-01-31T17:00:00Z)", text)
	}
	// Milliseconds are what people and logs can compare.
	return now.Add(d).UTC().Truncate(time.Millisecond), true, nil
}

// parsePast reads an instant, or a duration before now.
func parsePast(text string, now time.Time) (time.Time, error) {
	if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return at.UTC(), nil
	}
	d, err := parseDuration(text)
	if err != nil || d < 0 {
		return time.Time{}, fmt.Errorf("%q is neither a duration (2h, 3d) nor an instant (2026-01-31T17:00:00Z)", text)
	}
	return now.Add(-d), nil
}

// pastFlag reads a flag that is an instant or a duration before now; without a value it is zero.
func pastFlag(flag, text string, now time.Time) (at time.Time, err error) {
	if text == "" {
		return at, nil
	}
	if at, err = parsePast(text, now); err != nil {
		err = usagef("--%s: %v", flag, err)
	}
	return at, err
}

// parseVariables reads k=v pairs. v is JSON if it parses as JSON, else a string.
func parseVariables(flag string, pairs []string) (map[string]json.RawMessage, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	variables := make(map[string]json.RawMessage, len(pairs))
	for _, pair := range pairs {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return nil, usagef("%s %q: write name=value", flag, pair)
		}
		if !utf8.ValidString(pair) { // encoding/json would put something else in its place
			return nil, protocol.Errorf(protocol.CodeText, strings.TrimPrefix(flag, "--"), "%q holds bytes that are no UTF-8", pair)
		}
		variables[key] = jsonOrText(value)
	}
	return variables, nil
}

// addVariables lays k=v pairs over variables.
func addVariables(to *map[string]json.RawMessage, flag string, pairs []string) error {
	variables, err := parseVariables(flag, pairs)
	if *to == nil {
		*to = variables
	} else {
		maps.Copy(*to, variables)
	}
	return err
}

// checkWords refuses words that would not be written as they were given: what is
// no text, and what is longer than an event keeps.
func checkWords(field, text string) error {
	switch {
	case !utf8.ValidString(text):
		return protocol.Errorf(protocol.CodeText, field, "holds bytes that are no UTF-8")
	case strings.ContainsRune(text, 0):
		return protocol.Errorf(protocol.CodeText, field, "holds a NUL byte")
	case len(text) > protocol.ReasonBytesMax:
		return protocol.Errorf(protocol.CodeTooLarge, field, "%s", protocol.OverSize(len(text), protocol.ReasonBytesMax))
	}
	return nil
}

// needWords is checkWords for words that must be given.
func needWords(field, text string) error {
	if strings.TrimSpace(text) == "" {
		return protocol.Errorf(protocol.CodeMissing, field, "is missing or empty; give it with --%s", field)
	}
	return checkWords(field, text)
}

func jsonOrText(value string) json.RawMessage {
	if json.Valid([]byte(value)) {
		return json.RawMessage(value)
	}
	return jsonText(value)
}

func jsonText(value string) json.RawMessage {
	text, _ := json.Marshal(value) // a string always has a JSON form
	return text
}
