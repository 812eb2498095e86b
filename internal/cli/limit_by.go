package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// Limits by key are written KEY=MAX, KEY=RATE/SPAN or KEY=MAX,RATE/SPAN, such as
// model:$.variables.model=8,60/1m.

// parseKeyLimits reads limits by key. A single empty text is none.
func parseKeyLimits(field string, texts []string) ([]protocol.KeyLimit, error) {
	var limits []protocol.KeyLimit
	for _, text := range texts {
		if text == "" && len(texts) == 1 {
			return nil, nil
		}
		limit, err := parseKeyLimit(text)
		if err != nil {
			return nil, protocol.Errorf(protocol.CodeInvalid, field, `%q %v; write KEY=8 (at a time), KEY=60/1m (begins in each span), or KEY=8,60/1m`, text, err)
		}
		limits = append(limits, limit)
	}
	return limits, nil
}

func parseKeyLimit(text string) (l protocol.KeyLimit, err error) {
	key, bounds, has := strings.Cut(text, "=")
	if !has || bounds == "" {
		return l, fmt.Errorf("has no limit")
	}
	l.Key = key
	for bound := range strings.SplitSeq(bounds, ",") {
		number, span, isRate := strings.Cut(bound, "/")
		n, err := strconv.Atoi(strings.TrimSpace(number))
		switch {
		case err != nil || n < 1:
			return l, fmt.Errorf("has %q in place of a number", number)
		case !isRate && l.MaxConcurrency == 0:
			l.MaxConcurrency = n
		case isRate && l.Rate == 0:
			per, err := time.ParseDuration(span)
			if err != nil {
				return l, fmt.Errorf("has %q in place of a span", span)
			}
			l.Rate, l.PerMS = n, per.Milliseconds()
		default:
			return l, fmt.Errorf("has two limits of one kind")
		}
	}
	return l, nil
}

// keyLimitsText reads the value of the setting limits_by: JSON, or limits in words, separated by spaces.
func keyLimitsText(value json.RawMessage) (json.RawMessage, error) {
	var text string
	if value = bytes.TrimSpace(value); len(value) == 0 || value[0] != '"' || json.Unmarshal(value, &text) != nil {
		return value, nil
	}
	limits, err := parseKeyLimits("limits_by", strings.Fields(text))
	if err != nil {
		return nil, err
	}
	return json.Marshal(limits)
}

// keyLimitWords returns limits by key in words.
func keyLimitWords(limits []protocol.KeyLimit) string {
	words := make([]string, len(limits))
	for i, l := range limits {
		words[i] = l.Key + ": " + lifecycle.KeyLimitWords(l)
	}
	return strings.Join(words, "; ")
}
