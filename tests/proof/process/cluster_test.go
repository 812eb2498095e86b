//go:build proof

package process

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// TestThreeNodes checks that, on three replicas, status by ticket is never stale, whichever node
// answers.
func TestThreeNodes(t *testing.T) {
	rounds := 3000
	switch {
	case testing.Short():
		rounds = 300
	case testworld.Race: // ten times as slow, and no likelier to find anything here
		rounds = 1000
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cluster, err := embedded.StartCluster(ctx, 3, t.TempDir(), embedded.FsyncInterval)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Error(err)
		}
	})
	nc, err := cluster.Nodes[0].Conn()
	if err != nil {
		t.Fatal(err)
	}
	ensureTopology(t, nc, jetstream.Topology{Replicas: 3})
	nc.Close()
	var brokers []*broker.Broker
	for _, node := range cluster.Nodes {
		b, hangUp := nodeBroker(t, node, broker.Config{})
		t.Cleanup(hangUp)
		brokers = append(brokers, b)
	}
	t.Run("status after submit", func(t *testing.T) { statusAfterSubmit(t, ctx, brokers, rounds) })
	t.Run("wait racing with completion", func(t *testing.T) { waitRacingCompletion(t, ctx, cluster.Nodes[2], brokers, rounds) })
}

// inParallel runs rounds on a few goroutines and returns how long each took.
func inParallel(rounds int, round func(i int) error) ([]time.Duration, error) {
	took := make([]time.Duration, rounds)
	var next atomic.Int64
	var mu sync.Mutex
	var failed []error
	var group sync.WaitGroup
	for range 24 {
		group.Go(func() {
			for {
				i := int(next.Add(1) - 1)
				if i >= rounds {
					return
				}
				begun := time.Now()
				if err := round(i); err != nil {
					mu.Lock()
					failed = append(failed, fmt.Errorf("round %d: %w", i, err))
					mu.Unlock()
				}
				took[i] = time.Since(begun)
			}
		})
	}
	group.Wait()
	slices.Sort(took)
	return took, errors.Join(failed...)
}

func quantiles(sorted []time.Duration) string {
	at := func(q float64) time.Duration {
		return sorted[int(q*float64(len(sorted)-1))].Round(10 * time.Microsecond)
	}
	return fmt.Sprintf("p50 %v, p99 %v, longest %v", at(0.5), at(0.99), at(1))
}

// statusAfterSubmit asks another node about each handoff right after its submission.
func statusAfterSubmit(t *testing.T, ctx context.Context, brokers []*broker.Broker, rounds int) {
	putAgent(t, brokers[0], protocol.Profile{ID: "nobody"})
	var asked []time.Duration
	var mu sync.Mutex
	took, err := inParallel(rounds, func(i int) error {
		source, other := brokers[i%3], brokers[(i+1+i/3%2)%3]
		prepared, err := source.Prepare(ctx, protocol.Package{Source: "lead", Target: protocol.Target{Agent: "nobody"},
			Reason: "a test", Task: protocol.Task{Description: "none"}})
		if err != nil {
			return err
		}
		head, err := source.Submit(ctx, prepared)
		if err != nil {
			return err
		}
		begun := time.Now()
		state, err := other.Status(ctx, head.Ticket)
		if err != nil {
			return fmt.Errorf("status of a ticket just submitted: %w", err)
		}
		mu.Lock()
		asked = append(asked, time.Since(begun))
		mu.Unlock()
		if state.Phase != protocol.Pending || state.Offer != head.Seq {
			return fmt.Errorf("%s is %s with offer %d, want pending with %d", head.Ticket, state.Phase, state.Offer, head.Seq)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	slices.Sort(asked)
	t.Logf("%d rounds: status %s; submit and status %s", rounds, quantiles(asked), quantiles(took))
}

// waitRacingCompletion begins to wait, at a third node, for handoffs that
// complete at that moment.
func waitRacingCompletion(t *testing.T, ctx context.Context, node *embedded.Node, brokers []*broker.Broker, rounds int) {
	gates := &ticketGates{}
	handle := func(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
		select {
		case <-gates.of(h.Ticket):
			return done(), nil
		case <-ctx.Done():
			return protocol.Result{}, context.Cause(ctx)
		}
	}
	putAgent(t, brokers[0], protocol.Profile{ID: "racer"})
	defer begin(t, newSupervisor(t, node, broker.Config{}))()
	defer begin(t, newWorker(t, brokers[1], worker.Config{Agent: "racer", Concurrency: 24}, handle))()
	var waited []time.Duration
	var mu sync.Mutex
	took, err := inParallel(rounds, func(i int) error {
		source, other := brokers[i%3], brokers[(i+1+i/3%2)%3]
		prepared, err := source.Prepare(ctx, protocol.Package{Source: "lead", Target: protocol.Target{Agent: "racer"},
			Reason: "a test", Task: protocol.Task{Description: "race"}})
		if err != nil {
			return err
		}
		if _, err := source.Submit(ctx, prepared); err != nil {
			return err
		}
		if i%2 == 0 { // else it is completed while the wait begins
			if _, err := brokertest.Wait(ctx, other, prepared.Ticket, broker.Acknowledged); err != nil {
				return fmt.Errorf("wait for the acknowledgement: %w", err)
			}
		}
		gates.open(prepared.Ticket)
		begun := time.Now()
		state, err := brokertest.Wait(ctx, other, prepared.Ticket, brokertest.Closed)
		if err != nil {
			return fmt.Errorf("missed the close of %s, last seen %s: %w", prepared.Ticket, state.Phase, err)
		}
		mu.Lock()
		waited = append(waited, time.Since(begun))
		mu.Unlock()
		if state.Outcome != protocol.OutcomeSuccess || state.AttemptsTotal != 1 {
			return fmt.Errorf("%s closed as %s after %d attempts", prepared.Ticket, state.Outcome, state.AttemptsTotal)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	slices.Sort(waited)
	t.Logf("%d rounds: wait %s; submit to closed %s", rounds, quantiles(waited), quantiles(took))
}

// ticketGates are what the workers wait at, one for each ticket.
type ticketGates struct{ byTicket sync.Map }

func (g *ticketGates) of(ticket string) chan struct{} {
	gate, _ := g.byTicket.LoadOrStore(ticket, make(chan struct{}))
	return gate.(chan struct{})
}

func (g *ticketGates) open(ticket string) { close(g.of(ticket)) }
