package lifecycle

import (
	"fmt"
	"slices"

	p "github.com/agenthandoff/handoff/protocol"
)

// Children: what a handoff hands off, waits for, and learns of it.

// childrenOf gives the state children of its own to change.
func childrenOf(s *p.State) *p.Children {
	own := p.Children{}
	if s.Children != nil {
		own = *s.Children
	}
	s.Children = &own
	return &own
}

// awaitNothing ends the wait for children.
func awaitNothing(s *p.State) {
	if s.Children != nil && s.Children.Awaited != "" {
		childrenOf(s).Awaited = ""
	}
}

func applyHandedOff(s *p.State, ev p.Event) error {
	e := ev.(*p.HandedOff)
	if e.N < 0 || e.N >= p.ChildrenMax || e.Ticket == "" {
		return fmt.Errorf("%w: handed off as child %d, ticket %q", ErrIllegal, e.N, e.Ticket)
	}
	c := childrenOf(s)
	c.Made, c.Count = c.Made.With(e.N), max(c.Count, e.N+1)
	return nil
}

func applySuspended(s *p.State, ev p.Event) error {
	e := ev.(*p.Suspended)
	c := childrenOf(s)
	awaited := p.Bits("").With(e.Children...)
	if awaited.Without(c.Closed) == "" || awaited.Without(c.Made) != "" {
		return fmt.Errorf("%w: suspended for children %v, which are not all there or closed already", ErrIllegal, e.Children)
	}
	uncharge(s)
	c.Awaited = awaited
	s.ConditionedAt, s.Reason, s.Message = e.At, "awaiting_returns", ""
	s.Conditions, s.RetryAt = nil, p.Time{}
	letGo(s)
	return nil
}

func applyChildrenClosed(s *p.State, ev p.Event) error {
	c := childrenOf(s)
	for _, child := range ev.(*p.ChildrenClosed).Children {
		if !c.Made.Has(child.N) || c.Closed.Has(child.N) {
			continue
		}
		c.Closed = c.Closed.With(child.N)
		if child.Outcome == p.OutcomeSuccess || child.Outcome == p.OutcomePartial {
			c.Succeeded = c.Succeeded.With(child.N)
		}
	}
	return nil
}

// Interventions: somebody takes a handoff, or gives it back.

func applyTaken(s *p.State, ev p.Event) error {
	e := ev.(*p.Taken)
	if e.Agent == "" || e.Holder == "" || s.Aggregate != nil {
		return fmt.Errorf("%w: taken by holder %q of agent %q", ErrIllegal, e.Holder, e.Agent)
	}
	s.Refused = withoutAgent(s.Refused, e.Agent)
	moveTo(s, e.Agent)
	s.Attempt, s.LeasesLost = 1, 0
	s.AttemptsTotal++
	s.Holder, s.LeaseMS, s.Fence, s.Offer = e.Holder, e.LeaseMS, p.Self, p.Self
	s.OfferedAt, s.AcceptedAt = e.At, e.At
	s.ClaimedAt, s.StartedAt, s.RemindedAt, s.ProgressAt = p.Time{}, p.Time{}, p.Time{}, p.Time{}
	s.EstimatedCompletion, s.RetryAt = p.Time{}, p.Time{}
	s.Alternative, s.Conditions, s.TimedOut, s.Progress = "", nil, "", nil
	s.Retryable, s.RetryAfterMS = false, 0
	s.Reason, s.StuckReason = "", ""
	awaitNothing(s)
	return nil
}

func applyRolledBack(s *p.State, ev p.Event) error {
	e := ev.(*p.RolledBack)
	if len(e.Result) > 0 || e.Blob != nil {
		s.ResultSeq = p.Self
	}
	s.Message, s.Inbox = cut(e.Reason), e.Inbox
	letGo(s)
	closeAs(s, p.OutcomeRolledBack, "returned", e.At)
	return nil
}

// Late results.

func applyResultParked(s *p.State, ev p.Event) error {
	e := ev.(*p.ResultParked)
	if e.Fence == 0 || e.Fence == s.Fence || s.Aggregate != nil {
		return fmt.Errorf("%w: a result parked under fence %d, which is not a lost one", ErrIllegal, e.Fence)
	}
	s.LateFences = append(slices.Clone(s.LateFences), e.Fence)
	s.LateSeq, s.LateStatus, s.LateTokens = p.Self, e.Status, e.Tokens
	return nil
}

func applyLateResultUsed(s *p.State, ev p.Event) error {
	e := ev.(*p.LateResultUsed)
	if s.LateSeq == 0 || s.Held() {
		return fmt.Errorf("%w: a late result used, and there is none, or somebody is at work", ErrIllegal)
	}
	outcome := p.OutcomeSuccess
	if s.LateStatus == p.Partial {
		outcome = p.OutcomePartial
	}
	s.ResultSeq, s.Message = s.LateSeq, ""
	s.Tokens += s.LateTokens
	closeAs(s, outcome, "late_result", e.At)
	return nil
}

// After the end.

func applyReturnSent(s *p.State, ev p.Event) error {
	e := ev.(*p.ReturnSent)
	if !owesReturn(*s) || e.Ticket == "" {
		return fmt.Errorf("%w: a return sent that nobody expects", ErrIllegal)
	}
	s.ReturnTicket = e.Ticket
	return nil
}

func applyReturned(s *p.State, ev p.Event) error {
	e := ev.(*p.Returned)
	if !owesReturn(*s) {
		return fmt.Errorf("%w: returned, and nobody expects it", ErrIllegal)
	}
	s.ReturnedAt = e.At
	if e.Delivered {
		s.Phase = p.PhaseReturned
	}
	return nil
}

func applyRedriven(s *p.State, ev p.Event) error {
	e := ev.(*p.Redriven)
	if e.Ticket == "" || s.Outcome == p.OutcomeSuccess || s.Outcome == p.OutcomePartial { // a success whose return has arrived is in phase returned
		return fmt.Errorf("%w: redriven as %q after outcome %s", ErrIllegal, e.Ticket, s.Outcome)
	}
	s.RedrivenAs, s.Inbox = e.Ticket, ""
	return nil
}

func applyDismissed(s *p.State, _ p.Event) error {
	s.Inbox = ""
	return nil
}
