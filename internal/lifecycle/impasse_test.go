package lifecycle

import (
	"testing"

	p "github.com/agenthandoff/handoff/protocol"
)

// TestImpasse: which waits for a person are impasses.
func TestImpasse(t *testing.T) {
	up := func(change func(*p.State)) p.State {
		s := p.State{Phase: p.Pending}
		s.Agent, s.Chain, s.EscalationLevel, s.EscalationQuestion = p.Human, []string{"coder"}, 1, 1
		change(&s)
		return s
	}
	atBudget := func(a p.Account) p.State {
		most := int64(10)
		s := p.State{Phase: p.AwaitingApproval, Gate: &p.Gate{GateTerms: p.GateTerms{Waits: []p.GateKind{p.GateBudget}}}, Account: &a}
		s.Limits = &p.Limits{MaxTokens: &most}
		return s
	}
	for name, c := range map[string]struct {
		s    p.State
		want Impasse
	}{
		"refused":                     {up(func(s *p.State) { s.Refused, s.Reason = []string{"coder"}, ReasonNoFitAgent }), ImpasseRefused},
		"failed":                      {up(func(s *p.State) { s.AttemptsTotal, s.Reason = 3, ReasonAttemptsExhausted }), ImpasseFailed},
		"failed, then refused":        {up(func(s *p.State) { s.Refused, s.AttemptsTotal = []string{"coder"}, 1 }), ImpasseFailed},
		"the work took too long":      {up(func(s *p.State) { s.AttemptsTotal, s.Reason = 1, ReasonWorkTimeout }), ImpasseFailed},
		"its deadline passed":         {up(func(s *p.State) { s.Reason = ReasonDeadline }), ImpasseFailed},
		"a budget":                    {atBudget(p.Account{Used: p.Amounts{Tokens: 6}, Spent: p.Amounts{Tokens: 4}}), ImpasseBudget},
		"a budget, with a child open": {atBudget(p.Account{Used: p.Amounts{Tokens: 10}, Reserved: p.Amounts{Tokens: 5}}), ImpasseBudget},
		"children have some of it":    {atBudget(p.Account{Used: p.Amounts{Tokens: 5}, Reserved: p.Amounts{Tokens: 5}}), NoImpasse},
		"a child returned some":       {atBudget(p.Account{Used: p.Amounts{Tokens: 5}, Spent: p.Amounts{Tokens: 2}}), NoImpasse},
		"an approval":                 {p.State{Phase: p.AwaitingApproval, Gate: &p.Gate{GateTerms: p.GateTerms{Waits: []p.GateKind{p.GateApproval}}}}, NoImpasse},
		"a question":                  {p.State{Phase: p.Conditional, Conditions: &p.Conditions{NeedsContext: []string{"which?"}}}, NoImpasse},
		"a question, passed up":       {up(func(s *p.State) { s.Reason = ReasonConditionTimeout }), NoImpasse},
		"passed up on purpose":        {up(func(s *p.State) { s.Reason = reasonEscalated }), NoImpasse},
		"an agent is absent":          {up(func(s *p.State) { s.Absent, s.Reason = []p.Absence{{Agent: "coder"}}, ReasonAcknowledgeTimeout }), NoImpasse},
		"undelivered":                 {up(func(s *p.State) { s.Reason = ReasonUndelivered }), NoImpasse},
		"a person works on it":        {up(func(s *p.State) { s.Phase, s.Fence, s.Holder = p.Working, 1, "w" }), NoImpasse},
		"for a person":                {p.State{Phase: p.Pending, Summary: p.Summary{}}, NoImpasse},
		"closed":                      {up(func(s *p.State) { s.Closed = true }), NoImpasse},
	} {
		if got := ImpasseOf(c.s); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
