//go:build proof

package sim

import (
	"context"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// Planted bugs of submissions that wait for an agent which is not there yet.
const (
	waitGivenUp   bug = "a submission that waits for an agent, given to a person first"
	waitForgotten bug = "a submission that waits for an agent, and is not offered when it comes"
)

func init() {
	bugs = append(bugs, waitGivenUp, waitForgotten)
	deciding[waitGivenUp] = (*faultyBroker).withoutWaiting
	deciding[waitForgotten] = (*faultyBroker).withoutWaiting
}

// planUnknown has some submissions wait for an agent that is registered last of all.
func (l *simulation) planUnknown(p *protocol.Package, d uint64) {
	plain := slices.Contains([]string{"a", "b", "c"}, p.Target.Agent) && (p.Type == "" || p.Type == protocol.Sequential) && len(p.Task.Description) == 1
	if d%6 != 0 || !plain || l.hasEdges() || p.Bids != nil {
		return
	}
	p.Target = protocol.Target{Agent: newcomer}
	p.Constraints.Deadline, p.Return = time.Time{}, nil
	if p.Routing == nil {
		p.Routing = &protocol.RoutingRules{}
	}
	p.Routing.OnUnknown = protocol.OnOpenWait
}

// checkUnknown: what waits for its agent has no other before, and no clock gives it up; an agent that
// is there gets it (checkAbsence).
func (j *judge) checkUnknown(before, after protocol.State, events []protocol.Event) {
	if after.OnUnknown != protocol.OnOpenWait || after.Target.Agent != newcomer || before.Agent != "" || before.Gate != nil || after.CancelRequested {
		return
	}
	for _, e := range events {
		switch e := e.(type) {
		case *protocol.Rerouted:
			if e.By != lifecycle.By { // a person, or who may, decides otherwise
				return
			}
		case *protocol.Offered:
			if e.Agent == newcomer {
				return
			}
			j.faultLocked("%s waits for %s, and is offered to %s", after.Ticket, newcomer, e.Agent)
		case *protocol.Escalated, *protocol.TimedOut, *protocol.Closed:
			j.faultLocked("%s waits for %s, and does so no longer: %s", after.Ticket, newcomer, e.EventType())
		}
	}
}

// withoutWaiting has a person get what waits for an agent, or never offers it.
func (f *faultyBroker) withoutWaiting(ctx context.Context, head broker.Head, decide broker.Decider) (broker.Head, bool, error) {
	return f.Broker.Update(ctx, head, func(h broker.Head, q lifecycle.Query) (lifecycle.Step, error) {
		step, err := decide(h, q)
		s := h.State
		if err != nil || s.OnUnknown != protocol.OnOpenWait || s.Agent != "" || s.Phase != protocol.Pending || s.Closed {
			return step, err
		}
		if f.bug == waitForgotten {
			return lifecycle.Step{}, nil
		}
		meta := protocol.Meta{At: q.Now, By: lifecycle.By}
		return lifecycle.StepOf(s, &protocol.Escalated{Meta: meta, Level: 1, To: protocol.Human, ReasonCode: lifecycle.ReasonNoFitAgent},
			&protocol.Offered{Meta: meta, Agent: protocol.Human, Reason: lifecycle.OfferEscalation})
	})
}
