package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/agenthandoff/handoff/protocol"
)

// FuzzOutput checks any body against any schema. Whatever they are, the check ends;
// what submission refuses fails the result by the same limit; a check within its
// steps takes no more memory than they allow; and counting steps changes no verdict.
func FuzzOutput(f *testing.F) {
	for _, seed := range [][2]string{
		{`{"type": "object", "required": ["a"], "properties": {"a": {"enum": ["x", 1, null, [1]]}}, "additionalProperties": false}`, `{"a": "x", "b": [1e3]}`},
		{`{"items": {"anyOf": [{"$ref": "#"}, {"pattern": "^(a|b){2,5}$"}]}, "uniqueItems": true}`, `[["ab", "ba"], "abba", [[]]]`},
		{`{"$ref": "#/$defs/d0", "$defs": {"d0": {"allOf": [{"$ref": "#/$defs/d1"}, {"$ref": "#/$defs/d1"}]}, "d1": {"not": {"type": "string"}}}}`, `"x"`},
		{`{"unevaluatedProperties": false, "patternProperties": {"^a": {"contains": {"minimum": 1.5}}}, "if": {"minProperties": 2}, "else": false}`, `{"a": [1, 2], "ab": 0}`},
		{`{"$schema": "http://json-schema.org/draft-07/schema#", "dependencies": {"a": ["b"], "b": {"$ref": "#"}}, "format": "regex"}`, `{"a": 1, "b": "("}`},
		{`{"$id": "https://example.com/a", "$ref": "b#x", "$defs": {"x": {"$id": "b", "$anchor": "x", "prefixItems": [{"multipleOf": 0.1}]}}}`, `[0.30, 7]`},
		{`{"$ref": "#/additionalItems", "additionalItems": {"multipleOf": 0, "allOf": [5, null], "type": ["x", 1], "maxItems": 1e300}}`, `4`},
		{`{"propertyNames": {"maxLength": 2}, "dependentSchemas": {"aa": {"$ref": "#/x"}}, "x": {"oneOf": [true, false]}}`, `{"aa": {}, "bbb": {}}`},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, schema, body string) {
		refusal := CheckSchema(json.RawMessage(schema))
		err := CheckOutput(json.RawMessage(schema), json.RawMessage(body))
		var e *protocol.Error
		if refusal != nil {
			if !errors.As(err, &e) || e.Code != protocol.CodeOutputSchema || e.Field != Field {
				t.Fatalf("refused at submission (%v), and then %v", refusal, err)
			}
			return
		}
		if err != nil && (!errors.As(err, &e) || e.Code != protocol.CodeOutputSchema || e.Field != resultField || len(e.Message) > 4<<10) {
			t.Fatalf("%v", err)
		}
		if nothing(json.RawMessage(schema)) {
			return
		}
		ready, broken := cache.of(json.RawMessage(schema))
		if broken != nil {
			t.Fatal(broken)
		}
		value, invalid := jsonschema.UnmarshalJSON(bytes.NewReader([]byte(body)))
		if invalid != nil {
			return
		}
		if _, unwieldy := survey(value); unwieldy != "" {
			return
		}
		before := allocated()
		steps, verdict := ready.counted(value)
		found := output.verdict(verdict)
		if took := allocated() - before; took > stepBytes*steps+64<<10 {
			t.Errorf("took %d bytes for %d steps", took, steps)
		}
		if (found == nil) != (err == nil) {
			t.Errorf("%v at first, then %v", err, found)
		}
	})
}

// FuzzInstructions finds regular expressions that are larger than they are counted.
func FuzzInstructions(f *testing.F) {
	for _, seed := range []string{`(?i)^[a-z\pL]{3,}(ab|ac|)*?$`, `((x{9}){9}){9}`, `(?:(?:a?){5}|b+)*`, `\Q(?i\E)[^é-\x{10FFFF}]`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if counted, real := compiledSize(t, text); counted < real {
			t.Errorf("%q: counted %d, is %d", text, counted, real)
		}
	})
}
