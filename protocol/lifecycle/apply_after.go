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

// beginAsking begins an attempt, which has asked for no child yet.
func beginAsking(s *p.State) {
	if s.Children != nil && s.Children.Asked != "" {
		childrenOf(s).Asked = ""
	}
}

// receiveEnds records that a worker gets the ends of all children that have closed, with its claim.
func receiveEnds(s *p.State) {
	if s.Children != nil && s.Children.Closed.Without(s.Children.Received) != "" {
		childrenOf(s).Received = s.Children.Closed
	}
}

// endAwait ends the wait for children.
func endAwait(s *p.State) {
	if s.Children != nil && s.Children.Awaited != "" {
		childrenOf(s).Awaited = ""
	}
}

func applyHandedOff(s *p.State, e *p.HandedOff) error {
	if e.N < 0 || e.N >= p.ChildrenMax || e.Ticket == "" {
		return fmt.Errorf("%w: handed off as child %d, ticket %q", ErrIllegal, e.N, e.Ticket)
	}
	c := childrenOf(s)
	if e.Cell != "" {
		if n, taken := c.ByCell(e.Cell); taken || len(e.Cell) != len(p.ChildKey{}.Cell(0)) {
			return fmt.Errorf("%w: handed off as child %d with the key of child %d", ErrIllegal, e.N, n)
		}
		c.SetCell(e.N, e.Cell)
	}
	c.Made, c.Count, c.Asked = c.Made.With(e.N), max(c.Count, e.N+1), c.Asked.With(e.N)
	if e.After {
		c.After = c.After.With(e.N)
	}
	if e.Returns {
		c.Returning = c.Returning.With(e.N)
	}
	if e.Goto {
		if c.Next != 0 {
			return fmt.Errorf("%w: the chain goes on with child %d, and with child %d", ErrIllegal, c.Next-1, e.N)
		}
		c.Next = e.N + 1
	}
	if e.Undelivered != "" {
		c.Undelivered = c.Undelivered.With(e.N)
	}
	setAside(s, e)
	return nil
}

func applyAdopted(s *p.State, e *p.Adopted) error {
	c := childrenOf(s)
	adopted := p.Bits("").With(e.Children...)
	if adopted == "" || adopted.Without(c.Made) != "" || adopted.And(c.Dropped) != "" {
		return fmt.Errorf("%w: adopts children %v, which it has not, or that were dropped", ErrIllegal, e.Children)
	}
	c.Asked = c.Asked.Or(adopted)
	return nil
}

func applySuspended(s *p.State, e *p.Suspended) error {
	c := childrenOf(s)
	awaited := p.Bits("").With(e.Children...)
	if awaited.Without(c.Received) == "" || awaited.Without(c.Made) != "" || awaited.And(c.After) != "" {
		return fmt.Errorf("%w: suspended for children %v, which do not exist, whose ends it has, or that begin with the result", ErrIllegal, e.Children)
	}
	uncharge(s)
	c.Awaited = awaited
	s.ConditionedAt, s.Reason, s.Message = e.At, "awaiting_returns", ""
	s.Conditions, s.RetryAt = nil, p.Time{}
	// The same attempt goes on: what begins with its result stays.
	endProbe(s)
	clearHolder(s)
	return nil
}

// dropPending gives up what was to begin with the result of an attempt that ended
// without one.
func dropPending(s *p.State) {
	if c := s.Children; c != nil && (c.After != "" || c.Next != 0) {
		own := childrenOf(s)
		own.Dropped, own.After, own.Next = own.Dropped.Or(own.After), "", 0
	}
}

// applySourceCompleted begins a handoff that awaited its source. Its return's clock
// begins now.
func applySourceCompleted(s *p.State, e *p.SourceCompleted) error {
	if s.ReturnExpected {
		s.ReturnSince = e.When()
	}
	return nil
}

func applyChildrenClosed(s *p.State, e *p.ChildrenClosed) error {
	c := childrenOf(s)
	for _, child := range e.Children {
		if !c.Made.Has(child.N) || c.Closed.Has(child.N) {
			continue
		}
		c.Closed = c.Closed.With(child.N)
		settleChild(s, child)
		switch child.Outcome {
		case p.OutcomeSuccess, p.OutcomePartial:
			if !votesAgainst(s, child) {
				c.Succeeded = c.Succeeded.With(child.N)
			}
		case p.OutcomeCancelled:
			c.Cancelled = c.Cancelled.With(child.N)
		}
	}
	return nil
}

// Interventions: an agent takes a handoff, or rolls it back.

func applyTaken(s *p.State, e *p.Taken) error {
	if e.Agent == "" || e.Holder == "" || s.Aggregate != nil {
		return fmt.Errorf("%w: taken by holder %q of agent %q", ErrIllegal, e.Holder, e.Agent)
	}
	if s.Gate != nil && (s.Gate.First() != p.GateBudget || e.Agent != p.Human) {
		return fmt.Errorf("%w: taken by %q from behind a gate that waits for %v", ErrIllegal, e.Agent, s.Gate.Waits)
	}
	s.Gate = nil
	s.Refused = withoutAgent(s.Refused, e.Agent)
	moveTo(s, e.Agent)
	dropPending(s)
	s.Attempt, s.LeasesLost, s.Retries = 1, 0, 0
	s.AttemptsTotal++
	s.Holder, s.LeaseMS, s.Fence, s.Offer = e.Holder, e.LeaseMS, p.Self, p.Self
	s.OfferedAt, s.AcceptedAt = e.At, e.At
	s.ClaimedAt, s.StartedAt, s.ProgressAt = p.Time{}, p.Time{}, p.Time{}
	clearReminder(s)
	s.EstimatedCompletion, s.EstimatedCompletionMS, s.RetryAt = p.Time{}, 0, p.Time{}
	s.Alternative, s.Conditions, s.TimedOut, s.Progress = "", nil, "", nil
	s.Retryable, s.RetryAfterMS = false, 0
	s.Reason, s.StuckReason, s.Denied = "", "", ""
	s.Absent, s.LapsedClaims = nil, 0
	endQueueClock(s)
	endAwait(s)
	receiveEnds(s)
	beginAsking(s)
	return nil
}

func applyRolledBack(s *p.State, e *p.RolledBack) error {
	if len(e.Result) > 0 || e.Blob != nil {
		s.ResultSeq = p.Self
	}
	useLast(s, e.Fence, e.Usage)
	s.Message, s.Inbox = cut(e.Reason), e.Inbox
	if e.Fence == 0 {
		recordEndRequest(s, e.By, e.Reason)
	}
	endAttempt(s)
	closeAs(s, p.OutcomeRolledBack, "returned", e.At)
	return nil
}

// Late results.

func applyResultParked(s *p.State, e *p.ResultParked) error {
	if e.Fence == 0 || e.Fence == s.Fence || s.Aggregate != nil {
		return fmt.Errorf("%w: a result parked under fence %d, which is not a lost one", ErrIllegal, e.Fence)
	}
	s.LateFences = append(slices.Clone(s.LateFences), e.Fence)
	if e.Agent == "" || e.Agent == s.Agent {
		use(s, e.Fence, e.Usage)
	} else if e.Usage != nil { // another agent has the handoff by now, and has not used that
		var more p.Usage
		s.Usage, more = s.Usage.AddFor(e.Agent, e.Fence, *e.Usage)
		charge(s, more)
	}
	if e.Malformed == "" {
		s.LateSeq, s.LateStatus = p.Self, e.Status
		s.LateVote, s.LateSetAside = e.Vote, cut(e.SetAside)
	}
	return nil
}

func applyLateResultUsed(s *p.State, e *p.LateResultUsed) error {
	if s.LateSeq == 0 || s.Held() {
		return fmt.Errorf("%w: a late result used, and there is none, or a holder is at work", ErrIllegal)
	}
	outcome := p.OutcomeSuccess
	if s.LateStatus == p.Partial {
		outcome = p.OutcomePartial
	}
	s.ResultSeq, s.Message, s.SetAside, s.Vote = s.LateSeq, "", s.LateSetAside, s.LateVote
	dropPending(s)
	closeAs(s, outcome, "late_result", e.At)
	return nil
}

// After the end.

func applyReturnSent(s *p.State, e *p.ReturnSent) error {
	if !hasReturnDue(*s) || e.Ticket == "" {
		return fmt.Errorf("%w: a return sent that is not expected", ErrIllegal)
	}
	s.ReturnTicket = e.Ticket
	return nil
}

func applyReturned(s *p.State, e *p.Returned) error {
	if !hasReturnDue(*s) {
		return fmt.Errorf("%w: returned, and no return is expected", ErrIllegal)
	}
	s.ReturnedAt = e.At
	if e.Delivered {
		s.Phase = p.PhaseReturned
	}
	if e.Inbox != "" {
		s.Inbox = e.Inbox
	}
	return nil
}

func applyRedriven(s *p.State, e *p.Redriven) error {
	if e.Ticket == "" || s.Outcome == p.OutcomeSuccess || s.Outcome == p.OutcomePartial { // a success whose return has arrived is in phase returned
		return fmt.Errorf("%w: redriven as %q after outcome %s", ErrIllegal, e.Ticket, s.Outcome)
	}
	s.RedrivenAs, s.Inbox = e.Ticket, ""
	return nil
}

func applyDismissed(s *p.State, _ *p.Dismissed) error {
	s.Inbox = ""
	return nil
}
