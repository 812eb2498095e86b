package protocol_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

func TestFillTemplate(t *testing.T) {
	payload := json.RawMessage(`{"a":{"b/c":[10,{"~":"x"}],"":1e400},"n":12345678901234567890}`)
	for _, c := range []struct {
		template, want, field string
		code                  protocol.Code
	}{
		{`{"x":{"$":"/a/b~1c/0"},"y":[{"$":"/a/b~1c/1/~0"}]}`, `{"x":10,"y":["x"]}`, "", ""},
		{`{"x":{"$":"/a/"},"n":{"$":"/n"}}`, `{"n":12345678901234567890,"x":1e400}`, "", ""},
		{`{"x":{"$":"/a/b~1c/1"}}`, `{"x":{"~":"x"}}`, "", ""},
		{`{"x":{"y":{"$":"/gone"}}}`, "", "x.y", protocol.CodeMissing},
		{`{"x":[{"$":"/a/b~1c/2"}]}`, "", "x[0]", protocol.CodeMissing},
		{`{"x":{"$":"/a/b~1c/00"}}`, "", "x", protocol.CodeMissing},
		{`{"x":{"$":"/n/0"}}`, "", "x", protocol.CodeMissing},
		{`{"x":{"$":"n"}}`, "", "x", protocol.CodeInvalid},
		{`{"x":{"$":1}}`, "", "x", protocol.CodeInvalid},
		{`[]`, "", "", protocol.CodeMalformed},
		{`{} {}`, "", "", protocol.CodeMalformed},
	} {
		got, err := protocol.FillTemplate(json.RawMessage(c.template), payload)
		var refused *protocol.Error
		errors.As(err, &refused)
		if string(got) != c.want || c.code != "" && (refused == nil || refused.Code != c.code || refused.Field != c.field) {
			t.Errorf("%s: %s, %v", c.template, got, err)
		}
	}
	if whole, err := protocol.FillTemplate(json.RawMessage(`{"x":{"$":""}}`), nil); err != nil || string(whole) != `{"x":null}` {
		t.Errorf("no payload: %s, %v", whole, err)
	}
}

func TestPermit(t *testing.T) {
	now := time.Date(2026, 1, 1, 9, 0, 45, 0, time.UTC)
	r := protocol.Rule{Rate: 5}
	r, got, wait := r.Permit(3, now)
	if got != 3 || wait != 0 || !r.FullAt.IsZero() {
		t.Errorf("%d, %v, %+v", got, wait, r)
	}
	r, got, wait = r.Permit(1000, now)
	if got != 2 || wait != 15*time.Second || !r.FullAt.Equal(now) {
		t.Errorf("%d, %v, %+v", got, wait, r)
	}
	if _, got, _ = r.Permit(1, now.Add(14*time.Second)); got != 0 {
		t.Errorf("%d over the rate", got)
	}
	if _, got, _ = r.Permit(9, now.Add(15*time.Second)); got != 5 {
		t.Errorf("%d in the next minute", got)
	}
}
