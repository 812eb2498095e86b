package testworld

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/audit"
	"github.com/agenthandoff/handoff/protocol"
)

// settleTimeout is how long all handoffs may take to close after the last fault.
const settleTimeout = 5 * time.Minute

// Fault is a fault that was injected, and when.
type Fault struct {
	Name     string
	From, To time.Time
	// Untimed says that the engine's clock was wrong meanwhile, so that the time stamps of
	// the ledger give no durations.
	Untimed bool
}

// Judge decides whether a fleet has survived its faults.
type Judge struct {
	Broker *broker.Broker
	Acks   *Acks
	Faults []Fault
	// Between is the pause after each fault.
	Between time.Duration
	// Indexed counts the closed handoffs of an index.
	Indexed func(context.Context) (int64, error)
}

// Judge waits up to five minutes until all handoffs have closed, and prints a report. It fails
// the test for an acknowledged handoff that is missing or open, a ledger that does not verify, an
// index that differs from the ledger, and queues that are not empty.
func (j *Judge) Judge(ctx context.Context, t testing.TB) map[string]protocol.State {
	t.Helper()
	last := time.Now()
	heads, open := map[string]protocol.State{}, []string{"?"}
	for len(open) > 0 && time.Since(last) < settleTimeout && ctx.Err() == nil {
		Pause(ctx, 500*time.Millisecond)
		var err error
		if heads, open, err = j.read(ctx); err != nil {
			t.Logf("heads: %v", err)
			open = []string{"?"}
		}
	}
	settled := time.Since(last)
	for _, what := range open[:min(len(open), 10)] {
		t.Errorf("%v after the last fault: %s", settled.Round(time.Second), what)
	}
	j.Acks.mu.Lock()
	defer j.Acks.mu.Unlock()
	for _, ticket := range j.Acks.tickets {
		if heads[ticket].Ticket == "" {
			t.Errorf("%s was acknowledged, and is lost", ticket)
		}
	}
	for _, what := range j.Acks.failed {
		t.Errorf("a submission %s", what)
	}
	report, err := audit.VerifyLedger(ctx, j.Broker, nil, audit.CheckWriters)
	if err != nil || report.Found > 0 {
		t.Errorf("the ledger does not verify: %v, %+v", err, report)
	}
	if n, err := j.Indexed(ctx); err != nil || n != int64(len(heads)) {
		t.Errorf("the index has %d that are closed, the ledger %d: %v", n, len(heads), err)
	}
	j.awaitEmptyQueues(ctx, t)
	j.report(ctx, t, heads, settled)
	return heads
}

// read returns the head of every handoff, and descriptions of the open ones.
func (j *Judge) read(ctx context.Context) (heads map[string]protocol.State, open []string, err error) {
	heads = map[string]protocol.State{}
	err = j.Broker.Heads(ctx, func(e broker.Entry) error {
		head, err := broker.HeadOf(e)
		heads[e.Ticket] = head.State
		return err
	})
	for ticket, s := range heads {
		if !s.Closed {
			open = append(open, fmt.Sprintf("%s: %s with %s, attempt %d", ticket, s.Phase, s.Agent, s.Attempt))
		}
		if s.Children != nil {
			for _, n := range s.Children.Made.Numbers() {
				if child := s.ChildTicket(n); heads[child].Ticket == "" {
					open = append(open, fmt.Sprintf("%s: its child %d, %s, was never submitted", ticket, n, child))
				}
			}
		}
	}
	return heads, open, err
}

// awaitEmptyQueues waits until workers have dropped the offers of closed handoffs.
func (j *Judge) awaitEmptyQueues(ctx context.Context, t testing.TB) {
	for try := 0; ; try++ {
		all, err := j.Broker.Queues(ctx)
		if err == nil && len(all) == 0 {
			return
		}
		if try == 120 {
			t.Errorf("a minute after all has closed the queues have %+v, %v", all, err)
			return
		}
		Pause(ctx, 500*time.Millisecond)
	}
}

// report prints a table of the faults with their effects.
func (j *Judge) report(ctx context.Context, t testing.TB, heads map[string]protocol.State, settled time.Duration) {
	outcomes, attempts, lost := map[protocol.Outcome]int{}, 0, 0
	for _, s := range heads {
		outcomes[s.Outcome]++
		attempts += s.AttemptsTotal
		lost += s.LeasesLost
	}
	var entries, closings []time.Time
	err := j.Broker.Entries(ctx, nil, func(e broker.Entry) error {
		entries = append(entries, e.At)
		head, err := broker.HeadOf(e)
		if err == nil && head.State.Closed {
			closings = append(closings, e.At)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	t.Logf("%d submissions acknowledged, the longest after %v; %d handoffs, %d attempts, %d leases lost: %v; all closed %v after the last fault",
		len(j.Acks.tickets), j.Acks.longest, len(heads), attempts, lost, outcomes, settled.Round(100*time.Millisecond))
	slices.SortFunc(entries, time.Time.Compare)
	slices.SortFunc(closings, time.Time.Compare)
	writes, ends, times, untimed := map[string]time.Duration{}, map[string]time.Duration{}, map[string]int{}, map[string]bool{}
	for i, h := range j.Faults {
		until := h.To.Add(j.Between)
		if i+1 < len(j.Faults) {
			until = j.Faults[i+1].From
		}
		times[h.Name]++
		untimed[h.Name] = h.Untimed
		writes[h.Name] = max(writes[h.Name], longestGap(entries, h.From, until))
		ends[h.Name] = max(ends[h.Name], longestGap(closings, h.From, until))
	}
	t.Logf("| fault | times | longest without a write | longest without a handoff that closed |")
	for _, name := range slices.Sorted(maps.Keys(times)) {
		if untimed[name] {
			t.Logf("| %s | %d | not known | not known |", name, times[name])
			continue
		}
		t.Logf("| %s | %d | %.1f s | %.1f s |", name, times[name], writes[name].Seconds(), ends[name].Seconds())
	}
}

// longestGap is the longest time without an event within a span.
func longestGap(at []time.Time, from, until time.Time) time.Duration {
	longest, last := time.Duration(0), from
	for _, t := range at {
		if t.Before(from) || t.After(until) {
			continue
		}
		longest, last = max(longest, t.Sub(last)), t
	}
	return max(longest, until.Sub(last))
}
