package ask

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

// ErrRebuilding: there is nothing to answer from yet, because the file of the index was
// damaged, and a new one is being filled.
var ErrRebuilding = errors.New("the index is being rebuilt; ask again in a moment")

// The verbs of the query service. Each has a question and an answer in this package.
const (
	VerbList     = "list"
	VerbCount    = "count"
	VerbFamily   = "family"
	VerbAhead    = "ahead"
	VerbFigures  = "figures"
	VerbWaiting  = "waiting"
	VerbDead     = "dead"
	VerbSeries   = "series"
	VerbPosition = "position"
	VerbTickets  = "tickets"
)

// Answers are the questions that an index answers: one in this process, or a remote one
// through a Client.
type Answers interface {
	List(context.Context, ListQuery) (ListAnswer, error)
	Count(context.Context, CountQuery) (CountAnswer, error)
	Family(context.Context, FamilyQuery) (FamilyAnswer, error)
	Ahead(context.Context, AheadQuery) (AheadAnswer, error)
	Figures(context.Context, FiguresQuery) (FiguresAnswer, error)
	Waiting(context.Context, WaitingQuery) (WaitingAnswer, error)
	Dead(context.Context, DeadQuery) (DeadAnswer, error)
	Series(context.Context, SeriesQuery) (SeriesAnswer, error)
	Position(context.Context, PositionQuery) (PositionAnswer, error)
	Tickets(context.Context, TicketsQuery) (TicketsAnswer, error)
}

// Verbs has the answers in the form that the engine's Serve takes.
func Verbs(answers Answers) map[string]broker.Answerer {
	return map[string]broker.Answerer{
		VerbList:     answerer(answers.List),
		VerbCount:    answerer(answers.Count),
		VerbFamily:   answerer(answers.Family),
		VerbAhead:    answerer(answers.Ahead),
		VerbFigures:  answerer(answers.Figures),
		VerbWaiting:  answerer(answers.Waiting),
		VerbDead:     answerer(answers.Dead),
		VerbSeries:   answerer(answers.Series),
		VerbPosition: answerer(answers.Position),
		VerbTickets:  answerer(answers.Tickets),
	}
}

// Pages calls fn with page after page of a list, up to most handoffs; 0 is all. It returns their position,
// and the cursor of those that follow.
func Pages(ctx context.Context, list func(context.Context, ListQuery) (ListAnswer, error), q ListQuery, most int, fn func(ListAnswer) error) (at Position, cursor string, err error) {
	complete := true
	for got := 0; ; {
		q.Limit = PageMax
		if most > 0 {
			q.Limit = min(q.Limit, most-got)
		}
		page, err := list(ctx, q)
		if err == nil {
			err = fn(page)
		}
		if err != nil {
			return at, "", err
		}
		got += len(page.Handoffs)
		q.Cursor, complete = page.Cursor, complete && page.Complete
		if page.Cursor == "" || most > 0 && got >= most {
			at = page.Position
			at.Complete = complete
			return at, page.Cursor, nil
		}
	}
}

// answerer decodes a question and encodes its answer.
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

// decodeQuestion reads the JSON of a question. It refuses unknown fields: a filter with a
// typing error must not select everything. No bytes are a question without fields.
func decodeQuestion(body []byte, into any) error {
	switch {
	case len(body) == 0:
		return nil
	case !utf8.Valid(body):
		return protocol.Errorf(protocol.CodeText, "", "the question holds bytes that are not UTF-8")
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(into)
	if err == nil {
		if _, more := decoder.Token(); more != io.EOF {
			return protocol.Errorf(protocol.CodeMalformed, "", "the question is followed by more data")
		}
		return nil
	}
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return protocol.Errorf(protocol.CodeInvalid, wrong.Field, "cannot be a JSON %s", wrong.Value)
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return protocol.Errorf(protocol.CodeUnknownField, strings.Trim(name, `"`), "is not a field of this question")
	}
	return protocol.Errorf(protocol.CodeMalformed, "", "the question is not a valid JSON object: %v", err)
}

// Asker sends a question to an index. The broker and its engine are Askers.
type Asker interface {
	Ask(ctx context.Context, verb string, question []byte) ([]byte, error)
}

// Client asks a remote index over the engine. Its errors are those of the Asker, and
// *protocol.Error for a refused question.
type Client struct{ Asker Asker }

var _ Answers = Client{}

// List returns a page of handoffs.
func (c Client) List(ctx context.Context, q ListQuery) (ListAnswer, error) {
	return send[ListAnswer](ctx, c, VerbList, q)
}

// Count returns how many handoffs a filter selects.
func (c Client) Count(ctx context.Context, q CountQuery) (CountAnswer, error) {
	return send[CountAnswer](ctx, c, VerbCount, q)
}

// Family returns the handoffs that are related to one.
func (c Client) Family(ctx context.Context, q FamilyQuery) (FamilyAnswer, error) {
	return send[FamilyAnswer](ctx, c, VerbFamily, q)
}

// Ahead returns how many offers an agent's queue has before one.
func (c Client) Ahead(ctx context.Context, q AheadQuery) (AheadAnswer, error) {
	return send[AheadAnswer](ctx, c, VerbAhead, q)
}

// Figures returns success rates, durations and refusals.
func (c Client) Figures(ctx context.Context, q FiguresQuery) (FiguresAnswer, error) {
	return send[FiguresAnswer](ctx, c, VerbFigures, q)
}

// Waiting returns a page of the inbox of an agent, or of a person.
func (c Client) Waiting(ctx context.Context, q WaitingQuery) (WaitingAnswer, error) {
	return send[WaitingAnswer](ctx, c, VerbWaiting, q)
}

// Dead returns a page of dead letters, the last to close first.
func (c Client) Dead(ctx context.Context, q DeadQuery) (DeadAnswer, error) {
	return send[DeadAnswer](ctx, c, VerbDead, q)
}

// Series returns counts and durations over time.
func (c Client) Series(ctx context.Context, q SeriesQuery) (SeriesAnswer, error) {
	return send[SeriesAnswer](ctx, c, VerbSeries, q)
}

// Position returns how far the index has read the ledger.
func (c Client) Position(ctx context.Context, q PositionQuery) (PositionAnswer, error) {
	return send[PositionAnswer](ctx, c, VerbPosition, q)
}

// Tickets returns the tickets that begin with a prefix.
func (c Client) Tickets(ctx context.Context, q TicketsQuery) (TicketsAnswer, error) {
	return send[TicketsAnswer](ctx, c, VerbTickets, q)
}

func send[A any](ctx context.Context, c Client, verb string, question any) (answer A, err error) {
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
