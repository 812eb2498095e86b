package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

func newLimits(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "limits",
		Short: "Show the limits by key: who is in work, and who waits",
		Long: `Limits lists the keys with a limit that were used lately: a model that many agents share,
say. IN WORK is how many handoffs are in work, of how many; BEGUN how many attempts began
in the last span of the rate; WAITING how many wait in order. A key is paused after a worker
has reported that its provider throttles. See docs/how-to/limits-by-key.md.`,
		Example: `  handoff agents put coder --limit-by 'model:$.variables.model=8,60/1m'
  handoff limits`,
		Args: takes(),
		RunE: onAll(a, (*api.Session).KeyLimits, func(all api.KeyLimits) error {
			if len(all.Keys) == 0 {
				a.notef("handoff: no key with a limit was used; set one with handoff agents put AGENT --limit-by 'KEY=8,60/1m'\n")
				return nil
			}
			return a.table(keyRows(all.Keys))
		}),
	}
}

// readKeys returns the keys with a limit as top and stats show them.
func readKeys(ctx context.Context, s *api.Session) ([]lifecycle.KeyStatus, error) {
	all, err := s.KeyLimits(ctx)
	explain.SortKeys(all.Keys)
	return all.Keys, err
}

// keyRows is the table of the keys with a limit.
func keyRows(all []lifecycle.KeyStatus) [][]string {
	return rowsOf("KEY|IN WORK|BEGUN|WAITING|PAUSED", all, func(v lifecycle.KeyStatus) []any {
		return []any{v.Key, explain.KeyHeld(v), explain.KeyBegun(v), v.Waiting, explain.KeyPause(v, explain.Instant)}
	})
}

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
