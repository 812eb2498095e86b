//go:build proof

package process

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// TestShellScriptLatency measures a two-line shell script as a worker, with
// every write of the ledger synced, by the ledger's own times.
func TestShellScriptLatency(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	dev := startDev(t, ctx)
	dev.work(ctx, "worker", script(t, "echo done"), "--agent", "echo")
	b := dial(t, dev.url)
	var took, toClaim []time.Duration
	for range 100 {
		ticket := submit(t, b, "echo", nil)
		closed(t, ctx, b, ticket)
		changes, err := b.History(ctx, ticket)
		if err != nil {
			t.Fatal(err)
		}
		took = append(took, since(t, changes, protocol.EventCompleted))
		toClaim = append(toClaim, since(t, changes, protocol.EventAccepted))
	}
	slices.Sort(took)
	slices.Sort(toClaim)
	t.Logf("submitted to complete, by the ledger, fsync always: %s; of that to the claim: %s", quantiles(took), quantiles(toClaim))
}

// since is the time from the submission to an event, as the engine stored both.
func since(t *testing.T, changes []protocol.Change, want protocol.EventType) time.Duration {
	t.Helper()
	for _, c := range changes {
		for _, e := range c.Record.Events {
			if e.EventType() == want {
				return c.At.Sub(changes[0].At)
			}
		}
	}
	t.Fatalf("%s has no %s", changes[0].Record.State.Ticket, want)
	return 0
}

// eventsOf counts the facts of a handoff.
func eventsOf(t *testing.T, ctx context.Context, b *broker.Broker, ticket string) map[protocol.EventType]int {
	t.Helper()
	changes, err := b.History(ctx, ticket)
	if err != nil {
		t.Fatal(err)
	}
	counts := map[protocol.EventType]int{}
	for _, c := range changes {
		for _, e := range c.Record.Events {
			counts[e.EventType()]++
		}
	}
	return counts
}
