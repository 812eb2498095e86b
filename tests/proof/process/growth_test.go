//go:build proof

package process

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// growthDelay is how long after `handoff topology ensure` added partitions are used.
const growthDelay = 150 * time.Second

// TestGrowth: a ledger of one partition gets three more while handoffs are open, are submitted, fail and
// are refused. Supervisors and sources are processes that learn of it by themselves. All handoffs close with
// the events that they should have, none begins twice, and the later ones are in all partitions.
func TestGrowth(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	url := supervisedNode(t, 1)
	b, twin := dial(t, url), dial(t, url)
	serveNeeds(t, b)
	newSupervisors(t, ctx, url)
	var acked sync.Map // ticket to need
	submit := func(number int, span time.Duration) {
		loading, stop := context.WithTimeout(ctx, span)
		defer stop()
		var sources sync.WaitGroup
		for i := range 2 { // each pair submits the same handoffs
			for _, source := range []*broker.Broker{b, twin} {
				sources.Go(func() { submitNeeds(t, ctx, loading.Done(), source, number+i, &acked) })
			}
		}
		sources.Wait()
	}
	submit(0, 3*time.Second)
	open := protocol.Package{Source: "lead", Target: protocol.Target{Agent: "later"}, Reason: "r", Task: protocol.Task{Description: "waits for its worker"},
		Policy: protocol.PolicyOverrides{OnNoTaker: pointer(protocol.NoTakerQueue)}}
	putAgent(t, b, protocol.Profile{ID: "later"})
	var waits []string
	for range 20 {
		prepared, err := b.Prepare(ctx, open)
		if err == nil {
			_, err = b.Submit(ctx, prepared)
		}
		if err != nil {
			t.Fatal(err)
		}
		waits = append(waits, prepared.Ticket)
		acked.Store(prepared.Ticket, need{name: "waits", events: map[protocol.EventType]int{protocol.EventOffered: 1, protocol.EventAccepted: 1}})
	}
	runHandoff(t, ctx, url, "topology", "ensure", "--partitions", "4")
	grown := time.Now().Add(growthDelay)
	submit(100, 3*time.Second)
	select {
	case <-time.After(time.Until(grown.Add(-3 * time.Second))):
	case <-ctx.Done():
	}
	submit(200, 8*time.Second) // before the generation begins, and after
	before := time.Now()
	submit(300, 2*time.Second)
	startHandoff(t, "worker", []string{"NATS_URL=" + url}, "work", "--agent", "later", "--concurrency", "8", "--", "true").AwaitOutput(ctx, "worker ready")
	total := awaitNeeds(t, ctx, b, &acked)
	checkNeeds(t, ctx, b, &acked)
	begun := map[int]int{}
	err := b.Entries(ctx, broker.From(1), func(e broker.Entry) error {
		if e.At.After(before) {
			begun[broker.PartitionOf(e.Seq)]++
		}
		return nil
	})
	if err != nil || len(begun) != 4 {
		t.Errorf("the last handoffs are in the partitions %v (%v)", begun, err)
	}
	t.Logf("%d handoffs closed, %d of them open while the ledger grew; entries of the last by partition: %v", total, len(waits), begun)
}

// runHandoff runs a command to its end.
func runHandoff(t *testing.T, ctx context.Context, url string, args ...string) {
	t.Helper()
	p := startHandoff(t, fmt.Sprint(args), []string{"NATS_URL=" + url}, args...)
	select {
	case <-p.Ended():
	case <-ctx.Done():
	}
	if code := p.ExitCode(); code != 0 {
		t.Fatalf("%v ended with %d", args, code)
	}
}
