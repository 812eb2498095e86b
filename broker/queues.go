package broker

import (
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// QueueStatus is the status of one lane of an agent's queue.
type QueueStatus struct {
	Agent string            `json:"agent"`
	Lane  protocol.Priority `json:"lane"`
	// Depth counts its offers, delivered or not.
	Depth int `json:"depth"`
	// Delivered counts the offers that were delivered to a worker and neither removed nor redelivered
	// since. It includes the offer of a dead worker until another worker takes it.
	Delivered int `json:"delivered"`
	// Oldest is when the oldest offer of the lane was queued, delivered or not, by the engine's clock.
	Oldest time.Time `json:"oldest"`
	// Waiting is when the oldest undelivered offer was queued; zero if all are delivered. A delivered
	// offer stays in the queue while a worker works on it, so alert on Waiting to detect a queue that
	// is too long.
	Waiting time.Time `json:"waiting,omitzero"`
}

// The order in which offers are taken; see Queue.Pull.
const (
	// TurnEvery is 8: of every 8 offers that a process takes for an agent, 7
	// come in the order of the lanes; the last one serves the less urgent lanes
	// (weighted fair queueing, 7:1).
	TurnEvery = 8
	// TurnRound is 24: within as many offers each of the three lanes below the most urgent one has had
	// a turn. The first offer of a lane waits no longer than that.
	TurnRound = 3 * TurnEvery
)

// turnOrders are the orders in which the turns of weighted fair queueing look for an offer: they
// rotate through the lanes below the most urgent one, and an empty lane passes its turn on.
var turnOrders = func() (orders [TurnRound / TurnEvery][]protocol.Priority) {
	waiting := protocol.Priorities[1:]
	for i := range orders {
		orders[i] = append(orders[i], waiting[i:]...)
		orders[i] = append(orders[i], waiting[:i]...)
		orders[i] = append(orders[i], protocol.Priorities[0])
	}
	return orders
}()

// LaneOrder returns the lanes in the order in which Queue.Pull looks for the next offer, after
// taken earlier ones. Callers must not change the result. Only engines need it.
func LaneOrder(taken int64) []protocol.Priority {
	if taken%TurnEvery != TurnEvery-1 {
		return protocol.Priorities
	}
	return turnOrders[taken/TurnEvery%int64(len(turnOrders))]
}
