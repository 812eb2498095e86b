//go:build proof

package sim

import (
	"context"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// backWithin is how long a handoff may stay with a person, in calm times, though the agent is there
// whose absence alone has brought it there.
const backWithin = 45 * time.Second

// personComesLate tells whether the person of this simulation comes after the worker of late, so
// that what only its absence has brought to the person waits there meanwhile.
func (l *simulation) personComesLate() bool { return l.seed%4 == 0 }

// checkAbsence: what was escalated for an absence is not with a person while its agent is there,
// unless the person has it in hand.
func (j *judge) checkAbsence() {
	if j.lateSince.IsZero() || time.Since(j.lateSince) < backWithin {
		return
	}
	for ticket, h := range j.heads {
		if s := h.state; !s.Closed && s.Absent == late && s.Phase == protocol.Pending && !s.Held() && time.Since(h.at) > backWithin {
			j.faultLocked("%s waits for a person, and %s is there, whose absence brought it there", ticket, late)
		}
	}
}

// withoutComingBack decides without what the core says of agents that are there again.
func (f *faultyBroker) withoutComingBack(ctx context.Context, head broker.Head, decide broker.Decider) (broker.Head, bool, error) {
	return f.Broker.UpdateFrom(ctx, head, func(h broker.Head, d *lifecycle.Directory, now time.Time) (lifecycle.Step, error) {
		step, err := decide(h, d, now)
		if err == nil && len(step.Events) > 0 {
			if moved, ok := step.Events[0].(*protocol.Rerouted); ok && moved.ReasonCode == lifecycle.ReasonAgentBack {
				return lifecycle.Step{}, nil
			}
		}
		return step, err
	})
}
