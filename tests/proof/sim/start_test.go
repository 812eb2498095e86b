//go:build proof

package sim

import (
	"context"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// Planted bugs of handoffs that start later.
const (
	startEarly bug = "a handoff offered before its start"
	startLost  bug = "a start that passes unseen"
)

func init() {
	bugs = append(bugs, startEarly, startLost)
	deciding[startEarly] = (*faultyBroker).withoutStart
	deciding[startLost] = (*faultyBroker).withoutStart
}

// planStart has some submissions start later, some of them with an approval before.
func (l *simulation) planStart(p *protocol.Package, d uint64) {
	if d%5 == 0 {
		p.StartAt = time.Now().Add(time.Duration(d>>8%120) * time.Second)
	}
	if deadline := p.Constraints.Deadline; !deadline.IsZero() && !p.StartAt.Before(deadline) {
		p.StartAt = time.Time{}
	}
}

// checkStart finds an offer before the start, by the clock of the judge.
func (j *judge) checkStart(after protocol.State, events []protocol.Event) {
	for _, e := range events {
		if _, offered := e.(*protocol.Offered); offered && time.Now().Before(after.StartAt) {
			j.faultLocked("%s is offered to %s before its start at %v", after.Ticket, after.Agent, after.StartAt)
		}
	}
}

// checkStarts finds a handoff that is not offered although its start has passed and no fault delays it.
func (j *judge) checkStarts() {
	for ticket, h := range j.heads {
		s := h.state
		if s.Gate.First() == protocol.GateStart && !s.Closed && time.Since(s.StartAt) > settledAfter && time.Since(h.at) > settledAfter {
			j.faultLocked("%s waits for its start, which was %v ago", ticket, time.Since(s.StartAt))
		}
	}
}

// withoutStart opens the gate of a start at once, or never.
func (f *faultyBroker) withoutStart(ctx context.Context, head broker.Head, decide broker.Decider) (broker.Head, bool, error) {
	return f.Broker.Update(ctx, head, func(h broker.Head, q lifecycle.Query) (lifecycle.Step, error) {
		if s := h.State; s.Gate.First() == protocol.GateStart && !s.Closed && !s.CancelRequested {
			if f.bug == startLost {
				return lifecycle.Step{}, nil
			}
			if s.StartAt.After(q.Now) {
				q.Now = s.StartAt
			}
		}
		return decide(h, q)
	})
}
