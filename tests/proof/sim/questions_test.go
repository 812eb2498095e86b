//go:build proof

package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

const (
	selfAnswered bug = "a question answered by the agent that asks it"
	answerMixed  bug = "an answer to one question taken for the next one"
)

func init() { bugs = append(bugs, selfAnswered, answerMixed) }

// meant is the text of an answer to a question, by which the judge knows which one it is for.
func meant(n int) string { return fmt.Sprint("to question ", n) }

// meddle is what the wrong ones try with a question: the agent that asks answers it, and the source
// sends what it has said to the question before.
func (l *simulation) meddle(ctx context.Context, b *broker.Broker, source string, s protocol.State) {
	asks := lifecycle.QuestionOf(s)
	switch d := dice(l.seed, "meddle", s.Ticket, asks.N) % 4; {
	case d == 0:
		answer := protocol.Answer{By: s.Agent, Question: asks.N, Text: meant(asks.N), Permit: true}
		_, err := b.Answer(ctx, s.Ticket, answer)
		if l.bug == selfAnswered && hasAnyCode(err, protocol.CodeForbidden) {
			_, _, _ = brokertest.Update(ctx, b, s.Ticket, func(h broker.Head, q lifecycle.Query) (lifecycle.Step, error) {
				return lifecycle.StepOf(h.State, &protocol.Answered{Meta: protocol.Meta{At: q.Now, By: answer.By}, Answer: answer})
			})
		}
	case asks.N > 1:
		late := protocol.Answer{By: source, Question: asks.N - 1, Text: meant(asks.N - 1), Permit: true}
		if l.bug == answerMixed {
			late.Question = asks.N
		}
		_, _ = b.Answer(ctx, s.Ticket, late)
	}
}

// checkAnswers: no question is answered by who asks it, or twice, and no answer is used for another
// question than it was meant for.
func (j *judge) checkAnswers(before protocol.State, events []protocol.Event) {
	for _, e := range events {
		answered, ok := e.(*protocol.Answered)
		if !ok {
			continue
		}
		by, n := answered.Answer.By, answered.Answer.Question
		asks := lifecycle.QuestionOf(before)
		switch {
		case by == protocol.Human:
		case before.Phase == protocol.Conditional && by == before.Agent, before.Phase != protocol.Conditional && slices.Contains(before.Chain, by):
			j.faultLocked("%s: %s answers what it asks itself", before.Ticket, by)
		case before.Phase == protocol.Conditional && by != before.Source && by != "lead":
			j.faultLocked("%s: %s answers, and is a stranger", before.Ticket, by)
		}
		text := answered.Answer.Text
		if n != asks.N || strings.HasPrefix(text, "to question ") && text != meant(asks.N) {
			j.faultLocked("%s: the answer %q, which names question %d, is used for question %d", before.Ticket, text, n, asks.N)
		}
	}
}
