//go:build proof

package sim

import (
	"context"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// Planted bugs of clocks.
const (
	retriesEven     bug = "a retry that waits no longer than the one before it"
	questionDropped bug = "an open question forgotten by the retry of a clock"
	timeoutInvented bug = "a question over the bound recorded as a time-out"
	lockEnds        bug = "a deadline that closes what waits for a lock"
	membersUnnamed  bug = "a group closed at its deadline, and its unfinished members not named"
	partialLost     bug = "what a handler has returned that was stopped, thrown away"
)

func init() {
	for _, b := range []bug{retriesEven, questionDropped, timeoutInvented, lockEnds, membersUnnamed} {
		bugs, deciding[b] = append(bugs, b), (*faultyBroker).withClocksWrong
	}
}

func init() { bugs = append(bugs, partialLost) }

// clocksKnown is the judge's record of clocks.
type clocksKnown struct {
	tries   map[string]triesAt
	stopped map[fenceOf]bool // the attempts that were stopped, and had something to show for it
}

// stops is the end of a handler whose context has ended: what it has comes beside its error.
func (h *handler) stops(ctx context.Context, of worker.Handoff) (protocol.Result, error) {
	j := &h.l.judge
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.clocks.stopped == nil {
		j.clocks.stopped = map[fenceOf]bool{}
	}
	j.clocks.stopped[fenceOf{of.Ticket, of.Fence}] = true
	if h.l.bug == partialLost {
		return protocol.Result{}, context.Cause(ctx)
	}
	return protocol.Result{Body: []byte(`"half"`)}, context.Cause(ctx)
}

// checkStopped: what an attempt has that was stopped comes with its release or its rollback.
func (j *judge) checkStopped(before protocol.State, events []protocol.Event) {
	kept := len(before.LateFences) >= protocol.LateResultsMax
	for _, e := range events {
		parked, ok := e.(*protocol.ResultParked)
		kept = kept || ok && parked.Fence == before.Fence
	}
	for _, e := range events {
		switch e := e.(type) {
		case *protocol.Released:
			if j.clocks.stopped[fenceOf{before.Ticket, e.Fence}] && !kept {
				j.faultLocked("%s is released, and what attempt %d had is lost", before.Ticket, before.Attempt)
			}
		case *protocol.RolledBack:
			if j.clocks.stopped[fenceOf{before.Ticket, e.Fence}] && len(e.Result) == 0 {
				j.faultLocked("%s is rolled back, and what attempt %d had is lost", before.Ticket, before.Attempt)
			}
		}
	}
}

// triesAt is how often a handoff was tried again at the agent that has it.
type triesAt struct {
	agent   string
	retries int
}

// planClocks gives some packages a return's clock that is retried, and few questions, and some groups
// and some that wait for locks a deadline. With questionDropped all have that clock, a short one.
func (l *simulation) planClocks(p *protocol.Package, d uint64) {
	if (p.Type == protocol.Broadcast || p.Locks != nil && p.Target.Agent != late) && d%3 == 0 {
		p.Constraints.Deadline = time.Now().Add(time.Duration(3_000+d>>8%40_000) * time.Millisecond)
		return
	}
	within := uint64(40_000)
	if l.bug == questionDropped {
		d, within = d-d%5, 5_000
	}
	if p.Target.Agent == "" || p.Type != "" || d%5 != 0 {
		return
	}
	p.Type, p.Return = protocol.Delegation, &protocol.ReturnProtocol{Expected: true, TimeoutMS: int64(5_000 + d>>8%within), OnTimeout: protocol.OnTimeoutRetry}
	few := int(d >> 40 % 2)
	p.Policy.MaxConditions = &few
}

// checkClocks: what is tried again waits longer each time, a question ends by an answer or a move,
// and a time-out is one.
func (j *judge) checkClocks(before, after protocol.State, events []protocol.Event) {
	tries, ended := j.clocks.tries[after.Ticket], before.UpdatedAt
	moved := func(agent string) {
		if agent != tries.agent {
			tries = triesAt{agent: agent}
		}
	}
	asks, out := before.Conditions != nil, false
	j.checkUnfinished(before, events)
	j.checkStopped(before, events)
	for i, e := range events {
		switch e := e.(type) {
		case *protocol.Offered:
			moved(e.Agent)
		case *protocol.Rerouted:
			moved(e.To)
			asks = false
		case *protocol.Escalated:
			if e.ReasonCode == lifecycle.ReasonConditionTimeout && !out {
				j.faultLocked("%s goes up, since a question has timed out, and no clock has run out", after.Ticket)
			}
			moved(e.To)
			asks = false
		case *protocol.Taken:
			tries, asks = triesAt{agent: e.Agent}, false
		case *protocol.Answered, *protocol.Gated:
			asks = false
		case *protocol.LeaseLost:
			if e.Fence != 0 {
				tries.retries++
			}
		case *protocol.Failed, *protocol.ResultParked, *protocol.ChildrenClosed:
			ended = e.When()
		case *protocol.TimedOut:
			ended, out = e.At, e.Clock == protocol.ClockCondition
			if due := clockDue(&before, e.Clock); i == 0 && !due.IsZero() && time.Now().Before(due) {
				j.faultLocked("%s: the clock %s ran out %v before its time", after.Ticket, e.Clock, time.Until(due))
			}
			if g := before.Gate; i == 0 && (g.First() == protocol.GateApproval || g.First() == protocol.GateBudget || g.First() == protocol.GateBids) && after.Phase != protocol.AwaitingApproval &&
				after.Reason != lifecycle.ReasonApprovalTimeout { // the approver's own time was over as well
				j.faultLocked("the clock %s ends the gate of %s, which asks: %s", e.Clock, after.Ticket, after.Reason)
			}
			if e.Clock == protocol.ClockCondition && !asks {
				j.faultLocked("%s: a question timed out, and none is open", after.Ticket)
			}
		case *protocol.RetryScheduled:
			if least := leastDelay(before.Policy, tries.retries); e.Due.Sub(ended) < least {
				j.faultLocked("%s is tried again after %v, and after %d retries at %s it waits %v at least", after.Ticket, e.Due.Sub(ended), tries.retries, tries.agent, least)
			}
			tries.retries++
		}
	}
	if j.clocks.tries == nil {
		j.clocks.tries = map[string]triesAt{}
	}
	if j.clocks.tries[after.Ticket] = tries; asks && after.Conditions == nil && !after.Closed {
		j.faultLocked("%s: its question is forgotten by %s", after.Ticket, names(events))
	}
}

// checkUnfinished: a group that closes when its time is over names each member that has not ended,
// in the inbox of a person; and it does close as that.
func (j *judge) checkUnfinished(before protocol.State, events []protocol.Event) {
	if before.Aggregate == nil || before.Closed {
		return
	}
	for _, e := range events {
		end, ok := e.(*protocol.Closed)
		if !ok || end.Outcome == protocol.OutcomeSuccess || end.Outcome == protocol.OutcomeCancelled || end.Outcome == protocol.OutcomeRolledBack {
			continue
		}
		over := end.Reason == lifecycle.ReasonDeadline || end.Reason == lifecycle.ReasonReturnTimeout
		if !over && !end.At.Before(lifecycle.Deadline(before)) {
			j.faultLocked("group %s closes as %s at its deadline, and names no member", before.Ticket, end.Reason)
		}
		for _, n := range before.Children.Made.Numbers() {
			_, ended := j.endOf(j.heads[before.ChildTicket(n)].state)
			if over && !ended && (end.Inbox != protocol.Human || end.Facts == nil || !slices.Contains(end.Facts.Unfinished, n)) {
				j.faultLocked("group %s closes at its deadline, and no inbox names its member %d, which has not ended", before.Ticket, n)
			}
		}
	}
}

// leastDelay is the shortest delay that may follow so many retries.
func leastDelay(p protocol.Policy, retries int) time.Duration {
	least := p.BackoffBaseMS
	for range retries {
		least = min(2*least, p.BackoffCapMS)
	}
	return time.Duration(min(least, p.BackoffCapMS)*int64(100-p.BackoffSpreadPct)/100) * time.Millisecond
}

// clockDue is when a clock of a handoff runs out; zero for those that depend on who is there.
func clockDue(s *protocol.State, clock protocol.Clock) time.Time {
	after := func(since time.Time, ms int64) time.Time { return since.Add(time.Duration(ms) * time.Millisecond) }
	switch clock {
	case protocol.ClockCondition:
		return after(s.ConditionedAt, s.Policy.ConditionTimeoutMS)
	case protocol.ClockReturn:
		if s.ReturnMS != 0 {
			return after(s.ReturnSince, s.ReturnMS)
		}
		return after(s.ReturnSince, s.Policy.ReturnTimeoutMS)
	case protocol.ClockDeadline:
		return lifecycle.Deadline(*s)
	case protocol.ClockWork:
		if s.ExtendedUntil.IsZero() {
			return after(s.AcceptedAt, s.Policy.WorkTimeoutMS)
		}
		return s.ExtendedUntil
	}
	return time.Time{}
}

// withClocksWrong decides as the core does, but for the planted bug of a clock.
func (f *faultyBroker) withClocksWrong(ctx context.Context, head broker.Head, decide broker.Decider) (broker.Head, bool, error) {
	return f.Broker.Update(ctx, head, func(h broker.Head, q lifecycle.Query) (lifecycle.Step, error) {
		step, err := decide(h, q)
		if err != nil || len(step.Events) == 0 {
			return step, err
		}
		events := slices.Clone(step.Events)
		for i, e := range events {
			switch e := e.(type) {
			case *protocol.RetryScheduled:
				if f.bug == retriesEven {
					even := *e
					even.Due = q.Now.Add(time.Duration(h.State.Policy.BackoffBaseMS) * time.Millisecond)
					events = append(events[:i:i], &even)
					return lifecycle.StepOf(h.State, events...)
				}
			case *protocol.TimedOut:
				if f.bug == questionDropped && e.Clock == protocol.ClockReturn && step.State.Conditions != nil {
					return lifecycle.StepOf(h.State, e, &protocol.Offered{Meta: e.Meta, Agent: h.State.Agent, Reason: lifecycle.OfferRetry})
				}
			case *protocol.Closed:
				if f.bug == membersUnnamed && h.State.Aggregate != nil && e.Reason == lifecycle.ReasonDeadline {
					unnamed := *e
					unnamed.Facts = nil
					events[i] = &unnamed
					return lifecycle.StepOf(h.State, events...)
				}
			case *protocol.Escalated:
				if f.bug == lockEnds && h.State.Gate != nil && e.ReasonCode == lifecycle.ReasonDeadline {
					end := &protocol.Closed{Meta: e.Meta, Outcome: protocol.OutcomeTimeout, Reason: lifecycle.ReasonDeadline, Inbox: protocol.Human}
					return lifecycle.StepOf(h.State, append(events[:i:i], end)...)
				}
				if f.bug == timeoutInvented && e.ReasonCode == lifecycle.ReasonConditionsExhausted {
					out := *e
					out.ReasonCode = lifecycle.ReasonConditionTimeout
					events[i] = &out
					return lifecycle.StepOf(h.State, events...)
				}
			}
		}
		return step, nil
	})
}
