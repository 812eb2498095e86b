package schema_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/protocol"
)

var update = flag.Bool("update", false, "write the fields of a policy anew into the schemas and docs/reference/protocol.md")

// TestPolicySchema: the policies in the schemas, and their table in the documentation,
// are those of protocol.PolicyFields.
func TestPolicySchema(t *testing.T) {
	var fields, table strings.Builder
	table.WriteString("| field | default | limits | meaning |\n|---|---|---|---|\n")
	for i, f := range protocol.PolicyFields {
		end := ",\n"
		if i == len(protocol.PolicyFields)-1 {
			end = "\n"
		}
		fmt.Fprintf(&fields, "        %q: %s%s", f.Name, schemaOf(f), end)
		standard, _ := json.Marshal(f.Default)
		limits := ""
		switch f.Default.(type) {
		case int64:
			limits = fmt.Sprintf("%d to %d", f.Min, f.Max)
		case string:
			limits = "`" + strings.Join(f.Words, "`, `") + "`"
		}
		fmt.Fprintf(&table, "| `%s` | `%s` | %s | %s |\n", f.Name, standard, limits, f.Doc)
	}
	for _, file := range []string{"package.json", "profile.json"} {
		derived(t, file, "\"policy_overrides\": {", "\"properties\": {\n", "      },\n", fields.String())
	}
	derived(t, "../../docs/reference/protocol.md", "", "<!-- generated: policy -->\n", "<!-- end: policy -->", table.String())
}

// derived holds what stands in a file between two marks, after a first one, against what it must be.
func derived(t *testing.T, file, after, begin, end, want string) {
	t.Helper()
	have, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(have, []byte(after))
	from := at + bytes.Index(have[max(at, 0):], []byte(begin)) + len(begin)
	to := from + bytes.Index(have[from:], []byte(end))
	if at < 0 || to < from {
		t.Fatalf("%s has no %q with %q after it", file, begin, end)
	}
	if string(have[from:to]) == want {
		return
	}
	if !*update {
		t.Fatalf("%s is out of date; go test ./internal/schema -run TestPolicySchema -update writes it anew", file)
	}
	if err := os.WriteFile(file, []byte(string(have[:from])+want+string(have[to:])), 0o644); err != nil {
		t.Fatal(err)
	}
}

// schemaOf is the JSON Schema of a policy field's value.
func schemaOf(f protocol.PolicyField) string {
	var parts []string
	if f.Doc != "" {
		parts = append(parts, fmt.Sprintf(`"description": %q`, f.Doc))
	}
	switch f.Default.(type) {
	case int64:
		parts = append(parts, fmt.Sprintf(`"type": "integer", "minimum": %d, "maximum": %d`, f.Min, f.Max))
	case bool:
		parts = append(parts, `"type": "boolean"`)
	default:
		if f.Words[0] == string(protocol.OnTimeouts[0]) { // which expectations have, too
			return `{ "$ref": "#/$defs/on_timeout" }`
		}
		words, _ := json.Marshal(f.Words) // of strings: it cannot fail
		parts = append(parts, `"enum": `+strings.ReplaceAll(string(words), ",", ", "))
	}
	return "{ " + strings.Join(parts, ", ") + " }"
}
