package natsgateway_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/brokertest"
	natsgateway "github.com/agenthandoff/handoff/internal/gateway/nats"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// Gateways come and go under two busy workers, with whatever was being asked of them.
// Every handoff is completed once, by the attempt that it was begun with.
func TestGatewaysComeAndGo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// What a gateway takes along comes again soon, and what is in hand is redelivered
	// under it all the time, which harms nobody.
	w.ackWait = 2 * time.Second
	w.b = w.broker()
	w.register("coder")
	const handoffs, gateways, each = 240, 3, 20
	var open []*gateway
	for range gateways {
		open = append(open, w.open(natsgateway.Config{}))
	}
	ended := make(chan struct{}, 10*handoffs)
	for range 2 {
		w.run(worker.New(w.client("coder"), worker.Config{Agent: "coder", Concurrency: 8}, worker.HandlerFunc(
			func(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
				defer func() { ended <- struct{}{} }()
				if err := h.Progress(ctx, protocol.Progress{Percent: 50}); err != nil {
					return protocol.Result{}, err
				}
				return protocol.Result{Body: text(fmt.Sprint(h.Fence))}, nil
			})))
	}
	var tickets []string
	for range handoffs {
		tickets = append(tickets, w.submit("coder", nil))
	}
	for n := 1; n < handoffs; n++ {
		select {
		case <-ended:
		case <-w.ctx.Done():
			t.Fatalf("%d of %d handoffs were worked on", n, handoffs)
		}
		if n%each == 0 {
			next := w.open(natsgateway.Config{})
			open[0].kill()
			open = append(open[1:], next)
		}
	}
	for _, ticket := range tickets {
		state := w.until(ticket, brokertest.Closed)
		if state.Outcome != protocol.OutcomeSuccess || state.AttemptsTotal != 1 {
			t.Errorf("%s ended %s (%s), %d attempts", ticket, state.Outcome, state.Message, state.AttemptsTotal)
		}
		changes, err := w.b.History(w.ctx, ticket)
		if err != nil {
			t.Fatal(err)
		}
		completed := 0
		for _, c := range changes {
			for _, e := range c.Record.Events {
				if e.EventType() == protocol.EventCompleted {
					completed++
				}
			}
		}
		if completed != 1 || state.ResultSeq == 0 {
			t.Errorf("%s was completed %d times", ticket, completed)
		}
	}
}
