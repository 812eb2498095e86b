package lifecycle

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// Check verifies that a state is possible. An error is a bug of its writer. No decision depends on
// it. Tests also check that one state can follow another (tests/verify).
func Check(s p.State, now time.Time) error {
	if err := cmp.Or(checkShape(s), checkGate(s), checkQuestions(s), checkBids(s), checkAccount(s)); err != nil {
		return err
	}
	if s.Closed {
		return checkClosed(s, now)
	}
	return checkOpen(s, now)
}

// checkShape checks that the parts of a state agree.
func checkShape(s p.State) error {
	held := s.Phase == p.PhaseAccepted || s.Phase == p.Working
	switch {
	case s.Closed && (s.Outcome == "" || s.ClosedAt.IsZero() || s.Held() || s.Reason == "" && !s.ReturnedAt.After(s.ClosedAt) && s.Phase != p.Complete && s.Phase != p.PhaseReturned):
		return fmt.Errorf("closed without an outcome, an instant or a reason, or with a holder")
	case s.Closed && closedPhase[s.Outcome] != s.Phase && (s.Phase != p.PhaseReturned || s.ReturnedAt.IsZero()):
		return fmt.Errorf("closed as %s in %s", s.Outcome, s.Phase)
	case !s.Closed && (s.Outcome != "" || s.Phase == p.Complete || s.Phase == p.Cancelled || s.Phase == p.PhaseReturned):
		return fmt.Errorf("open in %s with outcome %q", s.Phase, s.Outcome)
	case !s.Closed && (s.ReturnTicket != "" || s.ChainEnd != nil || !s.ReturnedAt.IsZero() || s.RedrivenAs != "" || s.Inbox != ""):
		return fmt.Errorf("open, and its end is spoken of")
	case held != (s.Fence != 0), held && !s.Held(), s.Held() && !held && s.Phase != p.Pending:
		return fmt.Errorf("held by %q with fence %d in %s", s.Holder, s.Fence, s.Phase)
	case isClaimed(s) && s.ClaimedAt.IsZero(), !isClaimed(s) && s.AckWithinMS != 0:
		return fmt.Errorf("claimed by %q at %s, to be acknowledged within %d ms, in %s", s.Holder, s.ClaimedAt, s.AckWithinMS, s.Phase)
	case s.Usage != nil && len(s.Usage.Attempts) > p.AttemptsUsageMax:
		return fmt.Errorf("remembers the usage of %d attempts", len(s.Usage.Attempts))
	case s.Attempt < 0 || s.AttemptsTotal < s.Attempt || held && s.Attempt < 1:
		return fmt.Errorf("attempt %d of %d in all", s.Attempt, s.AttemptsTotal)
	case s.EscalationLevel != authorityLevel(&s):
		return fmt.Errorf("level %d, chain %s", s.EscalationLevel, s.Chain)
	case s.Aggregate != nil && (s.Held() || s.Agent != "" || s.Offer != 0 || s.AttemptsTotal != 0):
		return fmt.Errorf("a group with agent %q, holder %q, offer %d", s.Agent, s.Holder, s.Offer)
	case s.Children != nil && (s.Children.Closed.Without(s.Children.Made) != "" || s.Children.Succeeded.Without(s.Children.Closed) != "" ||
		s.Children.Cancelled.Without(s.Children.Closed) != "" || s.Children.Cancelled.And(s.Children.Succeeded) != "" ||
		s.Children.Awaited.Without(s.Children.Made) != "" || s.Children.Returning.Without(s.Children.Made) != "" || s.Children.Received.Without(s.Children.Closed) != "" || s.Children.After.Without(s.Children.Made) != "" || s.Children.After.And(s.Children.Awaited) != "" || s.Children.Undelivered.Without(s.Children.Made) != "" || s.Children.Made.Len() > s.Children.Count):
		return fmt.Errorf("children %+v", *s.Children)
	case s.Children != nil && s.Children.After != "" && s.Closed && s.Outcome != p.OutcomeSuccess && s.Outcome != p.OutcomePartial:
		return fmt.Errorf("closed as %s, and children begin with its result", s.Outcome)
	case GoesOn(s) && (s.Outcome != p.OutcomeSuccess && s.Outcome != p.OutcomePartial || !s.Children.Made.Has(s.Children.Next-1)):
		return fmt.Errorf("closed as %s, and its chain goes on with child %d", s.Outcome, s.Children.Next-1)
	case AwaitsChain(s) && (s.ReturnTicket != "" || !s.ReturnedAt.IsZero()):
		return fmt.Errorf("it has the state of a return, and its chain has not ended")
	case IsProbing(s) && s.Phase != p.Pending && !held:
		return fmt.Errorf("a probe in %s", s.Phase)
	case s.Phase == p.AwaitingSource && (!s.AwaitsSource || s.Held() || s.Offer != 0):
		return fmt.Errorf("awaits its source, with holder %q and offer %d", s.Holder, s.Offer)
	case s.Children != nil && s.Children.Awaited != "" && s.Phase != p.Conditional:
		return fmt.Errorf("waits for children in %s", s.Phase)
	case len(s.LateFences) > p.LateResultsMax || slices.Contains(s.LateFences, s.Fence) && s.Fence != 0:
		return fmt.Errorf("late results of %d, fence %d", s.LateFences, s.Fence)
	}
	return nil
}

// checkClosed checks that a closed handoff has no wake-up, is in no queue, and keeps only duties
// that it can fulfil.
func checkClosed(s p.State, now time.Time) error {
	duties := DutiesOf(s)
	switch {
	case duties.Offer || duties.WakeUp || !Wake(s).IsZero() || !NextReconcile(s, now).IsZero():
		return fmt.Errorf("closed, and still has duties: %+v", duties)
	case duties.Return && !s.ReturnedAt.IsZero(), (duties.Return || duties.CancelChildren) && !HasPendingDuties(s):
		return fmt.Errorf("closed, owes %t, with duties %+v", HasPendingDuties(s), duties)
	case duties.Chain && !HasPendingDuties(s), duties.Chain && duties.Return:
		return fmt.Errorf("waits for its chain, with duties %+v", duties)
	case duties.Bids, duties.BidAnswer && !HasPendingDuties(s):
		return fmt.Errorf("closed, and waits for bids or for the answer to one, with duties %+v", duties)
	case duties.CancelChildren && !duties.Mark:
		return fmt.Errorf("children are cancelled, and their ends not recorded")
	}
	return nil
}

// checkOpen checks that something advances every open handoff in time.
func checkOpen(s p.State, now time.Time) error {
	next, clock := NextReconcile(s, now), wakeAfter(s, now)
	duties, lapses := DutiesOf(s), ClaimDue(s)
	switch {
	case lapses.After(now) && next.After(lapses) && !s.CancelRequested:
		return fmt.Errorf("claimed, and next looked at %s after the time to acknowledge", next.Sub(lapses))
	case !duties.WakeUp || !next.After(now):
		return fmt.Errorf("open, and never looked at again")
	case !clock.IsZero() && next.After(clock):
		return fmt.Errorf("next looked at %s after a clock runs out", next.Sub(clock))
	case duties.Offer != (s.Phase == p.Pending && !s.Held() && s.Offer != 0), duties.Return:
		return fmt.Errorf("duties %+v in %s", duties, s.Phase)
	case (s.Aggregate != nil || isSuspended(s)) && !duties.Mark:
		return fmt.Errorf("waits for children, and no supervisor records their ends")
	case Deadline(s).After(now) && next.After(Deadline(s)):
		return fmt.Errorf("next looked at %s after the deadline", next.Sub(Deadline(s)))
	case Wake(s).IsZero():
		return fmt.Errorf("open, and never wakes")
	}
	return nil
}

const (
	// countMax bounds the counters of a state: attempts, reroutes, escalations, rounds.
	countMax = 1_000_000
	// spanMaxMS bounds the durations of a state, so that sums of instants stay instants.
	spanMaxMS = int64(10 * 365 * 24 * 3600 * 1000)
)

// CheckRead checks a state that was read at seq, in a handoff's own subject: fields, ranges and the
// invariants after every append (Check). The core can decide about a valid state, and its duties
// have valid subjects. An invalid state makes its handoff stuck.
func CheckRead(ticket string, seq uint64, s *p.State) error {
	for _, check := range [...]func(*p.State) error{checkNames, checkWords, checkCounts, checkGroup} {
		if err := check(s); err != nil {
			return err
		}
	}
	if s.Ticket != ticket {
		return fmt.Errorf("state.ticket: names another handoff, %.64q", s.Ticket)
	}
	for _, at := range [...]struct {
		field string
		seq   uint64
	}{{"package_seq", s.PackageSeq}, {"offer", s.Offer}, {"fence", s.Fence}, {"result_seq", s.ResultSeq}, {"late_seq", s.LateSeq}} {
		if at.seq > seq {
			return fmt.Errorf("state.%s: %d comes after the entry that names it", at.field, at.seq)
		}
	}
	if err := p.CheckPolicy("state.policy", &s.Policy); err != nil {
		return err
	}
	now := s.UpdatedAt
	if s.SubmittedAt.After(now) {
		now = s.SubmittedAt
	}
	if err := Check(*s, now); err != nil {
		return fmt.Errorf("state: %w", err)
	}
	return nil
}

// checkNames checks the names that become tokens of a subject.
func checkNames(s *p.State) error {
	var gate p.Gate
	if s.Gate != nil {
		gate = *s.Gate
	}
	var end p.ChainEnd
	if s.ChainEnd != nil {
		end = *s.ChainEnd
	}
	for _, ticket := range [...]struct {
		field, value string
		must         bool
	}{
		{"state.ticket", s.Ticket, true}, {"state.parent", s.Parent, s.N > 0}, {"state.group", s.Group, false}, {"state.return_of", s.ReturnOf, false},
		{"state.origin", s.Origin, false}, {"state.return_ticket", s.ReturnTicket, false}, {"state.redriven_as", s.RedrivenAs, false}, {"state.chain_of", s.ChainOf, false}, {"state.call_of", s.CallOf, false}, {"state.chain_end.ticket", end.Ticket, false},
	} {
		if ticket.value == "" && !ticket.must {
			continue
		}
		if _, err := p.ParseTicket(ticket.value); err != nil {
			return fmt.Errorf("%s: %.64q is no ticket", ticket.field, ticket.value)
		}
	}
	for _, id := range [...]struct {
		field, value string
		must         bool
	}{
		{"state.source", s.Source, true}, {"state.agent", s.Agent, s.Offer != 0 || s.Held()},
		{"state.gate.agent", gate.Agent, false}, {"state.gate.approver", gate.Approver, false},
		{"state.holder", s.Holder, false}, {"state.target.agent", s.Target.Agent, false},
	} {
		if id.value == "" && !id.must {
			continue
		}
		if err := p.CheckID(id.field, id.value); err != nil {
			return err
		}
	}
	return checkBidders(s.Bidding)
}

// checkWords checks the fields that have a fixed set of words.
func checkWords(s *p.State) error {
	return errors.Join(
		oneOf("state.phase", s.Phase, p.Phases), oneOf("state.type", s.Type, p.Types), oneOf("state.priority", s.Priority, p.Priorities),
		checkGateWords(s.Gate),
		orEmpty("state.outcome", s.Outcome, p.Outcomes), orEmpty("state.chain_end.outcome", endOf(*s).Outcome, p.Outcomes), orEmpty("state.timed_out", s.TimedOut, p.Clocks),
	)
}

// checkGateWords checks that a gate waits only for known kinds, in their order.
func checkGateWords(gate *p.Gate) error {
	if gate == nil {
		return nil
	}
	for i, kind := range gate.Waits {
		if err := oneOf("state.gate.waits", kind, p.GateKinds[min(i, len(p.GateKinds)):]); err != nil {
			return err
		}
	}
	if gate.Level < 0 || gate.Level > countMax || gate.TimeoutMS < 0 || gate.TimeoutMS > spanMaxMS {
		return fmt.Errorf("state.gate: level %d, timeout_ms %d", gate.Level, gate.TimeoutMS)
	}
	return orEmpty("state.gate.on_timeout", gate.OnTimeout, []p.ApprovalTimeout{p.ApprovalEscalate, p.ApprovalClose})
}

func orEmpty[W ~string](field string, word W, words []W) error {
	if word == "" {
		return nil
	}
	return oneOf(field, word, words)
}

func oneOf[W ~string](field string, word W, words []W) error {
	if slices.Contains(words, word) {
		return nil
	}
	return fmt.Errorf("%s: %.64q is not one of %v", field, string(word), words)
}

// checkCounts checks the numbers and instants that the core computes with.
func checkCounts(s *p.State) error {
	for _, n := range [...]struct {
		field string
		value int
	}{
		{"n", s.N}, {"attempt", s.Attempt}, {"attempts_total", s.AttemptsTotal}, {"leases_lost", s.LeasesLost}, {"reroutes", s.Reroutes}, {"escalation_level", s.EscalationLevel},
		{"condition_rounds", s.ConditionRounds}, {"questions", s.Questions}, {"escalation_question", s.EscalationQuestion}, {"supplements", s.Supplements}, {"escalations", s.Escalations}, {"return_timeouts", s.ReturnTimeouts}, {"retries", s.Retries},
	} {
		if n.value < 0 || n.value > countMax {
			return fmt.Errorf("state.%s: %d is not from 0 to %d", n.field, n.value, countMax)
		}
	}
	for _, ms := range [...]struct {
		field string
		value int64
	}{{"lease_ms", s.LeaseMS}, {"ack_within_ms", s.AckWithinMS}, {"retry_after_ms", s.RetryAfterMS}, {"return_ms", s.ReturnMS}, {"estimated_completion_ms", s.EstimatedCompletionMS}} {
		if ms.value < -spanMaxMS || ms.value > spanMaxMS {
			return fmt.Errorf("state.%s: %d is over %d", ms.field, ms.value, spanMaxMS)
		}
	}
	switch {
	case s.Held() && s.LeaseMS <= 0:
		return fmt.Errorf("state.lease_ms: %d, although there is a holder", s.LeaseMS)
	case s.Held() && s.Offer == 0:
		return errors.New("state.offer: missing, although there is a holder")
	case s.Offer != 0 && s.OfferedAt.IsZero():
		return errors.New("state.offered_at: missing, although there is an offer")
	case s.Fence != 0 && s.AcceptedAt.IsZero():
		return errors.New("state.accepted_at: missing, although there is a holder")
	case s.PackageSeq == 0:
		return errors.New("state.package_seq: is missing")
	case s.SubmittedAt.IsZero(), s.UpdatedAt.IsZero():
		return errors.New("state.submitted_at, state.updated_at: are missing")
	}
	return nil
}

// checkGroup checks that children and group are within their limits, and consistent.
func checkGroup(s *p.State) error {
	if c := s.Children; c != nil {
		if c.Count < 0 || c.Count > p.ChildrenMax {
			return fmt.Errorf("state.children.count: %d is not from 0 to %d", c.Count, p.ChildrenMax)
		}
		if c.Next < 0 || c.Next > c.Count {
			return fmt.Errorf("state.children.next: %d is not from 0 to %d", c.Next, c.Count)
		}
		if len(c.Keys)%len(p.ChildKey{}.Cell(0)) != 0 || len(c.Keys)/len(p.ChildKey{}.Cell(0)) > c.Count {
			return fmt.Errorf("state.children.keys: has %d characters for %d children", len(c.Keys), c.Count)
		}
		for _, set := range [...]p.Bits{c.Made, c.Closed, c.Succeeded, c.Cancelled, c.Awaited, c.Returning, c.Received, c.Dropped, c.Asked, c.After, c.Undelivered} {
			if !set.Below(c.Count) {
				return fmt.Errorf("state.children: names ordinals that are not below %d", c.Count)
			}
		}
	}
	a := s.Aggregate
	switch {
	case a == nil:
		return nil
	case s.Children == nil:
		return errors.New("state.children: a group has none")
	case a.Size < 1 || a.Size > p.ChildrenMax || !a.Counted.Below(a.Size):
		return fmt.Errorf("state.aggregate: a group of %d, at most %d are allowed", a.Size, p.ChildrenMax)
	}
	return oneOf("state.aggregate.mode", a.Mode, p.Aggregations)
}
