package broker

import "github.com/agenthandoff/handoff/protocol"

// The order in which offers are taken, see Engine.Pull.
const (
	// TurnEvery is 8: of every 8 offers that a process takes for an agent, 7
	// come in the order of the lanes; the last one serves the less urgent lanes
	// (weighted fair queueing, 7:1).
	TurnEvery = 8
	// TurnRound is 24: by then each of the three lanes below the most urgent
	// one has had a turn. What is first in its lane waits for no more than that.
	TurnRound = 3 * TurnEvery
)

// turnOrders are the orders in which the turns of weighted fair queueing look for an
// offer: they go round the lanes below the most urgent one, and a lane that has
// nothing passes its turn on.
var turnOrders = func() (orders [TurnRound / TurnEvery][]protocol.Priority) {
	waiting := protocol.Priorities[1:]
	for i := range orders {
		orders[i] = append(orders[i], waiting[i:]...)
		orders[i] = append(orders[i], waiting[:i]...)
		orders[i] = append(orders[i], protocol.Priorities[0])
	}
	return orders
}()

// LaneOrder is the rule of Engine.Pull: the lanes in the order in which the
// next offer is looked for, when that many were taken before. Callers do not
// change what it returns. Only engines need it.
func LaneOrder(taken int64) []protocol.Priority {
	if taken%TurnEvery != TurnEvery-1 {
		return protocol.Priorities
	}
	return turnOrders[taken/TurnEvery%int64(len(turnOrders))]
}
