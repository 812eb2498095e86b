// Package assist asks a command or a model for what words alone do not decide: a summary of a
// conversation, and the agent for a task. What it asks has its secrets taken out.
package assist

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/redact"
)

const (
	// Timeout bounds one question, with its second try.
	Timeout = 30 * time.Second
	// QuestionBytesMax is the longest question, as JSON.
	QuestionBytesMax = 4 << 20
	// AnswerBytesMax is the longest answer.
	AnswerBytesMax = 64 << 10
)

// Who answers.
const (
	ByCommand = "command"
	ByModel   = "model"
)

// Asker answers questions. Its implementations are Command and Chat.
type Asker interface {
	// Ask returns the answer to a question, without the blanks around it. An answer has words, is
	// valid UTF-8 and no longer than AnswerBytesMax. A question takes at most Timeout.
	Ask(ctx context.Context, q Question) (string, error)
	// By is who answers: ByCommand or ByModel.
	By() string
}

// Question is what is asked. Redact first takes the secrets out of its input.
type Question struct {
	Instructions string // for a model; a command knows what it is for by the input's kind
	Input        any    // encoded as a JSON object
}

// encode returns the input as JSON, without its secrets. Without a redactor it is that of
// redact.Default.
func (q Question) encode(ctx context.Context, r *redact.Redactor) ([]byte, error) {
	body, err := json.Marshal(q.Input)
	if err != nil {
		return nil, err
	}
	if len(body) > QuestionBytesMax {
		return nil, errors.New("the question " + protocol.OverSize(len(body), QuestionBytesMax))
	}
	if r == nil {
		if r, err = redact.Default(); err != nil {
			return nil, err
		}
	}
	return r.Variables(ctx, body)
}

// answerOf checks an answer, and returns it without the blanks around it.
func answerOf(answer string) (string, error) {
	switch {
	case len(answer) > AnswerBytesMax:
		return "", errors.New("the answer " + protocol.OverSize(len(answer), AnswerBytesMax))
	case strings.TrimSpace(answer) == "":
		return "", errors.New("the answer is empty")
	}
	return strings.TrimSpace(strings.ToValidUTF8(answer, "\uFFFD")), nil
}
