package protocol

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// KeyLimit bounds the work under one key, such as the rate of a model, over all agents that name it. It is
// in the profile of an agent or in the settings of the fleet, which apply to all agents.
type KeyLimit struct {
	// Key is a word, or a word and the path of a field of the package: "openai", or
	// "model:$.variables.model" for the key model:VALUE. $.variables are the variables of the context;
	// every other path begins at the package. A package without the field, or with an object or a list in
	// it, is not bounded.
	Key string `json:"key"`
	// MaxConcurrency is how many handoffs are held at a time; absent is no bound.
	MaxConcurrency int `json:"max_concurrency,omitempty"`
	// Rate is how many attempts begin in any span of PerMS; absent is no bound.
	Rate  int   `json:"rate,omitempty"`
	PerMS int64 `json:"per_ms,omitempty"`
}

const (
	// KeyLimitsMax is how many limits by key a profile has at most, and the settings of a fleet.
	KeyLimitsMax = 8
	// LimitKeyBytesMax bounds a resolved key: a longer value does not bound the package.
	LimitKeyBytesMax = 192
	// KeyRateMax bounds the rate of a key, and KeyPerMinMS and KeyPerMaxMS its span.
	KeyRateMax  = 1_000
	KeyPerMinMS = second
	KeyPerMaxMS = day
	// KeyConcurrencyMax bounds max_concurrency of a key.
	KeyConcurrencyMax = 1_000
	// KeyWaitingMax is how many handoffs wait for one key in order. Further ones stay in the queues of
	// their agents.
	KeyWaitingMax = 1_000
	// KeyPauseMaxMS bounds the pause of a key after a report that its provider throttles.
	KeyPauseMaxMS = 10 * minute

	keyPath = ":$."
)

// checkKeyLimits checks limits by key.
func checkKeyLimits(field string, limits []KeyLimit) *Error {
	return checkNamed(field, limits, KeyLimitsMax, "lists %d limits", (*KeyLimit).check, ".key", func(l *KeyLimit) string { return l.Key })
}

func (l *KeyLimit) check() *Error {
	word, path, has := strings.Cut(l.Key, keyPath)
	if err := checkID("key", word); err != nil {
		return Errorf(err.Code, "key", `%q is neither a word nor a word and a path, such as "model:$.variables.model"`, l.Key)
	}
	if steps := strings.Split(path, "."); has && (len(path) > NameBytesMax || slices.Contains(steps, "") || steps[0] == "variables" && len(steps) == 1) {
		return Errorf(CodeInvalid, "key", `%q has no path such as "$.variables.model" after the colon`, l.Key)
	}
	switch {
	case l.MaxConcurrency == 0 && l.Rate == 0:
		return Errorf(CodeMissing, "max_concurrency", "and rate are both missing: the key has no limit")
	case l.Rate == 0 && l.PerMS != 0:
		return Errorf(CodeMissing, "rate", "is missing: how many may begin in per_ms")
	case l.Rate != 0 && l.PerMS == 0:
		return Errorf(CodeMissing, "per_ms", "is missing: the span of the rate, such as 60000 for a minute")
	}
	return cmp.Or(between("max_concurrency", l.MaxConcurrency, 0, KeyConcurrencyMax), between("rate", l.Rate, 0, KeyRateMax),
		zeroOrBetween("per_ms", l.PerMS, KeyPerMinMS, KeyPerMaxMS))
}

// KeyLimitsOf returns the limits of a package at an agent by their resolved keys, in the order of
// the keys. Of two limits for one key the lower numbers apply. The agent human is not
// bounded. A package that cannot be read is bounded by those without a path.
func KeyLimitsOf(fleet *Fleet, profile *Profile, pkg []byte) []KeyLimit {
	var all []KeyLimit
	if fleet != nil {
		all = append(all, fleet.LimitsBy...)
	}
	if profile != nil {
		all = append(all, profile.LimitsBy...)
		if profile.ID == Human {
			return nil
		}
	}
	if len(all) == 0 { // the usual case
		return nil
	}
	var bounded map[string]KeyLimit
	for _, l := range all {
		word, path, has := strings.Cut(l.Key, keyPath)
		if l.Key = word; has {
			value := textAt(pkg, path)
			if l.Key = word + ":" + value; value == "" || len(l.Key) > LimitKeyBytesMax {
				continue
			}
		}
		if bounded == nil {
			bounded = map[string]KeyLimit{}
		}
		if other, twice := bounded[l.Key]; twice {
			l = l.stricter(other)
		}
		bounded[l.Key] = l
	}
	limits := make([]KeyLimit, 0, len(bounded))
	for _, key := range slices.Sorted(maps.Keys(bounded)) {
		limits = append(limits, bounded[key])
	}
	return limits
}

// stricter returns the lower bounds of two limits of one key. Of two rates with different spans it takes
// the one that lets fewer begin in the longer span.
func (l KeyLimit) stricter(o KeyLimit) KeyLimit {
	if l.MaxConcurrency == 0 || o.MaxConcurrency != 0 && o.MaxConcurrency < l.MaxConcurrency {
		l.MaxConcurrency = o.MaxConcurrency
	}
	if l.Rate == 0 || o.Rate != 0 && int64(o.Rate)*l.PerMS < int64(l.Rate)*o.PerMS {
		l.Rate, l.PerMS = o.Rate, o.PerMS
	}
	return l
}

// textAt returns the text, number or boolean of a field of a package as text; empty if there is none.
func textAt(pkg []byte, path string) string {
	steps := strings.Split(path, ".")
	if steps[0] == "variables" {
		steps = append([]string{"context"}, steps...)
	}
	at := json.RawMessage(pkg)
	for _, step := range steps {
		var fields map[string]json.RawMessage
		if json.Unmarshal(at, &fields) != nil {
			return ""
		}
		at = fields[step]
	}
	var value any
	read := json.NewDecoder(bytes.NewReader(at))
	read.UseNumber()
	if read.Decode(&value) != nil {
		return ""
	}
	switch v := value.(type) {
	case string:
		if !utf8.ValidString(v) || strings.ContainsFunc(v, unicode.IsControl) {
			return ""
		}
		return v
	case json.Number, bool:
		return fmt.Sprint(v)
	}
	return ""
}

// KeyUse is the use of a key with a limit: the handoffs that have a place, and those that wait. It is an
// entry in the bucket of the holders.
type KeyUse struct {
	Key string `json:"key"`
	// Places are the handoffs that are held under the key, by ticket. A place without a holder is kept for
	// a handoff whose offer no worker has claimed yet.
	Places map[string]KeyPlace `json:"places,omitempty"`
	// Starts are the times at which the last attempts began, in Unix milliseconds, oldest first.
	Starts []int64 `json:"starts,omitempty"`
	// SpanMS is how long a start is kept: the longest span of a rate that was asked for.
	SpanMS int64 `json:"span_ms,omitempty"`
	// Waiting are the handoffs that wait for a place, in their order.
	Waiting []KeyWait `json:"waiting,omitempty"`
	// PausedUntil is when handoffs may begin again, after the report of PausedBy (a ticket).
	PausedUntil Time   `json:"paused_until,omitzero"`
	PausedBy    string `json:"paused_by,omitempty"`
}

// KeyPlace is a place under a key: the claim that has it, and the order of its handoff.
type KeyPlace struct {
	Slot
	Agent string   `json:"agent"`
	Order KeyOrder `json:"order"`
}

// KeyOrder is the place of a handoff in the order for a key: by lane, then by submission.
type KeyOrder struct {
	Lane      int   `json:"lane"`      // 0 is the most urgent
	Submitted int64 `json:"submitted"` // in Unix milliseconds
}

// Before reports whether a handoff comes before another one. Equal ones are ordered by ticket.
func (o KeyOrder) Before(other KeyOrder, ticket, otherTicket string) bool {
	switch {
	case o.Lane != other.Lane:
		return o.Lane < other.Lane
	case o.Submitted != other.Submitted:
		return o.Submitted < other.Submitted
	}
	return ticket < otherTicket
}

// KeyWait is a handoff that waits for a place, with the limit that bounds it.
type KeyWait struct {
	Ticket         string   `json:"ticket"`
	Agent          string   `json:"agent"`
	Order          KeyOrder `json:"order"`
	MaxConcurrency int      `json:"max_concurrency,omitempty"`
	Rate           int      `json:"rate,omitempty"`
	PerMS          int64    `json:"per_ms,omitempty"`
}

// DecodeKeyUse reads the use of a key. It refuses malformed tickets, and more entries than the limits of
// this package allow.
func DecodeKeyUse(body []byte) (KeyUse, error) {
	var use KeyUse
	if err := json.Unmarshal(body, &use); err != nil {
		return KeyUse{}, err
	}
	if n := len(use.Key); n == 0 || n > LimitKeyBytesMax || len(use.Waiting) > KeyWaitingMax || len(use.Starts) > KeyRateMax || use.SpanMS < 0 || use.SpanMS > KeyPerMaxMS {
		return KeyUse{}, Errorf(CodeInvalid, "limit", "has a key of %d bytes, %d starts, a span of %d ms and %d waiting handoffs: one of them is over its limit", n, len(use.Starts), use.SpanMS, len(use.Waiting))
	}
	for ticket := range use.Places {
		if _, err := ParseTicket(ticket); err != nil {
			return KeyUse{}, err
		}
	}
	for _, w := range use.Waiting {
		if _, err := ParseTicket(w.Ticket); err != nil {
			return KeyUse{}, err
		}
	}
	if !slices.IsSorted(use.Starts) {
		return KeyUse{}, Errorf(CodeInvalid, "limit", "has starts that are not in order")
	}
	return use, nil
}
