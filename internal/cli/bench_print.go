package cli

import (
	"fmt"

	"github.com/agenthandoff/handoff/internal/bench"
)

// latencyNames are how latencies are called for people.
var latencyNames = map[string]string{
	bench.Submit: "submit", bench.SubmitToClaim: "submit to claim", bench.SubmitToComplete: "submit to complete",
	bench.Status: "status", bench.StatusStored: "status, stored before", bench.DeferredClaim: "deferred, to claim",
	bench.DeferredComplete: "deferred, to complete", bench.Lateness: "the schedule itself",
}

func (a *app) benchText(r bench.Report) error {
	a.printf("%.0f handoffs/s  (%d in %.1f s, %d of them deferred once)\n\n", r.PerSecond, r.Handoffs, r.Seconds, r.Deferred)
	rows := [][]string{{"MICROSECONDS", "P50", "P90", "P99", "MAX", "COUNT"}}
	for _, name := range bench.Latencies {
		if l, ok := r.Latency[name]; ok {
			rows = append(rows, []string{latencyNames[name], micros(l.P50), micros(l.P90), micros(l.P99), micros(l.Max), fmt.Sprint(l.Count)})
		}
	}
	if err := a.table(rows); err != nil {
		return err
	}
	e := r.Engine
	a.printf("\n")
	err := a.fields(
		"each handoff", fmt.Sprintf("%.1f µs of processor time, %.0f allocations of %.1f KiB", r.CPUPerHandoff, r.AllocsPerHandoff, r.AllocBytes/1024),
		"stored", fmt.Sprintf("%.2f messages: %.2f appends of %.0f bytes together, %.2f offers of %.0f, %.2f of timers", e.Messages, e.Appends, e.LedgerBytes, e.Offers, e.OfferBytes, e.Timers),
		"delivered", fmt.Sprintf("%.2f offers, %.2f entries of the ledger, %.2f wake-ups", e.OffersDelivered, e.EntriesDelivered, e.WakeUpsDelivered),
		"memory", fmt.Sprintf("%d MiB at most, %d MiB of heap at the end", r.Memory.PeakBytes>>20, r.Memory.HeapBytes>>20),
		"proved", fmt.Sprintf("%d submitted, %d closed once and with success", r.Proof.Submitted, r.Proof.Closed),
	)
	if err != nil || r.Baseline == nil {
		return err
	}
	a.printf("\n%.1f %% of the bare engine's %.0f/s", 100*r.Ratio, r.Baseline.Bare.PerSecond)
	if r.Baseline.Followed != nil {
		a.printf(" (%.1f %% of the %.0f/s it does with a follower)", 100*r.RatioFollowed, r.Baseline.Followed.PerSecond)
	}
	a.printf("\n")
	return nil
}

func micros(us float64) string {
	if us < 1000 {
		return fmt.Sprintf("%.1f", us)
	}
	return fmt.Sprintf("%.0f", us)
}
