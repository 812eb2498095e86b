package explain

import (
	"fmt"
	"strings"

	"github.com/agenthandoff/handoff/protocol"
)

// Usage writes what was used: "1200 tokens, cost 0.03, 2 calls"; nothing for nothing.
func Usage(u protocol.Usage) string {
	var parts []string
	if u.Tokens > 0 {
		parts = append(parts, Count(int(u.Tokens), "token"))
	}
	if u.CostMicros > 0 {
		parts = append(parts, "cost "+Cost(u.CostMicros))
	}
	if u.Calls > 0 {
		parts = append(parts, Count(int(u.Calls), "call"))
	}
	if u.TimeMS > 0 {
		parts = append(parts, "worked "+Millis(u.TimeMS))
	}
	return strings.Join(parts, ", ")
}

// Cost writes millionths of the fleet's currency, with two digits after the point or as many as
// there are: 0.03, 1.50, 0.000125.
func Cost(micros int64) string {
	text := fmt.Sprintf("%d.%06d", micros/1_000_000, micros%1_000_000)
	for strings.HasSuffix(text, "0") && len(text)-strings.IndexByte(text, '.') > 3 {
		text = text[:len(text)-1]
	}
	return text
}

// used is Usage of what may not be known.
func used(u *protocol.Usage) string {
	if u == nil {
		return ""
	}
	return Usage(*u)
}
