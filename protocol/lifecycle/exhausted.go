package lifecycle

import (
	"fmt"
	"slices"

	p "github.com/agenthandoff/handoff/protocol"
)

// A budget that has run out: the holder is asked to hand back what it has, and no further attempt
// of an agent begins. What children have spent counts, what is set aside for open ones does not: it
// may come back. What is delivered to an agent (a return, an answer) waits for more of the budget,
// or for a person, who needs none; what would be tried again ends, or waits, as the limits say.

// budgets are the limits that work uses up.
var budgets = []string{"max_tokens", "max_cost_micros"}

// taken is how much of a budget is used and spent, and what it is in all.
func taken(s *p.State, budget string) (used, limit int64, bounded bool) {
	if s.Account == nil {
		return 0, 0, false
	}
	limit, bounded = s.Limits.Of(budget)
	return s.Account.Used.Of(budget) + s.Account.Spent.Of(budget), limit + s.Account.Raised.Of(budget), bounded
}

// exhaustedBudget is the budget that has run out; empty is none.
func exhaustedBudget(s *p.State) string {
	if s.Account == nil || s.Aggregate != nil {
		return ""
	}
	for _, budget := range budgets {
		if used, limit, bounded := taken(s, budget); bounded && used >= limit {
			return budget
		}
	}
	return ""
}

// ExhaustedBudget names the limit that has run out (max_tokens or max_cost_micros); empty is none.
func ExhaustedBudget(s p.State) string { return exhaustedBudget(&s) }

// wantsRaise refuses an answer to a handoff that waits for its budget: there is no question.
func wantsRaise(s p.State) error {
	return p.Errorf(p.CodeIllegal, "limits."+ExhaustedBudget(s), "%s waits for more of its budget, and for no answer; raise the limit, or cancel it", s.Ticket)
}

// exhaustion is the reason of what follows from a budget that has run out.
func exhaustion(s *p.State, budget string) reason {
	used, limit, _ := taken(s, budget)
	why := reason{code: ReasonBudgetExhausted}.withCount(int(used), int(limit))
	why.facts.Budget = budget
	return why
}

// BudgetLeft is what a holder is told of its budgets, from the time on when they are nearly used
// up: what is left of each that is bounded. Nil is that there is enough, or no bound.
func BudgetLeft(s p.State) *p.BudgetLeft {
	var left p.BudgetLeft
	near := false
	for _, budget := range budgets {
		used, limit, bounded := taken(&s, budget)
		if !bounded {
			continue
		}
		rest := max(0, limit-used)
		near = near || used*100 >= limit*BudgetNearPercent
		if budget == "max_tokens" {
			left.Tokens = &rest
		} else {
			left.CostMicros = &rest
		}
	}
	if !near {
		return nil
	}
	return &left
}

// BudgetNearPercent is how much of a budget is used when its holder is told of it.
const BudgetNearPercent = 80

// stopAtBudget asks a holder that has used up its budget to hand back what it has.
func stopAtBudget(s *p.State, now p.Time) []p.Event {
	budget := exhaustedBudget(s)
	if budget == "" || s.Fence == 0 || s.EscalationLevel > 0 || s.Agent == p.Human || s.CancelRequested || s.Limits.OnExhausted == p.BudgetAsk {
		return nil
	}
	return []p.Event{&p.CancelRequested{Meta: p.Meta{At: now, By: By}, Return: true,
		Reason: ReasonBudgetExhausted + ": " + usedWords(exhaustion(s, budget).facts)}}
}

// withinBudget returns events of a decision, up to the one that would begin another attempt where a
// budget has run out by then: that is gated, or the end, instead.
func withinBudget(s p.State, d *Directory, events []p.Event, now p.Time) []p.Event {
	if s.Account == nil || s.Closed {
		return events
	}
	if len(events) == 0 {
		return stopAtBudget(&s, now)
	}
	for i, e := range events {
		if budget := exhaustedBudget(&s); budget != "" && beginsAttempt(&s, e) {
			return append(slices.Clone(events[:i]), noAttempt(s, events[i:], budget, p.Meta{At: now, By: By}))
		}
		if applyAll(&s, []p.Event{e}) != nil {
			return events // which is a bug, and is found as one
		}
	}
	return events
}

// beginsAttempt reports whether an agent would begin to work after an event.
func beginsAttempt(s *p.State, e p.Event) bool {
	switch e := e.(type) {
	case *p.RetryScheduled:
		return s.Agent != p.Human
	case *p.Rerouted:
		return e.ReasonCode != ReasonAgentBack && e.To != p.Human
	case *p.Offered:
		return e.Agent != p.Human
	}
	return false
}

// delivers reports whether an offer brings an agent what another one has said, and repeats no work.
func delivers(s *p.State, offer string) bool {
	return offer == OfferReturn || offer == OfferAnswer || s.Type == p.Escalation && s.AttemptsTotal == 0 || s.ReturnOf != "" && s.AttemptsTotal == 0
}

// noAttempt ends a handoff that has nothing left to work with, or lets a person decide. What would
// have been delivered waits for the person, whatever the limits say.
func noAttempt(s p.State, instead []p.Event, budget string, meta p.Meta) p.Event {
	why := exhaustion(&s, budget)
	terms := p.GateTerms{Waits: []p.GateKind{p.GateBudget}, Agent: s.Agent, Offer: OfferRetry, Why: why.words(), Approver: p.Human}
	for _, e := range instead {
		switch e := e.(type) {
		case *p.Offered:
			terms.Agent, terms.Offer = e.Agent, e.Reason
		case *p.Rerouted:
			terms.Agent, terms.Reason, terms.Facts = e.To, e.ReasonCode, e.Facts
		}
	}
	if gated := (&p.Gated{Meta: meta, GateTerms: terms}); Legal(s.Phase, false, p.EventGated) && (s.Limits.OnExhausted == p.BudgetAsk || delivers(&s, terms.Offer)) {
		return gated
	}
	if late := lateResult(s, meta); late != nil && Legal(s.Phase, false, late.EventType()) {
		return late
	}
	return closed(meta, p.OutcomeFailed, why, p.Human)
}

// estimate is what a lost attempt is charged that has reported nothing: it has read its package.
func estimate(s *p.State, meta p.Meta) []p.Event {
	if s.Account == nil || s.Fence == 0 || s.Meter == 0 || s.Limits.MaxTokens == nil || !s.Usage.Said(s.Fence).IsZero() {
		return nil
	}
	return []p.Event{&p.Spent{Meta: meta, Fence: s.Fence, Usage: p.Usage{Tokens: s.Meter}, Source: p.UsageEstimate}}
}

// charge counts what an attempt has used against the limits.
func charge(s *p.State, more p.Usage) {
	if s.Account == nil || s.Closed {
		return
	}
	account := *s.Account
	account.Used = account.Used.Plus(s.Limits.Bounded(p.Amounts{Tokens: more.Tokens, CostMicros: more.CostMicros}))
	s.Account = &account
	countOver(s)
}

// budgetWords say which budget has run out.
func budgetWords(f p.Facts) string {
	return "its budget has run out: " + usedWords(f)
}

func usedWords(f p.Facts) string {
	if f.Budget == "max_cost_micros" {
		return fmt.Sprintf("%d of %d millionths of cost are used", f.Count, f.Limit)
	}
	return fmt.Sprintf("%d of %d tokens are used", f.Count, f.Limit)
}
