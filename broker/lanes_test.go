package broker

import (
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/protocol"
)

func TestLaneOrder(t *testing.T) {
	const usual = "critical high normal low"
	for _, test := range []struct {
		taken int64
		order string
	}{
		{0, usual}, {1, usual}, {6, usual},
		{7, "high normal low critical"},
		{8, usual}, {14, usual},
		{15, "normal low high critical"},
		{16, usual}, {22, usual},
		{23, "low high normal critical"},
		{24, usual}, {30, usual},
		{31, "high normal low critical"},
		{1 << 40, usual}, {3<<40 + 23, "low high normal critical"},
	} {
		var order []string
		for _, lane := range LaneOrder(test.taken) {
			order = append(order, string(lane))
		}
		if got := strings.Join(order, " "); got != test.order {
			t.Errorf("after %d: %s, want %s", test.taken, got, test.order)
		}
	}
}

// TestLaneOrderShares counts what the contract promises.
func TestLaneOrderShares(t *testing.T) {
	firsts := map[protocol.Priority]int{}
	for taken := range int64(TurnRound) {
		firsts[LaneOrder(taken)[0]]++
	}
	if firsts[protocol.Critical] != TurnRound-3 || firsts[protocol.High] != 1 || firsts[protocol.Normal] != 1 || firsts[protocol.Low] != 1 {
		t.Errorf("of %d: %v", TurnRound, firsts)
	}
}
