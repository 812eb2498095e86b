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

// backWithin is how long a handoff may stay with a person, in calm times, though the agent is there
// whose absence alone has brought it there.
const backWithin = 45 * time.Second

// personComesLate tells whether the person of this simulation comes after the worker of late, so
// that what only its absence has brought to the person waits there meanwhile.
func (l *simulation) personComesLate() bool { return l.seed%4 == 0 }

// newcomer is an agent that is not registered before the trouble is over.
const newcomer = "newcomer"

// checkAbsence: what absence has moved, or no agent could be given, is with no other agent while
// one that it was for is there, unless that one has it in hand.
func (j *judge) checkAbsence() {
	if j.lateSince.IsZero() || time.Since(j.lateSince) < backWithin {
		return
	}
	there := map[string]bool{}
	for _, p := range j.presence {
		if time.Now().Before(p.until) && !p.holder.Polling && !p.holder.StartedAt.After(time.Now().Add(-backWithin)) {
			there[p.holder.Agent] = true
		}
	}
	for ticket, h := range j.heads {
		s := h.state
		if s.Group != "" || !s.OverdueSince.IsZero() || s.Escalations >= protocol.EscalationsTotalMax || time.Since(h.at) <= backWithin {
			continue
		}
		for _, awaited := range lifecycle.AwaitedBy(s) {
			if there[awaited.Agent] && !j.l.isFrail(awaited.Agent) && !slices.Contains(s.Refused, awaited.Agent) && !j.bars(s, awaited.Agent) {
				j.faultLocked("%s waits with %s, and %s is there, whose absence has moved it", ticket, s.Agent, awaited.Agent)
			}
		}
	}
}

// bars reports whether no edge leads from the source of an undelivered handoff to the agent that it was
// for: that was not there to be asked for, and the handoff stays with the authority. What was offered
// to an agent before goes back to it whatever the edges say now.
func (j *judge) bars(s protocol.State, to string) bool {
	offered := slices.ContainsFunc(s.Absent, func(a protocol.Absence) bool { return a.Agent == to })
	return !offered && len(j.edges) > 0 && bound(s.Summary) && !j.edges[len(j.edges)-1].allows(s.Source, to)
}

// checkLapses: no claim follows on as many that lapsed as may.
func (j *judge) checkLapses(after protocol.State) {
	if s := after; s.LapsedClaims >= lifecycle.LapsedClaimsMax && s.Agent != protocol.Human && s.Policy.OnNoTaker != protocol.NoTakerQueue && s.Phase == protocol.Pending && !s.Closed {
		j.faultLocked("%s is with %s, which let %d claims lapse in a row", s.Ticket, s.Agent, s.LapsedClaims)
	}
}

// The planted bugs of supervisors.
const (
	clockEnds        bug = "attempts that a clock used up, and no authority is asked"
	lapsesKept       bug = "claims that lapse again and again, and no other agent is asked"
	addresseeAway    bug = "what absence moved, back to the last agent alone"
	undeliveredStays bug = "what could not be delivered, left there though its agent has come"
)

func init() {
	bugs = append(bugs, clockEnds, lapsesKept, addresseeAway, undeliveredStays)
	for _, b := range []bug{absenceStays, clockEnds, lapsesKept, addresseeAway, undeliveredStays} {
		deciding[b] = (*faultyBroker).withAbsenceWrong
	}
}

// withAbsenceWrong decides with one of the planted bugs.
func (f *faultyBroker) withAbsenceWrong(ctx context.Context, head broker.Head, decide broker.Decider) (broker.Head, bool, error) {
	return f.Broker.Update(ctx, head, func(h broker.Head, q lifecycle.Query) (lifecycle.Step, error) {
		step, err := decide(h, q)
		for i, e := range step.Events {
			if err != nil {
				break
			}
			switch e := e.(type) {
			case *protocol.Escalated:
				if f.bug == clockEnds && e.ReasonCode == lifecycle.ReasonWorkTimeout {
					return lifecycle.StepOf(h.State, append(step.Events[:i:i], &protocol.Closed{Meta: e.Meta, Outcome: protocol.OutcomeTimeout, Reason: e.ReasonCode, Inbox: protocol.Human})...)
				}
			case *protocol.TimedOut:
				if lost, ok := step.Events[0].(*protocol.LeaseLost); ok && i > 0 && f.bug == lapsesKept {
					return lifecycle.StepOf(h.State, lost, &protocol.Offered{Meta: lost.Meta, Agent: h.State.Agent, Reason: lifecycle.OfferLeaseLost})
				}
			case *protocol.Rerouted:
				absent := h.State.Absent
				if e.ReasonCode != lifecycle.ReasonAgentBack || len(absent) == 0 {
					continue
				}
				if f.bug == absenceStays || f.bug == undeliveredStays && absent[0].Agent == "" || f.bug == addresseeAway && absent[len(absent)-1].Agent != e.To && absent[0].Agent != "" {
					return lifecycle.Step{}, nil
				}
			}
		}
		return step, err
	})
}

// planUsedUp gives some packages a work timeout that slow work exceeds, and few attempts.
func (l *simulation) planUsedUp(p *protocol.Package, d uint64) {
	if d%5 == 0 && p.Target.Agent != late && l.seed%3 != 1 { // an experiment gives its own
		p.Policy.WorkTimeoutMS, p.Policy.MaxAttempts = new(int64(6_000)), new(int(1+d>>8%2))
	}
}

// checkUsedUp: attempts that a clock used up go to an authority, while there is one and the policy
// does not end them. What counts is who had it when the clock ran out: a failed attempt that went up
// late, after the return's time, is with its authority by then, though all of it is one append.
func (j *judge) checkUsedUp(before, after protocol.State, events []protocol.Event) {
	s := before
	for i, e := range events {
		if _, ok := e.(*protocol.TimedOut); ok {
			if at, err := lifecycle.ApplyAll(before, events[:i]); err == nil {
				s = at
			}
		}
	}
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
