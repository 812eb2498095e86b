package protocol

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/internal/wirejson"
)

// Signal is a named happening, from outside or from a handoff.
type Signal struct {
	Name string `json:"name"`
	// ID is the identity of the happening: a signal that is sent again with it begins nothing.
	ID      string          `json:"id"`
	Payload json.RawMessage `json:"payload,omitempty"`
	// Parent is the handoff that sent the signal. Its handoffs have the lineage of that one.
	Parent string `json:"parent,omitempty"`
}

// Rule begins a handoff for each matching signal. It is a record in the directory, which supervisors
// change by compare-and-set; its template is an entry of its own.
type Rule struct {
	Name   string         `json:"name"`
	Signal string         `json:"signal"`       // the name of the signals
	If     *NextCondition `json:"if,omitempty"` // compares the fields of a payload; absent is any payload
	Rate   int            `json:"rate"`         // how many handoffs it begins a minute at most

	By        string `json:"by,omitempty"` // who wrote it last
	CreatedAt Time   `json:"created_at"`
	UpdatedAt Time   `json:"updated_at"`
	PausedAt  Time   `json:"paused_at,omitzero"`

	// Minute is the last minute for which handoffs were permitted, and MinuteCount how many were.
	// FullAt is when signals last had to wait for the next minute.
	Minute      Time `json:"minute,omitzero"`
	MinuteCount int  `json:"minute_count,omitempty"`
	FullAt      Time `json:"full_at,omitzero"`
	// Last is the last signal that began a handoff, and Refused the last whose package was refused.
	Last    *Signalled `json:"last,omitempty"`
	Refused *Signalled `json:"refused,omitempty"`
	// How many signals began a handoff, were refused, did not satisfy the condition, or came in a pause.
	FiredCount     int `json:"fired_count,omitempty"`
	RefusedCount   int `json:"refused_count,omitempty"`
	UnmatchedCount int `json:"unmatched_count,omitempty"`
	PausedCount    int `json:"paused_count,omitempty"`
}

// Signalled is one signal of a rule, with its handoff or the reason that it has none.
type Signalled struct {
	ID      string `json:"id"`
	At      Time   `json:"at"`
	Ticket  string `json:"ticket,omitempty"`
	Code    Code   `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
}

// UnknownSignals counts the signals whose name no rule has.
type UnknownSignals struct {
	Count  int    `json:"count"`
	Name   string `json:"name"` // of the last
	LastAt Time   `json:"last_at"`
}

const (
	// SignalSource is the source of the handoffs of all rules, a reserved name.
	SignalSource = "signal"
	// RulesMax is how many rules a fleet has at most.
	RulesMax = 256
	// RuleBytesMax bounds the record of a rule, TemplateBytesMax its template.
	RuleBytesMax     = 32 << 10
	TemplateBytesMax = 256 << 10
	// RuleRateDefault and RuleRateMax are handoffs a minute.
	RuleRateDefault, RuleRateMax = 60, 6000
	// SignalBytesMax bounds the payload of a signal, SignalIDBytesMax its id.
	SignalBytesMax   = 256 << 10
	SignalIDBytesMax = 128
	// TemplateValuesMax is how many values of a template come from the payload at most.
	TemplateValuesMax = 64

	signalKeyPrefix = "signal:"
)

// SignalKey returns the idempotency key of the handoff that a rule begins for a signal.
func SignalKey(rule, id string) string { return signalKeyPrefix + rule + ":" + id }

// RuleOf returns the rule that begins a handoff with this source and key; empty if none does.
func RuleOf(source, key string) string {
	if source != SignalSource {
		return ""
	}
	return namedInKey(key, signalKeyPrefix)
}

// Validate checks a signal, and the syntax of its payload.
func (s *Signal) Validate() error {
	if err := cmp.Or(CheckID("name", s.Name), CheckSignalID(s.ID)); err != nil {
		return err
	}
	if s.Parent != "" {
		if _, err := ParseTicket(s.Parent); err != nil {
			return Errorf(CodeInvalid, "parent", "%q is not a ticket", wirejson.Clip(s.Parent))
		}
	}
	switch {
	case len(s.Payload) > SignalBytesMax:
		return Errorf(CodeTooLarge, "payload", "%s; send a reference to large data", OverSize(len(s.Payload), SignalBytesMax))
	case len(s.Payload) > 0 && !json.Valid(s.Payload):
		return Errorf(CodeMalformed, "payload", "is not JSON")
	}
	return nil
}

// CheckSignalID refuses an id of a signal that has other than 1 to 128 visible ASCII characters.
func CheckSignalID(id string) error {
	switch {
	case id == "":
		return Errorf(CodeMissing, "id", "is missing")
	case len(id) > SignalIDBytesMax:
		return tooLarge("id", len(id), SignalIDBytesMax)
	}
	if i := strings.IndexFunc(id, func(r rune) bool { return r <= ' ' || r >= 0x7f }); i >= 0 {
		return Errorf(CodeInvalid, "id", "has at byte %d a character that is no visible ASCII", i)
	}
	return nil
}

// Validate checks all fields.
func (r *Rule) Validate() error {
	if err := cmp.Or(checkID("name", r.Name), checkID("signal", r.Signal)); err != nil {
		return err
	}
	if err := r.If.validate(); err != nil {
		return err.below("if")
	}
	if r.If != nil && r.If.Status != "" {
		return Errorf(CodeInvalid, "if.status", "is of a result, and a signal has none: compare a field of the payload by its name as variable")
	}
	if r.Rate < 1 || r.Rate > RuleRateMax {
		return Errorf(CodeInvalid, "rate", "is %d, must be 1 to %d handoffs a minute", r.Rate, RuleRateMax)
	}
	return nil
}

// Matches reports whether a payload satisfies the condition of a rule. The variables of the condition
// are the fields of the payload.
func (r *Rule) Matches(payload json.RawMessage) bool {
	if r.If == nil {
		return true
	}
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(payload, &fields) // any other value than an object has no fields
	return r.If.holds(fields, "")
}

// Permit takes up to n of the handoffs that a rule may begin in the minute of now. wait is how long the
// others have to wait.
func (r *Rule) Permit(n int, now Time) (next Rule, got int, wait time.Duration) {
	next = *r
	minute := now.Truncate(time.Minute)
	if !next.Minute.Equal(minute) {
		next.Minute, next.MinuteCount = minute, 0
	}
	got = min(n, max(0, next.Rate-next.MinuteCount))
	next.MinuteCount += got
	if got < n {
		wait = max(minute.Add(time.Minute).Sub(now), 0)
		if next.FullAt.Before(minute) {
			next.FullAt = now
		}
	}
	return next, got, wait
}

// A template is a package in which {"$": POINTER} is replaced by the value of the payload at a JSON
// Pointer (RFC 6901); the empty pointer is the whole payload.

// FillTemplate returns the package of a template for a payload. A pointer that finds nothing is refused
// by the field that has it.
func FillTemplate(template, payload json.RawMessage) (json.RawMessage, error) {
	if len(payload) == 0 {
		payload = json.RawMessage("null")
	}
	data, err := decodeAny("payload", payload)
	if err != nil {
		return nil, err
	}
	return MapTemplate(template, func(field, pointer string) (any, error) {
		value, found := at(data, pointer)
		if !found {
			return nil, Errorf(CodeMissing, field, "the payload has no %s", wirejson.Clip(pointer))
		}
		return value, nil
	})
}

// MapTemplate returns a template with each value that comes from the payload replaced by value.
func MapTemplate(template json.RawMessage, value func(field, pointer string) (any, error)) (json.RawMessage, error) {
	root, err := decodeAny("", template)
	if err != nil {
		return nil, err
	}
	if _, is := root.(map[string]any); !is {
		return nil, Errorf(CodeMalformed, "", "is no JSON object")
	}
	n := 0
	filled, err := mapValues("", root, func(field, pointer string) (any, error) {
		if n++; n > TemplateValuesMax {
			return nil, Errorf(CodeTooLarge, field, "is one of more than %d values from the payload", TemplateValuesMax)
		}
		return value(field, pointer)
	})
	if err != nil {
		return nil, err
	}
	return Marshal(filled)
}

// decodeAny decodes any JSON, and keeps numbers as they are.
func decodeAny(field string, body json.RawMessage) (value any, err error) {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	if err = decoder.Decode(&value); err == nil {
		if _, err = decoder.Token(); err == io.EOF {
			return value, nil
		}
	}
	return nil, Errorf(CodeMalformed, field, "is not JSON: %v", err)
}

func mapValues(field string, node any, value func(field, pointer string) (any, error)) (_ any, err error) {
	switch node := node.(type) {
	case map[string]any:
		if from, is := node["$"]; is && len(node) == 1 {
			pointer, text := from.(string)
			if !text || pointer != "" && pointer[0] != '/' {
				return nil, Errorf(CodeInvalid, field, `has a $ that is no JSON Pointer, such as "/order/id", or "" for the whole payload`)
			}
			return value(field, pointer)
		}
		for _, name := range slices.Sorted(maps.Keys(node)) {
			path := name
			if field != "" {
				path = wirejson.Join(field, name)
			}
			if node[name], err = mapValues(path, node[name], value); err != nil {
				return nil, err
			}
		}
	case []any:
		for i, below := range node {
			if node[i], err = mapValues(fmt.Sprintf("%s[%d]", field, i), below, value); err != nil {
				return nil, err
			}
		}
	}
	return node, nil
}

var unescapePointer = strings.NewReplacer("~1", "/", "~0", "~")

// at returns the value at a JSON Pointer.
func at(value any, pointer string) (any, bool) {
	for pointer != "" {
		step, rest, more := strings.Cut(pointer[1:], "/")
		if step, pointer = unescapePointer.Replace(step), ""; more {
			pointer = "/" + rest
		}
		switch in := value.(type) {
		case map[string]any:
			below, has := in[step]
			if !has {
				return nil, false
			}
			value = below
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i < 0 || i >= len(in) || step != strconv.Itoa(i) {
				return nil, false
			}
			value = in[i]
		default:
			return nil, false
		}
	}
	return value, true
}

// Words describes a condition on a payload: total > 100.
func (c *NextCondition) Words() string {
	op, _ := c.operator()
	return c.Variable + " " + op
}
