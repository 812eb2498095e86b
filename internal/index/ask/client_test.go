package ask

import (
	"context"
	"errors"
	"testing"

	"github.com/agenthandoff/handoff/protocol"
)

// cannedAnswers answers with what it was asked.
type cannedAnswers struct {
	Answers
	asked any
	err   error
}

func (c *cannedAnswers) List(_ context.Context, q ListQuery) (ListAnswer, error) {
	c.asked = q
	return ListAnswer{Position: Position{Seq: 7, Complete: true}, Handoffs: []Row{{Ticket: "t", Description: "größer"}}, Cursor: "c"}, c.err
}

func (c *cannedAnswers) Position(_ context.Context, q PositionQuery) (PositionAnswer, error) {
	c.asked = q
	return PositionAnswer{Handoffs: 3}, c.err
}

// directAsker asks without an engine between.
type directAsker map[string]func(context.Context, []byte) ([]byte, error)

func (d directAsker) Ask(ctx context.Context, verb string, question []byte) ([]byte, error) {
	return d[verb](ctx, question)
}

func TestClientAsksAndReads(t *testing.T) {
	c := &cannedAnswers{}
	d := directAsker{}
	for verb, answer := range Verbs(c) {
		d[verb] = answer
	}
	client := Client{Asker: d}
	open := true
	q := ListQuery{Question: Question{WaitMS: -1}, Filter: Filter{Agent: []string{"a", "b"}, Open: &open, Text: "x"}, Sort: SortOldest, Limit: 3}
	a, err := client.List(t.Context(), q)
	if err != nil || a.Seq != 7 || !a.Complete || len(a.Handoffs) != 1 || a.Handoffs[0].Description != "größer" || a.Cursor != "c" {
		t.Errorf("%+v, %v", a, err)
	}
	if got := c.asked.(ListQuery); got.WaitMS != -1 || len(got.Filter.Agent) != 2 || !*got.Filter.Open || got.Sort != SortOldest || got.Limit != 3 {
		t.Errorf("it was asked %+v", got)
	}
	if _, err := d[VerbPosition](t.Context(), nil); err != nil {
		t.Errorf("a question without fields: %v", err)
	}
	c.err = protocol.Errorf(protocol.CodeInvalid, "cursor", "is of another list")
	if _, err := client.List(t.Context(), q); !errors.Is(err, c.err) {
		t.Errorf("the error is %v", err)
	}
}

func TestMalformedQuestions(t *testing.T) {
	list := Verbs(&cannedAnswers{})[VerbList]
	for question, want := range map[string]protocol.Error{
		`{"filter":{"agnt":["a"]}}`:        {Code: protocol.CodeUnknownField, Field: "agnt"},
		`{"limits":1}`:                     {Code: protocol.CodeUnknownField, Field: "limits"},
		`{"filter":{"agent":"a"}}`:         {Code: protocol.CodeInvalid, Field: "filter.agent"},
		`{"limit":"many"}`:                 {Code: protocol.CodeInvalid, Field: "limit"},
		`{"filter":{"since":"yesterday"}}`: {Code: protocol.CodeMalformed},
		`{"limit":1`:                       {Code: protocol.CodeMalformed},
		`{"limit":1} {}`:                   {Code: protocol.CodeMalformed},
		`[]`:                               {Code: protocol.CodeInvalid},
		"{\"filter\":{\"text\":\"\xff\"}}": {Code: protocol.CodeText},
		`{"limit":99999999999999999999999999999999}`: {Code: protocol.CodeInvalid, Field: "limit"},
	} {
		_, err := list(t.Context(), []byte(question))
		var e *protocol.Error
		if !errors.As(err, &e) || e.Code != want.Code || e.Field != want.Field {
			t.Errorf("%s: %v, want %s at %q", question, err, want.Code, want.Field)
		}
	}
}
