package cli

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/pflag"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

// parseDuration reads a duration of Go ("1h30m"), with days before it ("2d", "1d12h"): deadlines
// are thought of in days.
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
	// People and logs can compare milliseconds.
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

// pastValue is a flag that is an instant, or a duration before now.
type pastValue struct {
	to  *time.Time
	ago bool // it is a duration
}

func (v *pastValue) String() string { return "" }

func (v *pastValue) Type() string { return "WHEN" }

func (v *pastValue) Set(text string) (err error) {
	if *v.to, err = parsePast(text, time.Now().Truncate(time.Millisecond)); err == nil {
		_, err := parseDuration(text)
		v.ago = err == nil
	}
	return err
}

// millisValue is a flag that is a duration in milliseconds, days included.
type millisValue struct{ ms *int64 }

func (v millisValue) String() string {
	if v.ms == nil || *v.ms == 0 {
		return ""
	}
	return explain.Millis(*v.ms)
}

func (v millisValue) Type() string { return "duration" }

func (v millisValue) Set(text string) error {
	d, err := parseDuration(text)
	*v.ms = d.Milliseconds()
	return err
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
		variables[key] = api.JSONOrText(value)
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

// checkWords refuses words that would not be written as they were given: invalid text, and text
// longer than an event keeps.
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

func jsonText(value string) json.RawMessage {
	text, _ := json.Marshal(value) // a string always has a JSON form
	return text
}

// parseLevel reads "go" or "go:0.8": a capability and how well.
func parseLevel(flag, text string) (id string, level float64, given bool, err error) {
	id, number, given := strings.Cut(text, ":")
	if !given {
		return id, 0, false, nil
	}
	level, err = strconv.ParseFloat(number, 64)
	if err != nil {
		return "", 0, false, usagef("%s %q: write NAME or NAME:0.8", flag, text)
	}
	return id, level, true, nil
}

func parseCapabilities(flag string, texts []string) ([]protocol.Capability, error) {
	var list []protocol.Capability
	for _, text := range texts {
		id, level, given, err := parseLevel(flag, text)
		if err != nil {
			return nil, err
		}
		if !given {
			level = 1
		}
		list = append(list, protocol.Capability{ID: id, Proficiency: level})
	}
	return list, nil
}

// durationValue is a flag that is a duration, days included.
type durationValue struct {
	d        *time.Duration
	negative bool // allowed: the package's own validation refuses it
}

func (v durationValue) String() string {
	if v.d == nil || *v.d == 0 {
		return ""
	}
	return explain.Duration(*v.d)
}

func (v durationValue) Type() string { return "duration" }

func (v durationValue) Set(text string) error {
	d, err := parseDuration(text)
	if err != nil {
		return err
	}
	if d < 0 && !v.negative {
		return fmt.Errorf("%q is negative", text)
	}
	*v.d = d
	return nil
}

// durationVar declares a flag of the command itself: negative is a usage error.
func durationVar(fs *pflag.FlagSet, d *time.Duration, name string, def time.Duration, usage string) {
	*d = def
	fs.Var(durationValue{d: d}, name, usage)
}

// orNew returns the pointer in a field, to a new value if the field was nil.
func orNew[T any](field **T) *T {
	if *field == nil {
		*field = new(T)
	}
	return *field
}
