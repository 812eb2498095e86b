//go:build proof

package process

import (
	"context"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// TestNoSupervisor: with an engine and workers alone handoffs to a named agent
// complete. A supervisor that is started later picks up what is due by then.
func TestNoSupervisor(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	node := startNode(t, t.TempDir(), embedded.FsyncInterval)
	t.Cleanup(func() {
		if err := node.Stop(); err != nil {
			t.Error(err)
		}
	})
	engine, hangUp := nodeEngine(t, node)
	t.Cleanup(hangUp)
	b := brokerOver(t, engine, broker.Config{})
	handle := func(_ context.Context, h worker.Handoff) (protocol.Result, error) {
		if h.Package.Task.Description == "fail once" && h.Attempt == 1 {
			return protocol.Result{}, worker.RetryAfter(context.DeadlineExceeded, time.Millisecond)
		}
		return done(), nil
	}
	for _, agent := range []string{"coder", "absent"} {
		putAgent(t, b, protocol.Profile{ID: agent})
	}
	stopWorker := begin(t, newWorker(t, b, worker.Config{Agent: "coder", Concurrency: 4}, handle))
	defer stopWorker()
	for range 100 {
		closed(t, ctx, b, submit(t, b, "coder", nil))
	}
	stopWorker()
	lost := submitWithoutOffer(t, ctx, b, engine, "coder")
	defer begin(t, newWorker(t, b, worker.Config{Agent: "coder", Concurrency: 4}, handle))()

	retries := submit(t, b, "coder", func(p *protocol.Package) {
		p.Task.Description = "fail once"
		p.Policy.BackoffBaseMS = pointer(int64(1))
	})
	overdue := submit(t, b, "absent", func(p *protocol.Package) {
		p.Constraints.Deadline, p.Policy.OnDeadline = time.Now().UTC().Add(200*time.Millisecond), pointer(protocol.DeadlineClose)
	})
	unheard := submit(t, b, "absent", func(p *protocol.Package) { p.Policy.AckTimeoutMS = pointer(int64(100)) })
	failed, err := brokertest.Wait(ctx, b, retries, func(s protocol.State) bool { return s.Phase == protocol.PhaseFailed })
	if err != nil || failed.Attempt != 1 {
		t.Fatalf("without a supervisor it is %s after attempt %d, %v", failed.Phase, failed.Attempt, err)
	}
	waitUntil(t, ctx, failed.UpdatedAt.Add(300*time.Millisecond)) // and nothing came of the deadline

	for _, ticket := range []string{overdue, unheard, lost} {
		if state, err := b.Status(ctx, ticket); err != nil || state.Phase != protocol.Pending {
			t.Errorf("without a supervisor %s is %s, %v", ticket, state.Phase, err)
		}
	}
	defer begin(t, newSupervisor(t, node, broker.Config{}))()
	closed(t, ctx, b, lost)
	if state := closed(t, ctx, b, retries); state.Attempt != 2 {
		t.Errorf("the retry completed as attempt %d, want 2", state.Attempt)
	}
	if state, err := brokertest.Wait(ctx, b, overdue, brokertest.Closed); err != nil || state.Outcome != protocol.OutcomeTimeout {
		t.Errorf("past its deadline it is %s, %v", state.Outcome, err)
	}
	if state, err := brokertest.Wait(ctx, b, unheard, func(s protocol.State) bool { return s.Agent == protocol.Human }); err != nil || state.EscalationLevel != 1 {
		t.Errorf("unheard it is with %s at level %d, %v", state.Agent, state.EscalationLevel, err)
	}
}

// submitWithoutOffer makes a handoff whose source died before it put the offer
// into the queue. No worker may be there to see it.
func submitWithoutOffer(t *testing.T, ctx context.Context, b *broker.Broker, queue broker.Queue, agent string) string {
	t.Helper()
	ticket := submit(t, b, agent, nil)
	offers, err := queue.Pull(ctx, agent, 1, time.Minute)
	if err != nil || len(offers) != 1 || offers[0].Key().Ticket != ticket {
		t.Fatalf("pulled %d offers, %v; want that of %s", len(offers), err, ticket)
	}
	if err := offers[0].Remove(); err != nil {
		t.Fatal(err)
	}
	return ticket
}

// waitUntil waits for an instant.
func waitUntil(t *testing.T, ctx context.Context, at time.Time) {
	t.Helper()
	select {
	case <-time.After(time.Until(at)):
	case <-ctx.Done():
		t.Fatal(ctx.Err())
	}
}

func pointer[T any](v T) *T { return &v }
