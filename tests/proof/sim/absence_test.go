//go:build proof

package sim

import (
	"context"
	"slices"
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

// clockEnds is a planted bug of supervisors.
const clockEnds bug = "attempts that a clock used up, and no authority is asked"

func init() { bugs = append(bugs, clockEnds) }

// planUsedUp gives some packages a work timeout that slow work exceeds, and few attempts.
func (l *simulation) planUsedUp(p *protocol.Package, d uint64) {
	if d%5 == 0 && p.Target.Agent != late && l.seed%3 != 1 { // an experiment gives its own
		p.Policy.WorkTimeoutMS, p.Policy.MaxAttempts = new(int64(6_000)), new(int(1+d>>8%2))
	}
}

// checkUsedUp: attempts that a clock used up go to an authority, while there is one and the policy
// does not end them.
func (j *judge) checkUsedUp(before, after protocol.State) {
	s := before
	on, clock := s.Policy.OnTimeout, after.Reason == lifecycle.ReasonWorkTimeout || after.Reason == lifecycle.ReasonProgressTimeout
	if after.Reason == lifecycle.ReasonReturnTimeout {
		on, clock = s.Policy.OnReturnTimeout, true
	}
	above := s.Agent != protocol.Human && s.EscalationLevel < s.Policy.MaxEscalations && s.Escalations < protocol.EscalationsTotalMax &&
		s.Group == "" && s.Aggregate == nil && !slices.Contains(s.Refused, protocol.Human)
	if clock && after.Closed && !s.Closed && above && on == protocol.OnTimeoutRetry && s.Policy.OnExhausted != protocol.ExhaustedFail && s.Phase != protocol.AwaitingApproval {
		j.faultLocked("%s is with %s and closes by a clock (%s), and no authority had it", after.Ticket, s.Agent, after.Reason)
	}
}

// withoutAuthority decides without the authority that has what a clock used up.
func (f *faultyBroker) withoutAuthority(ctx context.Context, head broker.Head, decide broker.Decider) (broker.Head, bool, error) {
	return f.Broker.UpdateFrom(ctx, head, func(h broker.Head, d *lifecycle.Directory, now time.Time) (lifecycle.Step, error) {
		step, err := decide(h, d, now)
		for i, e := range step.Events {
			if up, ok := e.(*protocol.Escalated); ok && err == nil && up.ReasonCode == lifecycle.ReasonWorkTimeout {
				return lifecycle.StepOf(h.State, append(step.Events[:i:i], &protocol.Closed{Meta: up.Meta, Outcome: protocol.OutcomeTimeout, Reason: up.ReasonCode, Inbox: protocol.Human})...)
			}
		}
		return step, err
	})
}
