package api

import (
	"errors"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// TestWaitLimit: a wait takes as long as asked for, or ends up to waitSlack early with other long ones.
func TestWaitLimit(t *testing.T) {
	for ms, early := range map[int64]time.Duration{0: 0, 1: 0, 9999: 0, 10_000: waitSlack, 20_000: waitSlack} {
		asked := time.Duration(ms) * time.Millisecond
		limit, err := waitLimit(ms)
		if err != nil || limit > asked || limit < asked-early {
			t.Errorf("%d ms: %v, %v", ms, limit, err)
		}
	}
	for _, ms := range []int64{-1, 20_001} {
		var refused *protocol.Error
		if _, err := waitLimit(ms); !errors.As(err, &refused) || refused.Field != "wait_ms" {
			t.Errorf("%d ms: %v", ms, err)
		}
	}
}
