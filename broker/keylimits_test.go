package broker_test

import (
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// TestKeyUseTTL: an entry outlives its starts and its pause, and handoffs that are held under its key.
func TestKeyUseTTL(t *testing.T) {
	now := time.Now()
	for want, use := range map[time.Duration]protocol.KeyUse{
		time.Hour:        {},
		time.Hour + 1e11: {SpanMS: 100_000},
		61 * time.Minute: {PausedUntil: now.Add(time.Minute)},
		25 * time.Hour:   {Places: map[string]protocol.KeyPlace{"t": {}}},
	} {
		if got := broker.KeyUseTTL(use, now); got != want {
			t.Errorf("%+v: %v, want %v", use, got, want)
		}
	}
}
