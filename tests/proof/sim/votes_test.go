//go:build proof

package sim

import (
	"bytes"
	"context"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// groupAgent is an agent in a group.
type groupAgent struct{ group, agent string }

// checkVotes counts the votes of each group by the results of its members, and compares
// the end of a majority with the count.
func (j *judge) checkVotes(ticket string, before, after protocol.State, events []protocol.Event) {
	if after.Closed && !before.Closed {
		favour := after.Outcome == protocol.OutcomeSuccess || after.Outcome == protocol.OutcomePartial
		for _, e := range events {
			if done, ok := e.(*protocol.Completed); ok && bytes.Contains(done.Result, []byte(`{"vote":"no"}`)) {
				favour = false
			}
		}
		j.votes[ticket] = favour
	}
	if after.Aggregate == nil || after.Aggregate.Mode != protocol.AggregateMajority || !after.Closed || before.Closed {
		return
	}
	counted := after.Aggregate.Counted
	if counted == "" {
		counted = after.Children.Made
	}
	yes, no := 0, 0
	for _, n := range counted.Numbers() {
		last, ended := j.endOf(j.heads[protocol.ChildTicketN(ticket, n)].state)
		switch {
		case ended && j.votes[last.Ticket]:
			yes++
		case ended:
			no++
		}
	}
	needed := counted.Len()/2 + 1
	switch {
	case after.Reason == lifecycle.ReasonAggregated && yes < needed:
		j.faultLocked("%s closed with a majority, and %d of %d members are in favour", ticket, yes, counted.Len())
	case after.Reason == lifecycle.ReasonAggregation && counted.Len()-no >= needed:
		j.faultLocked("%s closed without a majority, and %d of %d members are against", ticket, no, counted.Len())
	}
}

// withoutVotes decides on the ends of children without the votes in them.
func (f *faultyBroker) withoutVotes(ctx context.Context, head broker.Head, decide broker.Decider) (broker.Head, bool, error) {
	return f.Broker.Update(ctx, head, func(h broker.Head, q lifecycle.Query) (lifecycle.Step, error) {
		step, err := decide(h, q)
		if err != nil || len(step.Events) == 0 {
			return step, err
		}
		ended, ok := step.Events[0].(*protocol.ChildrenClosed)
		if !ok {
			return step, nil
		}
		ends := make([]protocol.ChildClosed, len(ended.Children))
		for i, end := range ended.Children {
			ends[i] = protocol.ChildClosed{N: end.N, Outcome: end.Outcome}
		}
		return lifecycle.MarkChildren(h.State, q, ends)
	})
}
