package jetstream

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// sweptOf is what a sweep of lanes with so many offers each takes, and how
// many questions it asks.
func sweptOf(taken int64, most int, stock [4]int) (got [4]int, asked int) {
	var plan lanePlan
	plan.reset(taken, most)
	for {
		lane, n := plan.next()
		if n == 0 {
			return got, asked
		}
		asked++
		brought := min(n, stock[lane]-got[lane])
		for range brought {
			plan.received(lane)
		}
		got[lane] += brought
		plan.empty[lane] = brought < n
	}
}

// oneByOne is what the rule takes.
func oneByOne(taken int64, most int, stock [4]int) (got [4]int) {
	for range most {
		at := slices.IndexFunc(broker.LaneOrder(taken), func(lane protocol.Priority) bool { i := laneIndex(lane); return got[i] < stock[i] })
		if at < 0 {
			break
		}
		got[laneIndex(broker.LaneOrder(taken)[at])]++
		taken++
	}
	return got
}

func TestLanePlanTakesWhatTheRuleTakes(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	for range 20_000 {
		var stock [4]int
		for i := range stock {
			stock[i] = random.IntN(4) * random.IntN(12)
		}
		taken, most := random.Int64N(3*broker.TurnRound), 1+random.IntN(40)
		if got, _ := sweptOf(taken, most, stock); got != oneByOne(taken, most, stock) {
			t.Fatalf("seed %d: %d offers after %d from %v: %v, want %v", seed, most, taken, stock, got, oneByOne(taken, most, stock))
		}
	}
}

// Where one lane alone has something a sweep asks no more than it did when
// there were no turns, but for the lanes that a turn has to ask about.
func TestLanePlanAsksLittle(t *testing.T) {
	for _, test := range []struct {
		taken int64
		most  int
		lane  int
		asked int
	}{
		{0, 1, 0, 1}, {0, 1, 2, 3}, {0, 7, 0, 1}, {0, 16, 2, 3},
		{7, 1, 1, 1}, {7, 1, 0, 4}, // its turn; nobody has one
		{0, 8, 0, 5},  // critical, the turn goes by high, normal and low, and back to it
		{16, 8, 2, 5}, // normal without its last, low, and back to it
	} {
		var stock [4]int
		stock[test.lane] = 1000
		if got, asked := sweptOf(test.taken, test.most, stock); asked != test.asked || got[test.lane] != test.most {
			t.Errorf("%d after %d from %s: asks %d times for %v, want %d times", test.most, test.taken, protocol.Priorities[test.lane], asked, got, test.asked)
		}
	}
}

// What comes unasked takes a place as well: no more is asked for than there is
// room.
func TestLanePlanUnasked(t *testing.T) {
	var plan lanePlan
	plan.reset(0, 3)
	plan.received(3)
	if lane, n := plan.next(); lane != 0 || n != 2 {
		t.Errorf("asks lane %d for %d, want 2 critical ones", lane, n)
	}
	for range 3 {
		plan.received(2) // one more than there is room for
	}
	if _, n := plan.next(); n != 0 {
		t.Errorf("asks for %d more", n)
	}
}
