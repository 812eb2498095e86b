package schema_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/internal/schema"
	"github.com/agenthandoff/handoff/protocol"
)

// refersTwice is a schema of n definitions of which each refers twice to the next:
// one value would be checked 2^n times.
func refersTwice(n int) string {
	var b strings.Builder
	b.WriteString(`{"$ref": "#/$defs/d0", "$defs": {`)
	for i := range n {
		fmt.Fprintf(&b, `"d%d": {"allOf": [{"$ref": "#/$defs/d%d"}, {"$ref": "#/$defs/d%d"}]},`, i, i+1, i+1)
	}
	fmt.Fprintf(&b, `"d%d": {"type": "string"}}}`, n)
	return b.String()
}

// list is a schema of n alternatives.
func list(n int, each string) string {
	return `{"anyOf": [` + strings.TrimSuffix(strings.Repeat(each+",", n), ",") + `]}`
}

func TestSchemaLimits(t *testing.T) {
	t.Parallel()
	pattern := func(text string) string { return `{"pattern": "` + text + `"}` }
	for _, c := range []struct{ name, at, beyond, want string }{
		{"bytes", `{"title": "` + strings.Repeat("x", schema.OutputSchemaBytesMax-13) + `"}`,
			`{"title": "` + strings.Repeat("x", schema.OutputSchemaBytesMax-12) + `"}`, "at most 131072 are allowed"},
		{"objects", list(schema.OutputSchemaObjectsMax-1, "true"), list(schema.OutputSchemaObjectsMax, "true"), "too many objects, at most 4096"},
		{"depth", strings.Repeat(`{"not":`, schema.OutputSchemaDepthMax-1) + "{}" + strings.Repeat("}", schema.OutputSchemaDepthMax-1),
			strings.Repeat(`{"not":`, schema.OutputSchemaDepthMax+1) + "{}" + strings.Repeat("}", schema.OutputSchemaDepthMax+1), "at most 128"},
		{"paths", `{"` + strings.Repeat("%", 1000) + `": [` + strings.Repeat("{},", 1000) + `{}]}`,
			`{"` + strings.Repeat("%", 1000) + `": [` + strings.Repeat("{},", 1100) + `{}]}`, "at most 1048576 bytes together"},
		{"references", list(schema.OutputSchemaReferencesMax, `{"$ref": "#/$defs/a"}`)[:11] + `{"$ref": "#/$defs/a"}], "$defs": {"a": {}}}`,
			list(schema.OutputSchemaReferencesMax+1, `{"$ref": "#"}`), "at most 512 are allowed"},
		{"patterns", list(schema.OutputSchemaPatternsMax, pattern("a")), list(schema.OutputSchemaPatternsMax+1, pattern("a")), "at most 256 are allowed"},
		{"names by pattern", `{"patternProperties": {"a": {}, "b": {}}}`,
			`{"patternProperties": {"` + strings.Repeat("x", schema.OutputPatternBytesMax+1) + `": {}}}`, "2049 bytes long, at most 2048"},
		{"bytes of a pattern", pattern(strings.Repeat("x", schema.OutputPatternBytesMax)), pattern(strings.Repeat("x", schema.OutputPatternBytesMax+1)), "2049 bytes long, at most 2048"},
		{"instructions", pattern("(" + strings.Repeat("x", 50) + "){384}"), pattern("(" + strings.Repeat("x", 50) + "){385}"), "at most 20000 are allowed"},
		{"instructions together", list(9, pattern("x{0,999}")), list(10, pattern("x{0,999}")), "at most 20000 are allowed"},
		{"large classes", pattern(`^\\pL{1,99}$`), pattern(`^\\pL{1,999}$`), "at most 20000 are allowed"},
		{"classes that become one", pattern("[" + strings.Repeat(`\\pL`, 240) + "]"), pattern("[" + strings.Repeat(`\\pL`, 250) + "]"), "at most 20000 are allowed"},
		{"expansion", refersTwice(10), refersTwice(12), "at most 10000 are allowed"},
		{"expansion, the most that it can be", `{}`, refersTwice(120), "at most 10000 are allowed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			wantError(t, schema.CheckSchema(json.RawMessage(c.at)), "", "", "")
			wantError(t, schema.CheckSchema(json.RawMessage(c.beyond)), protocol.CodeTooLarge, "expectations.output_schema", c.want)
			// One that got into the ledger all the same fails the result, and says why.
			err := schema.CheckOutput(json.RawMessage(c.beyond), json.RawMessage(`"x"`))
			wantError(t, err, protocol.CodeOutputSchema, "expectations.output_schema", c.want)
		})
	}
}

// A chain of references for one value is as long as a schema may be deep.
func TestChainLimit(t *testing.T) {
	t.Parallel()
	chain := func(n int) json.RawMessage {
		var b strings.Builder
		b.WriteString(`{"$ref": "#/$defs/d2", "$defs": {`)
		for i := 2; i < n; i++ {
			fmt.Fprintf(&b, `"d%d": {"$ref": "#/$defs/d%d"},`, i, i+1)
		}
		fmt.Fprintf(&b, `"d%d": {"type": "string"}}}`, n)
		return json.RawMessage(b.String())
	}
	wantError(t, schema.CheckSchema(chain(schema.OutputSchemaDepthMax)), "", "", "")
	wantError(t, schema.CheckSchema(chain(schema.OutputSchemaDepthMax+1)), protocol.CodeTooLarge, "expectations.output_schema", "at most 128 are allowed")
}

func TestReferencesInCircles(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ schema, want string }{
		"itself":            {`{"$ref": "#"}`, "refers to itself"},
		"through others":    {`{"anyOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"not": {"$ref": "#/$defs/b"}}, "b": {"$ref": "#/$defs/a"}}}`, "refers to itself"},
		"beside a value":    {`{"properties": {"a": {"if": {"$ref": "#/properties/a"}}}}`, "refers to itself"},
		"dependent":         {`{"dependentSchemas": {"a": {"$ref": "#"}}}`, "refers to itself"},
		"dynamic":           {`{"$dynamicRef": "#a", "$defs": {"x": {"$dynamicAnchor": "a"}}}`, "not followed; use $ref"},
		"dynamic elsewhere": {`{"$ref": "https://json-schema.org/draft/2020-12/schema"}`, "not followed; use $ref"},
		"recursive":         {`{"$schema": "https://json-schema.org/draft/2019-09/schema", "items": {"$recursiveRef": "#"}}`, "not followed; use $ref"},
		// The library takes what is there for checked, and it is not a keyword of the draft.
		"where no schema is": {`{"$ref": "#/additionalItems", "additionalItems": {"multipleOf": 0}}`, "multipleOf that is not positive"},
		"with the flag i":    {`{"pattern": "(?i)[A-\\x{10FFFF}]"}`, "ignores case"},
	} {
		wantError(t, schema.CheckSchema(json.RawMessage(c.schema)), protocol.CodeInvalid, "expectations.output_schema", c.want)
		if t.Failed() {
			t.Fatal(name)
		}
	}
	// A tree refers to itself for the values in a value, which are one less each time.
	const tree = `{"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "below": {"items": {"$ref": "#"}}}}`
	wantError(t, schema.CheckSchema(json.RawMessage(tree)), "", "", "")
	wantError(t, schema.CheckOutput(json.RawMessage(tree), json.RawMessage(`{"name": "a", "below": [{"name": "b", "below": []}]}`)), "", "", "")
	wantError(t, schema.CheckOutput(json.RawMessage(tree), json.RawMessage(`{"name": "a", "below": [{"below": []}]}`)),
		protocol.CodeOutputSchema, "result.body", "below[0]: missing property 'name'")
	for _, fine := range []string{`{"pattern": "(?i)[a-z]"}`, `{"pattern": "\\(?i[A-\\x{10FFFF}]"}`, `{"pattern": "(?i)é"}`} {
		wantError(t, schema.CheckSchema(json.RawMessage(fine)), "", "", "")
	}
}

// In drafts before 2019-09 formats are assertions by the library's rules; here they
// are words in every draft.
func TestFormatsAreWordsInEveryDraft(t *testing.T) {
	t.Parallel()
	for _, draft := range []string{"http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"} {
		for _, format := range []string{"regex", "date-time"} {
			raw := fmt.Sprintf(`{"$schema": %q, "format": %q}`, draft, format)
			wantError(t, schema.CheckOutput(json.RawMessage(raw), json.RawMessage(`"("`)), "", "", "")
		}
	}
}

// What the check of a body may cost is bounded, whichever keyword it is spent on. Each
// of these did not end within a minute, or took gigabytes, before there were limits.
func TestStepsOfACheck(t *testing.T) {
	t.Parallel()
	repeat := func(n int, each string) string { return strings.TrimSuffix(strings.Repeat(each+",", n), ",") }
	nested := strings.Repeat(`{"a":`, 100) + "1" + strings.Repeat("}", 100)
	for name, c := range map[string]struct{ schema, body string }{
		"twice a level":  {`{"properties": {"a": {"$ref": "#"}}, "patternProperties": {"a": {"$ref": "#"}}}`, nested},
		"alternatives":   {`{"anyOf": [{"properties": {"a": {"$ref": "#"}}, "required": ["b"]}, {"properties": {"a": {"$ref": "#"}}}]}`, nested},
		"one of":         {`{"additionalProperties": {"oneOf": [{"$ref": "#"}, {"$ref": "#"}, {"type": "integer"}]}}`, nested},
		"not":            {`{"not": {"additionalProperties": {"not": {"$ref": "#"}}}, "if": {"additionalProperties": {"$ref": "#"}}}`, nested},
		"unevaluated":    {`{"unevaluatedProperties": {"$ref": "#"}, "anyOf": [{"additionalProperties": {"$ref": "#"}, "required": ["b"]}, true]}`, nested},
		"unique lists":   {`{"uniqueItems": true}`, "[" + repeat(20_000, `["a","b"]`) + "]"},
		"contains":       {list(2000, `{"contains": {"const": 1}}`), "[" + repeat(10_000, "0") + "]"},
		"enum":           {`{"items": {"enum": [` + repeat(4000, `"xxxxxxxxxxxxxxxx"`) + `]}}`, "[" + repeat(20_000, `"y"`) + "]"},
		"pattern":        {`{"pattern": "(.*x){99}y"}`, `"` + strings.Repeat("x", 1<<20) + `"`},
		"names":          {`{"propertyNames": {"pattern": "(.*x){99}y"}}`, `{"` + strings.Repeat("x", 1<<20) + `": 1}`},
		"lengths":        {list(2000, `{"maxLength": 1}`), `"` + strings.Repeat("x", 1<<20) + `"`},
		"exact numbers":  {`{"items": ` + list(100, `{"multipleOf": 1e-999}`) + `}`, "[" + repeat(20_000, "1e999") + "]"},
		"errors":         {`{"items": {"type": "string"}}`, "[" + repeat(350_000, "0") + "]"},
		"many wrong":     {`{"items": {"additionalProperties": false, "maxProperties": 0, "required": ["a", "b"]}}`, "[" + repeat(180_000, `{"c":1}`) + "]"},
		"other branches": {`{"items": {"anyOf": [` + repeat(200, `{"required": ["a"]}`) + `]}}`, "[" + repeat(20_000, `{}`) + "]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wantError(t, schema.CheckSchema(json.RawMessage(c.schema)), "", "", "")
			err := schema.CheckOutput(json.RawMessage(c.schema), json.RawMessage(c.body))
			wantError(t, err, protocol.CodeOutputSchema, "result.body", "takes more than 20000000 steps")
		})
	}
}

// What is large and ordinary is checked: ten thousand findings, each with all its fields.
func TestLargeOrdinaryOutput(t *testing.T) {
	t.Parallel()
	const findings = `{"type": "object", "required": ["findings"], "properties": {"findings": {"type": "array", "uniqueItems": false, "items": {
		"type": "object", "required": ["id", "severity", "file", "line"], "additionalProperties": false, "properties": {
			"id": {"type": "string", "pattern": "^[A-Z]{2,8}-[0-9]{1,6}$"}, "severity": {"enum": ["low", "middle", "high", "grave"]},
			"file": {"type": "string", "minLength": 1, "maxLength": 400}, "line": {"type": "integer", "minimum": 1}, "text": {"type": ["string", "null"]},
			"next": {"anyOf": [{"type": "string"}, {"type": "object", "properties": {"agent": {"type": "string"}}}]}}}}}}`
	one := `{"id":"SEC-4711","severity":"high","file":"broker/submit.go","line":120,"text":"not closed","next":{"agent":"judge"}}`
	for _, n := range []int{1, 10_000} {
		body := `{"findings":[` + strings.TrimSuffix(strings.Repeat(one+",", n), ",") + `]}`
		wantError(t, schema.CheckOutput(json.RawMessage(findings), json.RawMessage(body)), "", "", "")
	}
}

// A body has so many values at most, where there is a schema.
func TestValuesOfABody(t *testing.T) {
	t.Parallel()
	list := func(items int) json.RawMessage { // and itself
		return json.RawMessage(`["a,[{\"",` + strings.Repeat("0,", items-2) + `0]`)
	}
	anything := json.RawMessage(`{"type": "array"}`)
	wantError(t, schema.CheckOutput(anything, list(schema.OutputValuesMax-2)), "", "", "")
	wantError(t, schema.CheckOutput(anything, list(schema.OutputValuesMax)), protocol.CodeOutputSchema, "result.body", "more than 500000 values")
	wantError(t, schema.CheckOutput(nil, list(schema.OutputValuesMax)), "", "", "")
}
