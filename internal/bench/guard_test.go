package bench_test

import (
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/bench"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/testworld"
)

// What one handoff may cost, as counts that do not depend on the machine. A change that makes it
// cheaper lowers them; a commit that raises them says why. A handoff here is a generated package
// of 1,024 bytes, accepted and started in one append and completed in the next, while a
// supervisor runs.
const (
	// Exact.
	guardAppends         = 3 // submitted and offered; accepted and started; completed and closed
	guardOffers          = 1
	guardOffersDelivered = 1

	// Bounds, a few per cent over the measured figures. Those of allocations have 15 %,
	// because on a slow machine periodic work weighs more per handoff.
	guardLedgerBytes = 5_950 // of the three appends as stored
	guardFirstBytes  = 2_700 // of the first of them, which has the package
	guardOfferBytes  = 2_080
	guardAllocs      = 290 // of sources, workers, supervisor and the engine itself
	guardAllocBytes  = 74_000

	// Of all clients together. Pulls and acknowledgements are shared the more, the busier the
	// workers are. Two of the messages in are hints, of a few bytes and without an answer.
	guardInMessages  = 8
	guardOutMessages = 5.8
	guardInBytes     = 7_650
	guardOutBytes    = 2_200
)

// TestGuard runs two thousand handoffs and compares the cost of each with the bounds.
func TestGuard(t *testing.T) {
	report, err := bench.Run(t.Context(), bench.Config{
		Dir: t.TempDir(), Fsync: embedded.FsyncInterval, N: 2_000, Warmup: -1, Deferred: -1, Probes: -1,
		// Few at a time: a handoff that waits for a second has a timer armed.
		Submitters: 4, Slots: 8, Open: 16, Drain: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	e := report.Engine
	// The handoff that measures the message sizes is submitted before the window and
	// completes in it: one of two thousand.
	const almost = 0.002
	exact := func(what string, is, want float64) {
		t.Helper()
		if is < want-almost || is > want+almost {
			t.Errorf("%s: %.4f a handoff, want %v", what, is, want)
		}
	}
	atMost := func(what string, is, most float64) {
		t.Helper()
		t.Logf("%s: %.4g a handoff, at most %.4g", what, is, most) // far below: lower it
		if is > most {
			t.Errorf("%s: %.4g a handoff, and may be %.4g", what, is, most)
		}
	}
	if report.Proof.Closed < 2_000 {
		t.Errorf("%d handoffs closed", report.Proof.Closed)
	}
	exact("ledger appends", e.Appends, guardAppends)
	exact("offers", e.Offers, guardOffers)
	exact("offers delivered", e.OffersDelivered, guardOffersDelivered)
	if report.Latency[bench.SubmitToComplete].Max < 900_000 { // after a second a supervisor arms a timer for an open handoff
		exact("timer messages", e.Timers, 0)
	}
	exact("ledger entries delivered", e.EntriesDelivered, 0)
	atMost("messages in", e.InMessages, guardInMessages)
	atMost("messages out", e.OutMessages, guardOutMessages)
	atMost("bytes in", e.InBytes, guardInBytes)
	atMost("bytes out", e.OutBytes, guardOutBytes)
	atMost("bytes of the ledger", e.LedgerBytes, guardLedgerBytes)
	atMost("bytes of the first append", e.FirstBytes, guardFirstBytes)
	atMost("bytes of the offer", e.OfferBytes, guardOfferBytes)
	if testworld.Race {
		t.Log("allocations not checked: the race detector adds its own")
		return
	}
	atMost("allocations", report.AllocsPerHandoff, guardAllocs)
	atMost("bytes allocated", report.AllocBytes, guardAllocBytes)
}
