package brief

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/protocol"
)

func TestDocument(t *testing.T) {
	submitted := json.RawMessage(`{"task":{"description":"write it"}}`)
	if got, err := Document(submitted, Since{}); err != nil || string(got) != string(submitted) {
		t.Errorf("nothing has happened: %s, %v", got, err)
	}
	got, err := Document(submitted, Since{Answers: []protocol.Answer{{By: "lead", Variables: map[string]json.RawMessage{"branch": json.RawMessage(`"main"`)}}}})
	if err != nil || !strings.Contains(string(got), `"context":{"variables":{"branch":"main"}}`) || !strings.Contains(string(got), `"supplements":[{`) {
		t.Errorf("answered: %s, %v", got, err)
	}
	if _, err := Document(json.RawMessage(`[]`), Since{Answers: []protocol.Answer{{}}}); err == nil {
		t.Error("a list is taken for a package")
	}
}

// TestBoundReturns: a result that does not fit is left out, and a shorter one behind it is not.
func TestBoundReturns(t *testing.T) {
	body := func(bytes int) *protocol.ReturnResult {
		return &protocol.ReturnResult{Body: json.RawMessage(`"` + strings.Repeat("x", bytes) + `"`), Summary: "short"}
	}
	returns := []protocol.Return{{HandoffID: "a", Result: body(10)}, {HandoffID: "b", Result: body(1000)}, {HandoffID: "c", Result: body(10)}}
	bound := boundReturns(returns, 300)
	if bound[0].Result.Body == nil || bound[2].Result.Body == nil || bound[1].Result.Body != nil || bound[1].Result.Summary != "short" {
		t.Errorf("bound: %+v", bound)
	}
	if returns[1].Result.Body == nil {
		t.Error("what was given has changed")
	}
}

func TestPerson(t *testing.T) {
	pkg := &protocol.Package{Reason: "the plan is ready", Context: protocol.Context{
		ConversationHistory: []protocol.Message{protocol.Message(`{}`)}, KeyPoints: []string{"short", "clear"}}}
	if facts := Facts(pkg); facts[0] != (Fact{"reason", "the plan is ready"}) {
		t.Errorf("facts: %v", facts)
	}
	for want, p := range map[string]protocol.Previous{
		"coder: two files":           {Summary: "two files", Body: json.RawMessage(`"a patch"`)},
		"coder: a patch":             {Body: json.RawMessage(`"a patch"`)},
		`coder: {"files":2}`:         {Body: json.RawMessage(`{"files":2}`)},
		"coder: a result of 1.5 MiB": {BodyDigest: "sha256:00", BodyBytes: 3 << 19},
	} {
		p.Agent = "coder"
		facts := Facts(&protocol.Package{Context: protocol.Context{Previous: &p}})
		if got := facts[len(facts)-1]; got != (Fact{"previous", want}) {
			t.Errorf("previous: %v, want %s", got, want)
		}
	}
	if parts := Parts(pkg.Context); len(parts) != 2 || parts[0] != (Part{1, "message"}) || parts[1] != (Part{2, "key point"}) {
		t.Errorf("parts: %v", parts)
	}
	for in, want := range map[string]string{
		`{"role":"user","name":"ann","content":"hello"}`: "user ann: hello",
		`{"agent_id":"lead","content":[1]}`:              "message lead: [1]",
		`{"text":"hello"}`:                               `message: {"text":"hello"}`,
	} {
		if speaker, words := Message(protocol.Message(in)); speaker+": "+words != want {
			t.Errorf("%s: %s: %s", in, speaker, words)
		}
	}
}
