package schema

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp/syntax"
	"runtime"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// stepBytes is the memory that one step may use during a check.
const stepBytes = 8

// heap is what is in use, of which nothing is garbage.
func heap() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// allocated is the memory that was taken so far, garbage included.
func allocated() int {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.TotalAlloc)
}

// large are schemas that take as much memory as the limits allow, each in another way.
func large(n int) []string {
	title := fmt.Sprintf(`"title": "%d", `, n)
	fields := func(n int, each string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `"p%d": %s,`, i, each)
		}
		return b.String() + `"z": {}`
	}
	return []string{
		`{` + title + `"allOf": [` + strings.Repeat(`{"a":1},`, 4000) + `true]}`,
		`{` + title + `"properties": {` + fields(3500, `{"type": "string"}`) + `}}`,
		`{` + title + `"properties": {"` + strings.Repeat("%", 20_000) + `": {"allOf": [` + strings.Repeat(`{"a":1},`, 49) + `{}]}}}`,
		`{` + title + `"enum": [` + strings.Repeat(`0,`, 60_000) + `0]}`,
		`{` + title + `"pattern": "` + strings.Repeat(`\\pL`, 120) + `"}`,
		`{` + title + `"pattern": "^` + strings.Repeat("(ab|cd){9}", 200) + `$"}`,
		`{` + title + `"patternProperties": {` + strings.ReplaceAll(fields(250, `{}`), "p", "^.{50}p") + `}}`,
	}
}

// A compiled schema takes no more memory than it is counted for in the cache.
func TestSchemaTakesWhatIsCounted(t *testing.T) {
	for _, text := range large(0) {
		before := heap()
		ready, err := compile(json.RawMessage(text))
		if err != nil {
			t.Fatalf("%.60s: %v", text, err)
		}
		took := heap() - before
		t.Logf("%.60s: takes %d KiB, counted as %d", text, took>>10, ready.bytes>>10)
		if took > ready.bytes {
			t.Errorf("%.60s: takes %d bytes, counted as %d", text, took, ready.bytes)
		}
		if ready.bytes > cacheBytesMax {
			t.Errorf("%.60s: counted as %d bytes, too much for the cache", text, ready.bytes)
		}
		runtime.KeepAlive(ready)
	}
}

// The cache is bounded by bytes, and what is in it is found again.
func TestCacheIsBounded(t *testing.T) {
	k := kept{max: 4 << 20, known: map[[32]byte]*usable{}}
	pattern := func(n int) json.RawMessage { return json.RawMessage(fmt.Sprintf(`{"pattern": "^x{0,%d}$"}`, n)) }
	one, err := k.of(pattern(800))
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := k.of(pattern(800)); again != one {
		t.Error("compiled twice")
	}
	for n := 801; n < 850; n++ {
		if _, err := k.of(pattern(n)); err != nil {
			t.Fatal(err)
		}
		sum := 0
		for _, known := range k.known {
			sum += known.bytes
		}
		if sum != k.bytes || k.bytes > k.max {
			t.Fatalf("%d bytes are kept, %d counted, at most %d are allowed", sum, k.bytes, k.max)
		}
	}
	if len(k.known) < 2 || len(k.known) > 10 {
		t.Errorf("%d are kept", len(k.known))
	}
}

// A regular expression is never larger than it is counted.
func TestInstructions(t *testing.T) {
	for _, text := range []string{``, `^[a-z]+$`, `(?i)abc`, `x{3,7}`, `x{3,}`, `x{0}`, `(a|b|cd)*?`, `((x{9}){9}){9}`, `(?:a?){30}a{30}`, `\pL{50}`, `[^\x00-\x{10FFFF}]`,
		`(|a)*`, `(a*)*`, `^$|\b\B`, `(?s).{1000}`, `abc|abd|xyz`} {
		size, real := compiledSize(t, text)
		if size < real || size > 4*real+40 && !strings.Contains(text, `\p`) { // a class counts by its ranges
			t.Errorf("%s: counted %d, is %d", text, size, real)
		}
	}
}

func compiledSize(t *testing.T, text string) (counted, real int) {
	t.Helper()
	counted, err := instructions(text)
	if err != nil || counted > outputPatternInstructionsMax {
		return 0, 0
	}
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		t.Fatal(err)
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		t.Fatal(err)
	}
	return counted, len(program.Inst)
}

// counted checks a value, and counts the steps that this takes.
func (u *usable) counted(value any) (steps int, err error) {
	depth, _ := survey(value)
	u.meter.start(depth, false)
	defer u.meter.stop()
	err = u.validate(value)
	return outputStepsMax - u.meter.left, err
}

// checkMemory checks a body as CheckOutput does, and tells what it was counted to
// cost and how much memory it took.
func checkMemory(t *testing.T, schema, body string) (steps, bytesTaken int) {
	t.Helper()
	ready, err := compile(json.RawMessage(schema))
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	before := allocated()
	steps, verdict := ready.counted(value)
	if verdict == errSteps {
		t.Fatalf("takes more than %d steps", outputStepsMax)
	}
	_ = output.verdict(verdict)
	return steps, allocated() - before
}

// The memory of a check is bounded by its steps, whatever it finds.
func TestMemoryOfACheck(t *testing.T) {
	repeat := func(n int, each string) string { return strings.TrimSuffix(strings.Repeat(each+",", n), ",") }
	deep := func(body string) string { return strings.Repeat("[", 100) + body + strings.Repeat("]", 100) }
	for name, c := range map[string]struct{ schema, body string }{
		"all well":      {`{"items": {"type": "integer"}}`, "[" + repeat(50_000, "0") + "]"},
		"all wrong":     {`{"items": {"type": "string"}}`, "[" + repeat(50_000, "0") + "]"},
		"wrong deep":    {`{"items": {"$ref": "#"}, "type": "array"}`, deep(repeat(5_000, "0"))},
		"false":         {`{"items": false}`, "[" + repeat(50_000, "0") + "]"},
		"several wrong": {`{"items": {"minProperties": 9, "required": ["a", "b"], "additionalProperties": false}}`, "[" + repeat(20_000, `{"c":1}`) + "]"},
		"no additional": {`{"additionalProperties": false}`, `{` + repeat(1000, `"a":1`) + `,"b":1,"c":2}`},
		"alternatives":  {`{"items": {"anyOf": [{"type": "string"}, {"minimum": 3}, {"const": 4}, {"enum": [5, 6]}]}}`, "[" + repeat(10_000, "0") + "]"},
		"one of":        {`{"items": {"oneOf": [true, true, {"type": "null"}]}}`, "[" + repeat(10_000, "0") + "]"},
		"contains":      {`{"contains": {"type": "string"}, "minContains": 2}`, "[" + repeat(20_000, "0") + "]"},
		"contained":     {`{"contains": true, "maxContains": 2}`, "[" + repeat(20_000, "0") + "]"},
		"unevaluated":   {`{"anyOf": [{"prefixItems": [true]}, {"prefixItems": [true, true]}], "unevaluatedItems": false}`, "[" + repeat(20_000, "0") + "]"},
		"unique":        {`{"uniqueItems": true}`, "[" + repeat(1_000, `"a","b"`) + "]"},
		"names":         {`{"propertyNames": {"pattern": "^b"}}`, `{"a1":1,"a2":1,"a3":1,"a4":1}`},
		"numbers":       {`{"items": {"multipleOf": 0.37, "minimum": 1e300}}`, "[" + repeat(2_000, "1e299") + "]"},
		"references":    {`{"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"not": {}}}}`, "[" + repeat(20_000, "0") + "]"},
		"long text":     {`{"minLength": 9, "pattern": "^a"}`, `"` + strings.Repeat("b", 1<<20) + `"`},
	} {
		t.Run(name, func(t *testing.T) {
			steps, took := checkMemory(t, c.schema, c.body)
			t.Logf("%d steps, %d bytes, %d bytes a step", steps, took, took/steps)
			if took > stepBytes*steps+64<<10 {
				t.Errorf("took %d bytes for %d steps, at most %d bytes each are allowed", took, steps, stepBytes)
			}
		})
	}
}

// What a large body takes while it is checked, its parsed values and the errors
// included.
func TestMemoryOfALargeBody(t *testing.T) {
	const items = 50_000
	body := `["` + strings.Repeat("x", 8<<20) + `"` + strings.Repeat(`,{"a":1}`, items) + `]`
	before := allocated()
	err := CheckOutput(json.RawMessage(`{"items": {"additionalProperties": false}}`), json.RawMessage(body))
	took := allocated() - before
	if err == nil {
		t.Error("is no error")
	}
	// 64 MiB of body, all values and all steps make 64 * 3 + 100 + 160 MB.
	if most := 3*len(body) + 200*2*items + stepBytes*outputStepsMax/2; took > most {
		t.Errorf("took %d bytes, at most %d are allowed", took, most)
	}
}
