package lifecycle

import (
	"errors"
	"fmt"
	"slices"

	p "github.com/agenthandoff/handoff/protocol"
)

const (
	// countMax bounds what a state counts: attempts, reroutes, escalations, rounds.
	countMax = 1_000_000
	// spanMaxMS bounds the durations of a state, so that sums of instants stay instants.
	spanMaxMS = int64(10 * 365 * 24 * 3600 * 1000)
)

// CheckRead checks a state that was read at seq, in a handoff's own subject: fields,
// ranges and what is true after every append (Check). What passes, the core can decide
// about and what it calls for has subjects. Any other state makes its handoff stuck.
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
	if err := Check(p.State{}, *s, now); err != nil {
		return fmt.Errorf("state: %w", err)
	}
	return nil
}

// checkNames: what becomes a token of a subject is one.
func checkNames(s *p.State) error {
	for _, ticket := range [...]struct {
		field, value string
		must         bool
	}{
		{"state.ticket", s.Ticket, true}, {"state.parent", s.Parent, s.N > 0}, {"state.group", s.Group, false}, {"state.return_of", s.ReturnOf, false},
		{"state.origin", s.Origin, false}, {"state.return_ticket", s.ReturnTicket, false}, {"state.redriven_as", s.RedrivenAs, false}, {"state.chain_of", s.ChainOf, false}, {"state.call_of", s.CallOf, false}, {"state.chain_end.ticket", endTicket(s), false},
	} {
		if ticket.value == "" && !ticket.must {
			continue
		}
		if _, err := p.ParseTicket(ticket.value); err != nil {
			return fmt.Errorf("%s: %.64q is no ticket", ticket.field, ticket.value)
		}
	}
	var gate p.Gate
	if s.Gate != nil {
		gate = *s.Gate
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

// endTicket is the end of the chain that a handoff began; empty where that is not known.
func endTicket(s *p.State) string {
	if s.ChainEnd == nil {
		return ""
	}
	return s.ChainEnd.Ticket
}

// checkWords: a field that is one of some words is one of them.
func checkWords(s *p.State) error {
	return errors.Join(
		oneOf("state.phase", s.Phase, p.Phases), oneOf("state.type", s.Type, p.Types), oneOf("state.priority", s.Priority, p.Priorities),
		checkGateWords(s.Gate),
		orEmpty("state.outcome", s.Outcome, p.Outcomes), orEmpty("state.chain_end.outcome", endOf(*s).Outcome, p.Outcomes), orEmpty("state.timed_out", s.TimedOut, p.Clocks),
	)
}

// checkGateWords: a gate waits for what the core knows, in its order.
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
	return fmt.Errorf("%s: %.64q is none of %v", field, string(word), words)
}

// checkCounts: numbers and instants that the core computes with.
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
		return fmt.Errorf("state.lease_ms: a holder's is %d", s.LeaseMS)
	case s.Held() && s.Offer == 0:
		return errors.New("state.offer: a holder has none")
	case s.Offer != 0 && s.OfferedAt.IsZero():
		return errors.New("state.offered_at: of an offer is missing")
	case s.Fence != 0 && s.AcceptedAt.IsZero():
		return errors.New("state.accepted_at: of a holder is missing")
	case s.PackageSeq == 0:
		return errors.New("state.package_seq: is missing")
	case s.SubmittedAt.IsZero(), s.UpdatedAt.IsZero():
		return errors.New("state.submitted_at, state.updated_at: are missing")
	}
	return nil
}

// checkGroup: children and group have the size that they may have, and belong together.
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
