package cli

import (
	"context"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

const (
	// rateWindow is the time that rates are of: the last minute.
	rateWindow = time.Minute
	// ratesBack is how many entries top reads at most of what was before it
	// began: a second of work or two.
	ratesBack = 50_000
)

// rates are handoffs a minute.
type rates struct {
	Accepted  float64 `json:"accepted_per_minute"`
	Completed float64 `json:"completed_per_minute"`
	Failed    float64 `json:"failed_per_minute"` // attempts that failed, refusals, time-outs, workers that went
}

// topRates counts what happens by second and agent, for as long as rateWindow.
type topRates struct {
	mu      sync.Mutex
	since   time.Time                  // the ledger has been read from then on; zero: from the first entry on
	ahead   uint64                     // entry up to which the past is being read
	caught  chan struct{}              // closed when that is done
	bySec   map[int64]map[string]tally // Unix seconds
	noticed []string                   // tickets that got stuck meanwhile, or are deep in their lineages
}

// newTopRates counts from an instant on, and has caught up with entry past; 0 is
// none that is worth waiting for.
func newTopRates(since time.Time, past uint64) *topRates {
	r := &topRates{since: since, ahead: past, caught: make(chan struct{}), bySec: map[int64]map[string]tally{}}
	if past == 0 {
		close(r.caught)
	}
	return r
}

// catchUpWithin is how long the first picture waits for what was before it.
const catchUpWithin = 3 * time.Second

// caughtUp waits until the past has been read, a moment at most: an entry of
// before may have been the last one in a long time.
func (r *topRates) caughtUp(ctx context.Context) error {
	patient := time.NewTimer(catchUpWithin)
	defer patient.Stop()
	select {
	case <-r.caught:
	case <-patient.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// take counts one entry of the ledger.
func (r *topRates) take(e broker.Entry) error {
	change, err := broker.DecodeChange(e)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.since.IsZero() {
		r.since = e.At
	}
	if e.Seq >= r.ahead && r.ahead > 0 {
		r.ahead = 0
		close(r.caught)
	}
	if err != nil {
		return nil // doctor tells of those
	}
	second := e.At.Unix()
	if lifecycle.Deep(change.Record.State.Summary) {
		r.notice(e.Ticket)
	}
	for _, event := range change.Record.Events {
		agent, t := tallyOf(event, change.Record.State)
		if t == (tally{}) {
			if event.EventType() == protocol.EventStuck {
				r.notice(e.Ticket)
			}
			continue
		}
		if r.bySec[second] == nil {
			r.bySec[second] = map[string]tally{}
			r.forget(second)
		}
		sum := r.bySec[second][agent]
		sum.add(t)
		r.bySec[second][agent] = sum
	}
	return nil
}

// forget drops what is older than the window by the ledger's own time.
func (r *topRates) forget(second int64) {
	for old := range r.bySec {
		if old < second-2*int64(rateWindow/time.Second) {
			delete(r.bySec, old)
		}
	}
}

// now are the rates of the window, or since the ledger is read: of all, and by agent.
func (r *topRates) now(now time.Time) (all rates, by map[string]rates) {
	r.mu.Lock()
	defer r.mu.Unlock()
	begin := now.Add(-rateWindow)
	if r.since.After(begin) {
		begin = r.since
	}
	minutes := max(now.Sub(begin), time.Second).Minutes()
	var total tally
	sums := map[string]tally{}
	for second, agents := range r.bySec {
		if second < begin.Unix() {
			continue
		}
		for agent, t := range agents {
			sum := sums[agent]
			sum.add(t)
			sums[agent] = sum
			total.add(t)
		}
	}
	by = make(map[string]rates, len(sums))
	for agent, sum := range sums {
		by[agent] = sum.rates(minutes)
	}
	return total.rates(minutes), by
}

func (t tally) rates(minutes float64) rates {
	return rates{float64(t.accepted) / minutes, float64(t.completed) / minutes, float64(t.failed) / minutes}
}
