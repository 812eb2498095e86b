package schema_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/internal/schema"
	"github.com/agenthandoff/handoff/protocol"
)

func TestCheckContext(t *testing.T) {
	want := json.RawMessage(`{"required": ["variables"], "properties": {
		"variables": {"required": ["branch", "sha"], "properties": {"branch": {"type": "string"}}},
		"completed_steps": {"items": {"type": "string", "minLength": 2}}}}`)
	for _, c := range []struct{ context, field, want string }{
		{`{"variables": {"branch": "main", "sha": "1"}}`, "", ""},
		{``, "context.variables", "breaks the context_schema of tester: missing property 'variables'"},
		{`{"variables": {"sha": "1"}}`, "context.variables.branch", "variables: missing property 'branch'"},
		{`{"variables": {"branch": 4, "sha": "1"}}`, "context.variables.branch", "got number, want string"},
		{`{"variables": {"branch": "b", "sha": "1"}, "completed_steps": ["ok", ""]}`, "context.completed_steps[1]", "minLength"},
		{`[` + strings.Repeat("0,", schema.OutputValuesMax) + `0]`, "context", "too many to be checked against the context_schema of tester"},
	} {
		code := protocol.Code("")
		if c.field != "" {
			code = protocol.CodeContract
		}
		wantError(t, schema.CheckContext("tester", want, json.RawMessage(c.context)), code, c.field, c.want)
	}
	for _, nothing := range []string{"", "null", "{}", `{"type": "no type"}`} {
		wantError(t, schema.CheckContext("tester", json.RawMessage(nothing), json.RawMessage("{}")), "", "", "")
	}
}

func TestCheckContract(t *testing.T) {
	good, bad := json.RawMessage(`{"type": "object"}`), json.RawMessage(`{"type": "no type"}`)
	for _, c := range []struct {
		contract *protocol.Contract
		field    string
	}{
		{nil, ""},
		{&protocol.Contract{ContextSchema: good, ResultSchema: json.RawMessage("null")}, ""},
		{&protocol.Contract{ContextSchema: bad}, "contract.context_schema"},
		{&protocol.Contract{ContextSchema: good, ResultSchema: bad}, "contract.result_schema"},
		{&protocol.Contract{ResultSchema: json.RawMessage(`{"$ref": "https://example.org/a"}`)}, "contract.result_schema"},
	} {
		code, words := protocol.Code(""), ""
		if c.field != "" {
			code, words = protocol.CodeInvalid, " "
		}
		wantError(t, schema.CheckContract(c.contract), code, c.field, words)
	}
}
