package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// Limits of Serve and Ask.
const (
	// QuestionBytesMax bounds a question.
	QuestionBytesMax = 64 << 10
	// AnswersAtOnce is how many questions one Serve answers concurrently. Most of them wait until the
	// answerer has read the latest entries of the ledger.
	AnswersAtOnce = 64
	// QuestionsWaitingMax is how many questions one Serve holds, those being answered
	// included. It refuses further ones, which bounds its memory.
	QuestionsWaitingMax = 512
	// AnswerTimeMax is how long an answer may take, from the question's arrival.
	AnswerTimeMax = 70 * time.Second
)

// Answerer answers one question. ctx ends when the time for the answer is up. A *protocol.Error is
// for the caller that asked; see ErrorFromWire for the others.
type Answerer func(ctx context.Context, question []byte) ([]byte, error)

// CodeAnswerFailed is the code of an answerer's error that has no code.
const CodeAnswerFailed protocol.Code = "error"

// ErrorToWire returns an Answerer's error in the form that an engine sends.
func ErrorToWire(err error) *protocol.Error {
	var refused *protocol.Error
	switch {
	case errors.As(err, &refused):
		return &protocol.Error{Code: refused.Code, Field: refused.Field, Message: refused.Message}
	case errors.Is(err, ErrUnreachable), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return &protocol.Error{Code: protocol.CodeUnreachable, Message: err.Error()}
	}
	return &protocol.Error{Code: CodeAnswerFailed, Message: err.Error()}
}

// ErrorFromWire returns the error that ErrorToWire encoded: a *protocol.Error with its code, field
// and message, ErrUnreachable (wrapped) if the answerer did not reach the engine or ran out of time,
// and the bare text of any other.
func ErrorFromWire(e *protocol.Error) error {
	switch e.Code {
	case protocol.CodeUnreachable:
		return fmt.Errorf("%w, reported by the process that was asked: %s", ErrUnreachable, e.Message)
	case CodeAnswerFailed:
		return errors.New(e.Message)
	}
	return e
}

// CheckVerbs refuses verbs that cannot be part of a subject.
func CheckVerbs(verbs map[string]Answerer) error {
	for verb := range verbs {
		if err := protocol.CheckID("verb", verb); err != nil {
			return err
		}
	}
	return nil
}

// CheckQuestion refuses an invalid question.
func CheckQuestion(verb string, question []byte) error {
	if err := protocol.CheckID("verb", verb); err != nil {
		return err
	}
	if len(question) > QuestionBytesMax {
		return protocol.Errorf(protocol.CodeTooLarge, "question", "%s", protocol.OverSize(len(question), QuestionBytesMax))
	}
	return nil
}

// CheckAnswer refuses an answer that exceeds the engine's message limit.
func CheckAnswer(answer []byte, most int64) error {
	if int64(len(answer)) > most {
		return protocol.Errorf(protocol.CodeTooLarge, "limit", "the answer is %d bytes, and a message of this engine holds %d; ask for less at a time", len(answer), most)
	}
	return nil
}
