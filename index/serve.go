package index

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// Verbs that the query service answers, each with the question and the answer
// that query.go has for it.
const (
	VerbList    = "list"
	VerbCount   = "count"
	VerbFamily  = "family"
	VerbAhead   = "ahead"
	VerbFigures = "figures"
	VerbStand   = "stand"
)

// Answers is what may be asked: of an Index in this process, or of whoever
// keeps one, through a Client.
type Answers interface {
	List(context.Context, ListQuery) (ListAnswer, error)
	Count(context.Context, CountQuery) (CountAnswer, error)
	Family(context.Context, FamilyQuery) (FamilyAnswer, error)
	Ahead(context.Context, AheadQuery) (AheadAnswer, error)
	Figures(context.Context, FiguresQuery) (FiguresAnswer, error)
	Stand(context.Context, StandQuery) (StandAnswer, error)
}

// Verbs has the answers as broker.Engine's Serve takes them.
func Verbs(answers Answers) map[string]broker.Answerer {
	return map[string]broker.Answerer{
		VerbList:    answerer(answers.List),
		VerbCount:   answerer(answers.Count),
		VerbFamily:  answerer(answers.Family),
		VerbAhead:   answerer(answers.Ahead),
		VerbFigures: answerer(answers.Figures),
		VerbStand:   answerer(answers.Stand),
	}
}

// answerer reads a question and writes its answer.
func answerer[Q, A any](answer func(context.Context, Q) (A, error)) broker.Answerer {
	return func(ctx context.Context, question []byte) ([]byte, error) {
		var q Q
		if err := decodeQuestion(question, &q); err != nil {
			return nil, err
		}
		a, err := answer(ctx, q)
		if errors.Is(err, ErrRebuilding) {
			return nil, protocol.Errorf(protocol.CodeBehind, "", "%v", err)
		}
		if err != nil {
			return nil, err
		}
		return json.Marshal(a)
	}
}

// decodeQuestion reads the JSON of a question. A field that nobody knows is
// refused: a filter mistyped must not select everything. No bytes are no fields.
func decodeQuestion(body []byte, into any) error {
	switch {
	case len(body) == 0:
		return nil
	case !utf8.Valid(body):
		return protocol.Errorf(protocol.CodeText, "", "the question holds bytes that are no UTF-8")
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(into)
	if err == nil {
		if _, more := decoder.Token(); more != io.EOF {
			return protocol.Errorf(protocol.CodeMalformed, "", "the question goes on behind its end")
		}
		return nil
	}
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return protocol.Errorf(protocol.CodeInvalid, wrong.Field, "is a JSON %s, which it cannot be", wrong.Value)
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return protocol.Errorf(protocol.CodeUnknownField, strings.Trim(name, `"`), "nothing of this name can be asked for")
	}
	return protocol.Errorf(protocol.CodeMalformed, "", "the question is no JSON object that can be read: %v", err)
}

// Asker reaches whoever keeps an index. broker.Engine is one.
type Asker interface {
	Ask(ctx context.Context, verb string, question []byte) ([]byte, error)
}

// Client asks whoever keeps an index on an engine. Its errors are those of the
// engine's Ask, and *protocol.Error where a question is refused.
type Client struct{ Asker Asker }

var _ Answers = Client{}

// List asks for a page of handoffs.
func (c Client) List(ctx context.Context, q ListQuery) (ListAnswer, error) {
	return ask[ListAnswer](ctx, c, VerbList, q)
}

// Count asks how many there are.
func (c Client) Count(ctx context.Context, q CountQuery) (CountAnswer, error) {
	return ask[CountAnswer](ctx, c, VerbCount, q)
}

// Family asks for what belongs together.
func (c Client) Family(ctx context.Context, q FamilyQuery) (FamilyAnswer, error) {
	return ask[FamilyAnswer](ctx, c, VerbFamily, q)
}

// Ahead asks how many offers stand before one.
func (c Client) Ahead(ctx context.Context, q AheadQuery) (AheadAnswer, error) {
	return ask[AheadAnswer](ctx, c, VerbAhead, q)
}

// Figures asks how handoffs went.
func (c Client) Figures(ctx context.Context, q FiguresQuery) (FiguresAnswer, error) {
	return ask[FiguresAnswer](ctx, c, VerbFigures, q)
}

// Stand asks how far the index is.
func (c Client) Stand(ctx context.Context, q StandQuery) (StandAnswer, error) {
	return ask[StandAnswer](ctx, c, VerbStand, q)
}

func ask[A any](ctx context.Context, c Client, verb string, question any) (answer A, err error) {
	body, err := json.Marshal(question)
	if err != nil {
		return answer, err
	}
	if body, err = c.Asker.Ask(ctx, verb, body); err != nil {
		return answer, err
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return answer, fmt.Errorf("answer to %s: %w", verb, err)
	}
	return answer, nil
}
