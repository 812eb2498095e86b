//go:build proof

package bench

import (
	"cmp"
	"context"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/jetstream"
)

// Of status by ticket among a million handoffs, the issue asks for
const (
	statusP50      = 100 * time.Microsecond
	statusHourP99  = time.Millisecond
	statusAllP99   = 10 * time.Millisecond
	statusSamples  = 6_000
	statusAskers   = 16
	flowsPerSecond = 200
)

// TestStatusMillion asks for the status of tickets, as handoff status does: over
// TCP from a process beside the engine's, and within it; with nothing else going
// on, and while handoffs flow; one question after another, and at a steady rate.
// There latencies count from when each question was due, so that one that waits
// for another counts its wait, and an idle machine that has to wake up does too:
// what was asked for is held against the first.
func TestStatusMillion(t *testing.T) {
	n := handoffs(t)
	dir := stored(t, "closed", n, func(url string) { writeLedger(t, url, n) })
	for name, flowing := range map[string]bool{"over TCP": false, "over TCP while handoffs flow": true} {
		t.Run(name, func(t *testing.T) { statusOverTCP(t, dir, flowing) })
	}
	t.Run("in the process", func(t *testing.T) {
		node, err := openEngine(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = node.Stop() })
		nc, err := node.Conn()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		asker, err := jetstream.Open(t.Context(), nc, jetstream.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = asker.Close() })
		b := brokertest.Over(t, asker)
		askAll(t, b, tickets(t, asker), nil)
	})
}

func statusOverTCP(t *testing.T, dir string, flowing bool) {
	url, engine := startEngine(t, dir)
	asker, b, err := dial(t.Context(), url, "asker")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = asker.Close() })
	all := tickets(t, asker)
	engine.reportMemory("after a start and a pass over the heads")
	if flowing {
		start(t, "flow", url, strconv.Itoa(flowsPerSecond)).line()
	}
	askAll(t, b, all, engine)
}

// askAll asks for those of the last hour, and for all.
func askAll(t *testing.T, b *broker.Broker, all []known, engine *process) {
	t.Helper()
	newest := slices.MaxFunc(all, func(a, b known) int { return a.at.Compare(b.at) })
	var lastHour []known
	for _, k := range all {
		if newest.at.Sub(k.at) <= time.Hour {
			lastHour = append(lastHour, k)
		}
	}
	for _, rate := range statusRates(t) {
		askStatus(t, b, "the last hour's", lastHour, rate, statusHourP99)
		if engine != nil {
			engine.reportMemory("after these")
		}
		askStatus(t, b, "all at random", all, rate, statusAllP99)
		if engine != nil {
			engine.reportMemory("after these")
		}
	}
}

// noRate asks each question when the last answer has come.
const noRate = 0

// statusRates are how many questions a second are asked: one by one and 500, or
// what HANDOFF_BENCH_RATE says in place of that.
func statusRates(t *testing.T) []int {
	t.Helper()
	rate, err := strconv.Atoi(cmp.Or(os.Getenv("HANDOFF_BENCH_RATE"), "500"))
	if err != nil {
		t.Fatal(err)
	}
	return []int{noRate, rate}
}

// askStatus asks for tickets one by one, or at a rate that does not wait for answers.
func askStatus(t *testing.T, b *broker.Broker, whose string, of []known, rate int, wanted time.Duration) {
	t.Helper()
	if len(of) == 0 {
		t.Fatalf("there are none of %s", whose)
	}
	took := make([]time.Duration, statusSamples)
	rng := rand.New(rand.NewPCG(11, uint64(rate)))
	order := make([]string, statusSamples)
	for i := range order {
		order[i] = of[rng.IntN(len(of))].ticket
	}
	began := time.Now()
	next := make(chan int)
	var askers sync.WaitGroup
	many, pace := statusAskers, "at "+strconv.Itoa(rate)+"/s"
	if rate == noRate {
		many, pace = 1, "one by one"
	}
	for range many {
		askers.Go(func() {
			for i := range next {
				due := time.Now()
				if rate != noRate {
					due = began.Add(time.Duration(i) * time.Second / time.Duration(rate))
				}
				if early := time.Until(due); early > 0 {
					time.Sleep(early)
					due = time.Now() // an alarm that is late is not the engine's doing
				}
				if _, err := b.Status(context.Background(), order[i]); err != nil {
					t.Errorf("status of %s: %v", order[i], err)
				}
				took[i] = time.Since(due)
			}
		})
	}
	for i := range order {
		next <- i
	}
	close(next)
	askers.Wait()
	slices.Sort(took)
	at := func(perMille int) time.Duration {
		return took[min(len(took)*perMille/1000, len(took)-1)].Round(time.Microsecond)
	}
	t.Logf("%-16s of %7d, %-10s: p50 %8v  p90 %8v  p99 %8v  p99.9 %8v  longest %8v (wanted: p50 up to %v, p99 up to %v)",
		whose, len(of), pace, at(500), at(900), at(990), at(999), at(1000), statusP50, wanted)
	if rate == noRate && (at(500) > statusP50 || at(990) > wanted) {
		t.Errorf("%s: p50 %v and p99 %v, wanted up to %v and %v", whose, at(500), at(990), statusP50, wanted)
	}
}
