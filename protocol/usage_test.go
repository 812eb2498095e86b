package protocol_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/agenthandoff/handoff/protocol"
)

// TestUsedIsCumulative plays reports in any order, some of them twice: what was used is the most
// that each attempt has said.
func TestUsedIsCumulative(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var used *protocol.Used
		most := map[uint64]protocol.Usage{}
		for range 30 {
			fence := 1 + rng.Uint64N(protocol.AttemptsUsageMax)
			report := protocol.Usage{TokensIn: rng.Int64N(50), TokensOut: rng.Int64N(50), CostMicros: rng.Int64N(9), Calls: rng.Int64N(4)}
			before := used
			var was protocol.Usage
			if before != nil {
				was = before.Usage
			}
			used, _ = used.Add(fence, report)
			again, more := used.Add(fence, report)
			if again != used || !more.IsZero() {
				t.Fatalf("seed %d: %+v counts again: %+v", seed, report, more)
			}
			if before != nil && before.Usage != was {
				t.Fatalf("seed %d: what was used before has changed", seed)
			}
			report.Normalize()
			most[fence] = most[fence].Max(report)
			var want protocol.Usage
			for _, said := range most {
				want = want.Plus(said)
			}
			if got := used.Total(); got != want {
				t.Fatalf("seed %d: used %+v, want %+v", seed, got, want)
			}
		}
	}
}

// TestUsageIsBounded: what no validation has seen does not overflow.
func TestUsageIsBounded(t *testing.T) {
	var used *protocol.Used
	for fence := range uint64(40) {
		used, _ = used.Add(fence+1, protocol.Usage{TokensIn: math.MaxInt64, TokensOut: math.MaxInt64, Tokens: math.MaxInt64, CostMicros: math.MinInt64, Model: "no model"})
	}
	if used.TokensIn != 40*protocol.UsageMax || used.CostMicros != 0 || used.Model != "" || len(used.Attempts) != protocol.AttemptsUsageMax {
		t.Errorf("%+v", used)
	}
}

// TestPrice: a cost that is reported stands, and what is not known to have gone in or out costs the
// higher price.
func TestPrice(t *testing.T) {
	price := &protocol.Price{InMicros: 3_000_000, OutMicros: 15_000_000}
	for _, c := range []struct {
		usage protocol.Usage
		want  int64
	}{
		{protocol.Usage{TokensIn: 1000, TokensOut: 200}, 6000},
		{protocol.Usage{TokensIn: 1000, TokensOut: 200, Tokens: 1300}, 7500},
		{protocol.Usage{Tokens: 1000}, 15_000},
		{protocol.Usage{Tokens: 1000, CostMicros: 7}, 7},
		{protocol.Usage{Calls: 3}, 0},
		{protocol.Usage{Tokens: protocol.UsageMax}, protocol.UsageMax},
	} {
		if got := price.Of(c.usage).CostMicros; got != c.want {
			t.Errorf("%+v costs %d, want %d", c.usage, got, c.want)
		}
		if got := (*protocol.Price)(nil).Of(c.usage); got != c.usage {
			t.Errorf("without a price %+v became %+v", c.usage, got)
		}
	}
}
