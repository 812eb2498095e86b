package lifecycle

import (
	"fmt"
	"slices"

	p "github.com/agenthandoff/handoff/protocol"
)

// What an open handoff asks of others, and who may answer. No agent permits itself: neither the agent
// that asked, nor a stranger. Answers, denials, approvals, and what settles a question in another
// way (a take, a reroute) go by MayAnswer alone.

// QuestionKind is the kind of a question.
type QuestionKind string

const (
	AsksNothing    QuestionKind = ""
	AsksContext    QuestionKind = "context"    // an agent needs to know something before it begins
	AsksPermission QuestionKind = "permission" // an agent asks whether it may
	AsksApproval   QuestionKind = "approval"   // a gate asks whether an agent may have the handoff
	AsksAuthority  QuestionKind = "escalation" // it was passed up, or its deadline has passed
)

// Question is a question of an open handoff.
type Question struct {
	Kind QuestionKind
	// N is its number, counted from 1. No other question of the handoff has it.
	N int
}

// QuestionOf returns what a handoff asks now.
func QuestionOf(s p.State) Question {
	switch {
	case s.Closed:
	case s.Gate.First() == p.GateApproval:
		return Question{AsksApproval, s.Gate.Question}
	case s.Phase == p.Conditional && s.Conditions != nil:
		if len(s.Conditions.NeedsPermission) > 0 {
			return Question{AsksPermission, s.Conditions.Question}
		}
		return Question{AsksContext, s.Conditions.Question}
	case escalated(s):
		return Question{AsksAuthority, s.EscalationQuestion}
	}
	return Question{}
}

// ask counts one more question, and returns its number.
func ask(s *p.State) int {
	s.Questions++
	return s.Questions
}

// askAuthority asks the authority that has a handoff by now; with none above it asks nothing.
func askAuthority(s *p.State) {
	s.EscalationQuestion = 0
	if len(s.Chain) > 0 {
		s.EscalationQuestion = ask(s)
	}
}

// MayAnswer returns nil if by may settle what a handoff asks, in whatever way. It is the one place
// that knows who may. A person may; so may, for each kind,
//
//   - context, permission: the source, and each authority above the agent that asks;
//   - approval: the approver, and each authority above it; not the source, nor the agent that would
//     get the handoff;
//   - escalation, deadline: the authority that has it, and each above that; not an agent that passed
//     it up.
func MayAnswer(s p.State, by string, d *Directory) *p.Error {
	var may bool
	var who string
	switch QuestionOf(s).Kind {
	case AsksContext, AsksPermission:
		may = by == s.Source || answersFor(by, authorityOf(s.Agent, d), d)
		may = may && by != s.Agent
		who = fmt.Sprintf("its source %s, an authority above %s, or a person (human); never %s, which asks", s.Source, s.Agent, s.Agent)
	case AsksApproval:
		may = by != s.Source && by != s.Gate.Agent && answersFor(by, s.Gate.Approver, d)
		who = fmt.Sprintf("%s, an authority above it, or a person (human); never its source or its target", s.Gate.Approver)
	case AsksAuthority:
		may = !slices.Contains(s.Chain, by) && answersFor(by, s.Agent, d)
		who = fmt.Sprintf("%s, which has it, an authority above that, or a person (human); never an agent that passed it up", s.Agent)
	default:
		return p.Errorf(p.CodeIllegal, "ticket", "%s is %s and asks nothing; only a conditional or an escalated handoff can be answered", s.Ticket, s.Phase)
	}
	if by == p.Human || may && by != "" {
		return nil
	}
	return p.Errorf(p.CodeForbidden, "by", "%s may not decide about %s: that is for %s", by, s.Ticket, who)
}

// maySettle refuses a take or a reroute that would settle an open question, by one who may
// not answer it.
func maySettle(s p.State, by string, d *Directory) error {
	if QuestionOf(s).Kind == AsksNothing {
		return nil
	}
	if err := MayAnswer(s, by, d); err != nil {
		return err
	}
	return nil
}

// checkQuestion refuses an answer that names no question, or another one than stands open.
func checkQuestion(s p.State, n int) error {
	switch asks := QuestionOf(s); {
	case n == 0:
		return p.Errorf(p.CodeMissing, "question", "is missing: an answer names what it answers; %s asks question %d now (%s)", s.Ticket, asks.N, asks.Kind)
	case n != asks.N:
		return p.Errorf(p.CodeConflict, "question", "%s asks question %d by now (%s), not %d; nothing was answered", s.Ticket, asks.N, asks.Kind, n)
	}
	return nil
}

func staleAnswered(s *p.State, e *p.Answered) string {
	asks := QuestionOf(*s)
	switch {
	case asks.Kind == AsksNothing || asks.Kind == AsksApproval:
		return "nothing is asked"
	case e.Answer.Question == 0 || e.Answer.Question != asks.N:
		return fmt.Sprintf("it answers question %d, the current one is %d", e.Answer.Question, asks.N)
	}
	return ""
}

// checkQuestions: no question has a number that was never given, and no two have the same.
func checkQuestions(s p.State) error {
	numbers := []int{s.EscalationQuestion}
	if s.Conditions != nil {
		numbers = append(numbers, s.Conditions.Question)
	}
	if s.Gate.First() == p.GateApproval {
		numbers = append(numbers, s.Gate.Question)
	}
	for i, n := range numbers {
		if n < 0 || n > s.Questions || n == 0 && i > 0 || n != 0 && slices.Contains(numbers[:i], n) {
			return fmt.Errorf("questions %v of %d", numbers, s.Questions)
		}
	}
	return nil
}
