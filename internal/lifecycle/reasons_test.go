package lifecycle

import (
	"slices"
	"testing"

	p "github.com/agenthandoff/handoff/protocol"
)

// Reasons lists the codes of all reasons that Decide gives for a reroute, an escalation or an end.
// A worker's own codes for its failures are not among them.
var Reasons = []string{reasonRefused, ReasonAcknowledgeTimeout, ReasonClaimsLapsed, reasonQueueTimeout, ReasonConditionTimeout, ReasonWorkTimeout,
	ReasonProgressTimeout, ReasonReturnTimeout, ReasonDeadline, reasonReroutesExhausted, ReasonNoFitAgent, ReasonConditionsExhausted,
	ReasonAttemptsExhausted, ReasonCrashLoop, reasonNoTaker, reasonNoAuthority, ReasonAggregated, ReasonAggregation,
	ReasonCancelled, reasonReturned, ReasonUndelivered, ReasonSourceEnded, ReasonDenied, ReasonAgentBack, ReasonApprovalDenied,
	ReasonApprovalTimeout, ReasonDeadlock, ReasonBreakerOpen, ReasonBudgetExhausted, reasonTooFewBids}

// TestReasonWords: each reason of Decide in words, with all of its facts and without any.
func TestReasonWords(t *testing.T) {
	cases := []struct {
		code  string
		facts p.Facts
		words string
	}{
		{reasonRefused, p.Facts{Agent: "a"}, "refused by a"},
		{ReasonAcknowledgeTimeout, p.Facts{Agent: "a", LimitMS: 30_000}, "a had no live worker within 30s"},
		{ReasonAcknowledgeTimeout, p.Facts{LimitMS: 60_000}, "no agent was found for it within 1m"},
		{reasonQueueTimeout, p.Facts{Agent: "a", LimitMS: 5_400_000}, "a did not take it within 1h30m"},
		{ReasonConditionTimeout, p.Facts{Agent: "a", LimitMS: 3_600_000}, "the question of a was not answered within 1h"},
		{ReasonWorkTimeout, p.Facts{Agent: "a", LimitMS: 1_500}, "no result within the work timeout of 1.5s"},
		{ReasonProgressTimeout, p.Facts{LimitMS: 600_000}, "no progress within the progress timeout of 10m"},
		{ReasonReturnTimeout, p.Facts{LimitMS: 86_400_000}, "no return within the return timeout of 24h"},
		{ReasonDeadline, p.Facts{}, "the deadline passed"},
		{reasonReroutesExhausted, p.Facts{Agent: "d", Causes: []string{reasonRefused}, Count: 3, Limit: 3},
			"refused by d, and it was rerouted 3 times of at most 3"},
		{reasonReroutesExhausted, p.Facts{Agent: "d", Causes: []string{ReasonAcknowledgeTimeout}, LimitMS: 30_000},
			"d had no live worker within 30s, and it was rerouted 0 times of at most 0"},
		{ReasonNoFitAgent, p.Facts{Agent: "a", Causes: []string{reasonRefused}}, "refused by a, and no other agent is fit"},
		{ReasonConditionsExhausted, p.Facts{Agent: "a", Count: 6, Limit: 5}, "a asked 6 times, at most 5 are allowed"},
		{ReasonAttemptsExhausted, p.Facts{Count: 3, Limit: 3}, "3 of 3 attempts failed"},
		{ReasonCrashLoop, p.Facts{Count: 3, Limit: 3}, "3 of 3 attempts failed: each time its worker vanished"},
		{reasonNoTaker, p.Facts{Agent: "a", Causes: []string{reasonRefused, ReasonNoFitAgent}},
			"refused by a, no other agent is fit, and its policy ends it there"},
		{reasonNoAuthority, p.Facts{Agent: "a", LimitMS: 30_000, Causes: []string{ReasonAcknowledgeTimeout, ReasonNoFitAgent}},
			"a had no live worker within 30s, no other agent is fit, and no authority is left"},
		{reasonNoAuthority, p.Facts{Agent: p.Human, Causes: []string{reasonRefused}}, "refused by human, and no authority is left"},
		{ReasonAggregated, p.Facts{Count: 2, Limit: 3, Failed: 1, Mode: p.AggregateMajority}, "2 of 3 in favour, 1 not; majority was asked for"},
		{ReasonAggregation, p.Facts{Count: 0, Limit: 3, Failed: 2, Cancelled: 1, Mode: p.AggregateAll},
			"0 of 3 succeeded, 2 did not (1 cancelled); all was asked for"},
		{ReasonCancelled, p.Facts{}, "cancelled on request"},
		{ReasonCancelled, p.Facts{Causes: []string{causeWorkerGone}}, "cancelled on request; its worker was gone"},
		{reasonReturned, p.Facts{Causes: []string{causeGraceOver}}, "returned on request; its worker did not stop in time"},
		{ReasonSourceEnded, p.Facts{}, "the attempt that handed it off ended without a result"},
		{ReasonClaimsLapsed, p.Facts{Agent: "a", Count: 3, Limit: 3}, "a claimed it 3 times and never acknowledged it"},
		{ReasonAgentBack, p.Facts{Agent: "a"}, "a is available again"},
		{ReasonBreakerOpen, p.Facts{Agent: "a"}, "the breaker of a is open"},
		{ReasonDenied, p.Facts{Agent: "src"}, "denied by src"},
		{ReasonApprovalDenied, p.Facts{Agent: "lead"}, "lead did not approve it"},
		{ReasonApprovalTimeout, p.Facts{Agent: "lead", LimitMS: 3_600_000}, "lead did not approve or deny it within 1h"},
		{ReasonDeadlock, p.Facts{Agent: "a"}, "the handoffs that hold the slots of a wait for it"},
		{ReasonBudgetExhausted, p.Facts{Count: 1200, Limit: 1000, Budget: "max_tokens"}, "its budget has run out: 1200 of 1000 tokens are used"},
		{ReasonBudgetExhausted, p.Facts{Count: 5, Limit: 5, Budget: "max_cost_micros"}, "its budget has run out: 5 of 5 millionths of cost are used"},
		{ReasonBudgetExhausted, p.Facts{Budget: "max_tokens"}, "its budget has run out: no tokens are left for it"},
		{ReasonBudgetExhausted, p.Facts{Budget: "max_cost_micros"}, "its budget has run out: no cost is left for it"},
		{ReasonUndelivered, p.Facts{Agent: "a"}, "it could not be delivered to a"},
		{reasonTooFewBids, p.Facts{Count: 1, Limit: 2}, "too few bids were made: 1 of 2"},
		{"exit", p.Facts{}, "exit"},
	}
	said := map[string]bool{}
	for _, c := range cases {
		said[c.code] = true
		if got := reasonWords(c.code, c.facts); got != c.words {
			t.Errorf("%s %+v: %q, want %q", c.code, c.facts, got, c.words)
		}
	}
	for _, code := range Reasons {
		if !said[code] || reasonWords(code, p.Facts{}) == code {
			t.Errorf("%s has no words", code)
		}
	}
}

// reasonOf is the reason that an event of Decide gives.
func reasonOf(e p.Event) (code string, facts *p.Facts, words string, ok bool) {
	switch e := e.(type) {
	case *p.Escalated:
		return e.ReasonCode, e.Facts, e.Reason, e.ReasonCode != ""
	case *p.Rerouted:
		return e.ReasonCode, e.Facts, e.Reason, e.ReasonCode != ""
	case *p.Closed:
		return e.Reason, e.Facts, e.Message, e.Message != ""
	}
	return "", nil, "", false
}

// checkReasons: what was decided says why, by a code that has words.
func (w *world) checkReasons(h *thread, before p.State, events []p.Event) {
	for _, e := range events {
		if offered, ok := e.(*p.Offered); ok && !slices.Contains(OfferReasons, offered.Reason) {
			w.fail(h, "offered for %q, which is no reason of an offer", offered.Reason)
		}
		code, facts, words, ok := reasonOf(e)
		if closed, ends := e.(*p.Closed); ends && !ok { // the worker's own word
			if before.Phase != p.PhaseFailed || closed.Outcome != p.OutcomeFailed {
				w.fail(h, "closed as %s (%s) without words", closed.Outcome, closed.Reason)
			}
			continue
		}
		switch e.EventType() {
		case p.EventEscalated, p.EventRerouted, p.EventClosed:
		default:
			continue
		}
		at := slices.Index(Reasons, code)
		if at < 0 || words == "" || facts != nil && slices.ContainsFunc(facts.Causes, unknownCause) {
			w.fail(h, "%s because of %q (%+v), in words %q: no reason of Decide", e.EventType(), code, facts, words)
		}
		w.hits.reasons[at]++
	}
}

func unknownCause(code string) bool {
	return !slices.Contains(Reasons, code) && code != causeWorkerGone && code != causeGraceOver
}
