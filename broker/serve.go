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
	// AnswersAtOnce is how many questions one Serve works on side by side. Most of
	// them wait: for what the ledger has and the answerer has not read yet.
	AnswersAtOnce = 64
	// QuestionsWaitingMax is how many questions one Serve holds, those being answered
	// included. It refuses further ones, which bounds its memory.
	QuestionsWaitingMax = 512
	// AnswerTimeMax is how long an answer may take, from the question's arrival.
	AnswerTimeMax = 70 * time.Second
)

// Answerer answers one question. ctx ends with the time for it. A
// *protocol.Error is for the caller that asked; see WireError for the others.
type Answerer func(ctx context.Context, question []byte) ([]byte, error)

// CodeAnswerFailed is the code of an answerer's error that has none of its own.
const CodeAnswerFailed protocol.Code = "error"

// WireError is what the caller that asked gets of an Answerer's error: a *protocol.Error
// with its code, field and message as it is, ErrUnreachable (wrapped) where the
// answerer did not reach the engine or ran out of time, the bare words of any other.
func WireError(err error) error { return ErrorFromWire(ErrorToWire(err)) }

// ErrorToWire is an Answerer's error as an engine sends it.
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

// ErrorFromWire is the error that ErrorToWire made.
func ErrorFromWire(e *protocol.Error) error {
	switch e.Code {
	case protocol.CodeUnreachable:
		return fmt.Errorf("%w, says who was asked: %s", ErrUnreachable, e.Message)
	case CodeAnswerFailed:
		return errors.New(e.Message)
	}
	return e
}

// CheckVerbs refuses verbs that are no part of a subject.
func CheckVerbs(verbs map[string]Answerer) error {
	for verb := range verbs {
		if err := protocol.CheckID("verb", verb); err != nil {
			return err
		}
	}
	return nil
}

// CheckQuestion refuses what may not be asked.
func CheckQuestion(verb string, question []byte) error {
	if err := protocol.CheckID("verb", verb); err != nil {
		return err
	}
	if len(question) > QuestionBytesMax {
		return protocol.Errorf(protocol.CodeTooLarge, "question", "%s", protocol.OverSize(len(question), QuestionBytesMax))
	}
	return nil
}

// CheckAnswer refuses an answer that no message of the engine can hold.
func CheckAnswer(answer []byte, most int64) error {
	if int64(len(answer)) > most {
		return protocol.Errorf(protocol.CodeTooLarge, "limit", "the answer is %d bytes, and a message of this engine holds %d; ask for less at a time", len(answer), most)
	}
	return nil
}
