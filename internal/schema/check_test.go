package schema_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/agenthandoff/handoff/internal/schema"
	"github.com/agenthandoff/handoff/protocol"
)

const review = `{
	"type": "object", "required": ["findings"],
	"properties": {
		"findings": {"type": "array", "items": {
			"type": "object", "required": ["severity"],
			"properties": {"severity": {"enum": ["low", "high"]}, "line": {"type": "integer", "minimum": 1}}}},
		"next": {"anyOf": [{"type": "string"}, {"type": "object", "properties": {"agent": {"type": "string"}}}]}
	},
	"additionalProperties": false
}`

func TestCheckOutput(t *testing.T) {
	for _, c := range []struct{ name, schema, body, want string }{
		{"no schema", ``, `{"a": 1}`, ""},
		{"null schema", ` null`, `{"a": 1}`, ""},
		{"anything", `true`, `[1]`, ""},
		{"right", review, `{"findings": [{"severity": "low", "line": 3}], "next": "judge"}`, ""},
		{"deep", review, `{"findings": [{"severity": "low"}, {"severity": "grave"}]}`, `findings[1].severity: value must be one of 'low', 'high'`},
		{"missing", review, `{}`, `missing property 'findings'`},
		{"absent", review, ``, `got null, want object`},
		{"extra", review, `{"findings": [], "made_up": 1}`, `additional properties 'made_up' not allowed`},
		{"number", review, `{"findings": [{"severity": "low", "line": 0}]}`, `findings[0].line: minimum: got 0, want 1`},
		{"the alternative that was meant", review, `{"findings": [], "next": {"agent": 7}}`, `next.agent: got number, want string`},
		{"several", `{"items": {"type": "string"}}`, `[1, 2, 3, 4, 5]`, `[0]: got number, want string; [1]: got number, want string; [2]: got number, want string; and 2 more`},
		{"forbidden", `{"properties": {"a": false}}`, `{"a": 1}`, `a: nothing is allowed here`},
		{"exact", `{"const": 9007199254740993}`, `9007199254740993`, ""},
		{"exact in the last digit", `{"const": 9007199254740993}`, `9007199254740992`, `value must be 9007199254740993`},
		{"a number that would take all memory", `{"minimum": 0}`, `1e999999999`, `too long to be checked`},
		{"not JSON", `true`, `{`, `is not JSON`},
		{"reference inside", `{"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}}`, `"x"`, ""},
		{"formats are words", `{"format": "date-time"}`, `"tomorrow"`, ""},
		{"a long text is not quoted whole", `{"pattern": "^a$"}`, `"` + strings.Repeat("b", 9999) + `"`, "…"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := schema.CheckOutput(json.RawMessage(c.schema), json.RawMessage(c.body))
			wantError(t, err, protocol.CodeOutputSchema, "result.body", c.want)
			if err != nil && len(err.Error()) > 1100 {
				t.Errorf("the message is %d bytes long", len(err.Error()))
			}
		})
	}
}

func TestCheckSchema(t *testing.T) {
	file := filepath.Join(t.TempDir(), "other.json")
	if err := os.WriteFile(file, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, schema, want string }{
		{"nothing", ``, ""},
		{"everything", `{}`, ""},
		{"draft 7", `{"$schema": "http://json-schema.org/draft-07/schema#", "items": [{}]}`, ""},
		{"the schema of schemas", `{"$ref": "http://json-schema.org/draft-07/schema#"}`, ""},
		{"with a name", `{"$id": "https://example.com/a", "$ref": "a#/$defs/x", "$defs": {"x": true}}`, ""},
		{"not JSON", `{"type"`, "is not JSON"},
		{"a list", `[]`, "must be an object"},
		{"a word", `"object"`, "must be an object"},
		{"no type", `{"properties": {"a": {"type": "strin"}}}`, `properties.a.type: `},
		{"no pattern", `{"pattern": "("}`, "pattern"},
		{"from the network", `{"$ref": "https://example.com/schema.json"}`, "refers to https://example.com/schema.json"},
		{"from a file", `{"$ref": "file://` + file + `"}`, "refers to file://"},
		{"from beside", `{"$ref": "other.json"}`, "other documents are not followed"},
		{"draft from the network", `{"$schema": "https://example.com/draft"}`, "refers to https://example.com/draft"},
		{"nowhere inside", `{"$ref": "#/$defs/none"}`, "none"},
		{"number", `{"minimum": 1e999999999}`, "too long"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := schema.CheckSchema(json.RawMessage(c.schema))
			wantError(t, err, protocol.CodeInvalid, "expectations.output_schema", c.want)
			if err != nil && strings.Contains(err.Error(), "handoff:") {
				t.Errorf("%v: names a place that only this package knows", err)
			}
		})
	}
	for want, large := range map[string]string{
		"at most 4096": `{"allOf": [` + strings.Repeat("{},", schema.OutputSchemaObjectsMax) + `true]}`,
		"at most 128":  strings.Repeat(`{"not": `, schema.OutputSchemaDepthMax+1) + "{}" + strings.Repeat("}", schema.OutputSchemaDepthMax+1),
	} {
		wantError(t, schema.CheckSchema(json.RawMessage(large)), protocol.CodeTooLarge, "expectations.output_schema", want)
	}
	large := json.RawMessage(`{"description": "` + strings.Repeat("x", schema.OutputSchemaBytesMax) + `"}`)
	wantError(t, schema.CheckSchema(large), protocol.CodeTooLarge, "expectations.output_schema", "at most 131072")
}

func wantError(t *testing.T, err error, code protocol.Code, field, message string) {
	t.Helper()
	if message == "" {
		if err != nil {
			t.Errorf("refused: %v", err)
		}
		return
	}
	var e *protocol.Error
	if !errors.As(err, &e) || e.Code != code || e.Field != field || !strings.Contains(e.Message, message) {
		t.Errorf("got %#v, want %s for %s with %q", err, code, field, message)
	}
}

func TestManySchemasAtOnce(t *testing.T) {
	var group sync.WaitGroup
	for g := range 4 {
		group.Go(func() {
			for i := range 300 { // more than are kept
				raw := json.RawMessage(fmt.Sprintf(`{"const": %d}`, i%200+g))
				if err := schema.CheckOutput(raw, json.RawMessage(fmt.Sprint(i%200+g))); err != nil {
					t.Error(err)
				}
				if err := schema.CheckOutput(raw, json.RawMessage(`-1`)); err == nil {
					t.Error("-1 passed")
				}
			}
		})
	}
	group.Wait()
}

func BenchmarkCheckOutput(b *testing.B) {
	body := json.RawMessage(`{"findings": [{"severity": "low", "line": 3}, {"severity": "high"}], "next": "judge"}`)
	b.ReportAllocs()
	for b.Loop() {
		if err := schema.CheckOutput(json.RawMessage(review), body); err != nil {
			b.Fatal(err)
		}
	}
}
