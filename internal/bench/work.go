package bench

import (
	"context"
	"errors"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// The result of every handoff.
var doneResult = protocol.Result{Body: []byte(`"done"`)}

func completeHandoff(context.Context, worker.Handoff) (protocol.Result, error) {
	return doneResult, nil
}

// deferringHandler defers a share of the handoffs once.
type deferringHandler struct{ threshold uint64 }

func (deferringHandler) Handle(context.Context, worker.Handoff) (protocol.Result, error) {
	return doneResult, nil
}

// Acknowledge decides by the ticket, which is random, so that it needs no list of deferred
// handoffs.
func (d deferringHandler) Acknowledge(_ context.Context, h worker.Handoff) (protocol.Ack, error) {
	if h.State().ConditionRounds == 0 && ticketPrefix(h.Ticket) < d.threshold {
		return protocol.Ack{Status: protocol.AckConditional, RetryAfterMS: DeferFor.Milliseconds(), Reason: "not now"}, nil
	}
	return protocol.Ack{Status: protocol.AckAccepted}, nil
}

// ticketPrefix is the first 32 bits of a ticket.
func ticketPrefix(ticket string) uint64 {
	n, err := strconv.ParseUint(ticket[:8], 16, 32)
	if err != nil {
		return math.MaxUint64
	}
	return n
}

func newHandler(share float64) worker.Handler {
	if share == 0 {
		return worker.HandlerFunc(completeHandoff)
	}
	return deferringHandler{uint64(share * (1 << 32))}
}

// registerAgents makes the agents and their queues.
func registerAgents(ctx context.Context, b *broker.Broker, agents []string) error {
	for _, agent := range agents {
		if err := b.EnsureQueue(ctx, agent); err != nil {
			return err
		}
		profile := protocol.Profile{ID: agent, Description: "an agent of handoff bench",
			UpdatedAt: time.Now().UTC().Truncate(time.Microsecond), RegisteredByWork: true}
		if err := b.PutProfile(ctx, profile); err != nil {
			return err
		}
	}
	return nil
}

// runWorkers serves the agents until ctx ends, each with its own worker.
func runWorkers(ctx context.Context, b *broker.Broker, deferred float64, agents []string, slots int) error {
	var all []*worker.Worker
	for _, agent := range agents {
		w, err := worker.New(b, worker.Config{Agent: agent, Concurrency: slots}, newHandler(deferred))
		if err != nil {
			return err
		}
		all = append(all, w)
	}
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, w := range all {
		wg.Go(func() { errs[i] = w.Run(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
