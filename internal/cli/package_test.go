package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/agenthandoff/handoff/protocol"
)

var noon = time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)

// built makes a package from flags as submit does.
func built(t *testing.T, env map[string]string, stdin string, args ...string) (protocol.Package, error) {
	t.Helper()
	var o submitOptions
	fs := pflag.NewFlagSet("submit", pflag.ContinueOnError)
	o.declare(fs, &o)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	a := &app{in: strings.NewReader(stdin), env: func(name string) string { return env[name] }}
	return o.build(t.Context(), a, noon)
}

func TestPackageFromFlags(t *testing.T) {
	dir := t.TempDir()
	schema := filepath.Join(dir, "schema.json")
	if err := os.WriteFile(schema, []byte(`{"type":"object"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	pkg, err := built(t, nil, `[{"role":"user","content":"hi","x":1}]`,
		"--to", "reviewer", "--reason", "r", "--task", "look", "--task-id", "T-1", "--task-type", "review",
		"--requirement", "fast", "--criterion", "finds the bug", "--type", "delegation", "--trigger", "timeout",
		"--priority", "high", "--key", "k", "--conversation", "c1", "--workflow", "w1", "--intent", "ship", "--request", "please",
		"--var", "n=3", "--var", "s=x", "--artifact", "log=/tmp/log", "--relevant-file", "main.go", "--history-file", "-", "--transfer", "full",
		"--output-schema", schema, "--requires", "go:0.8", "--requires", "sql", "--rationale", "best", "--risk", "low",
		"--deadline", "2026-02-01T00:00:00Z", "--work-timeout", "90s", "--return-timeout", "10m", "--on-timeout", "fail",
		"--policy", "max_attempts=1", "--policy", "on_no_taker=close", "--parent", "6ba7b810-9dad-11d1-80b4-00c04fd430c8")
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(pkg)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"key":"k","type":"delegation","trigger":"timeout","source":"human","target":{"agent":"reviewer"},"reason":"r","priority":"high",
		"parent":"6ba7b810-9dad-11d1-80b4-00c04fd430c8",
		"task":{"id":"T-1","type":"review","description":"look","requirements":["fast"]},
		"context":{"original_request":"please","user_intent":"ship","conversation_id":"c1","workflow_id":"w1",
			"conversation_history":[{"role":"user","content":"hi","x":1}],"history_transfer":{"mode":"full"},"variables":{"n":3,"s":"x"},
			"relevant_files":[{"path":"main.go"}],"artifacts":[{"name":"log","path":"/tmp/log"}]},
		"constraints":{"deadline":"2026-02-01T00:00:00Z"},
		"expectations":{"output_schema":{"type":"object"},"success_criteria":["finds the bug"],"timeout_ms":90000},
		"required_capabilities":[{"id":"go","min_proficiency":0.8},{"id":"sql"}],
		"return":{"expected":true,"timeout_ms":600000},"audit":{"decision_rationale":"best","risk_level":"low"},
		"policy":{"on_timeout":"fail","max_attempts":1,"on_no_taker":"close"}}`
	if !sameJSON(t, got, []byte(want)) {
		t.Errorf("the package is\n%s\nwant\n%s", got, want)
	}
}

func sameJSON(t *testing.T, a, b []byte) bool {
	t.Helper()
	var x, y any
	if err := json.Unmarshal(a, &x); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &y); err != nil {
		t.Fatal(err)
	}
	one, _ := json.Marshal(x)
	two, _ := json.Marshal(y)
	return string(one) == string(two)
}

func TestPackageEnds(t *testing.T) {
	const ticket = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
	inside := map[string]string{"HANDOFF_AGENT": "surveyor", "HANDOFF_TICKET": ticket}
	file := `{"source":"filed","target":{"agent":"x"},"reason":"r","task":{"description":"d"}}`
	for name, c := range map[string]struct {
		env            map[string]string
		stdin          string
		args           []string
		source, parent string
		target         protocol.Target
		kind           protocol.Type
	}{
		"a person":              {args: []string{"--to", "a"}, source: "human", target: protocol.Target{Agent: "a"}},
		"inside a worker":       {env: inside, args: []string{"--to", "a"}, source: "surveyor", parent: ticket, target: protocol.Target{Agent: "a"}},
		"inside, said":          {env: inside, args: []string{"--from", "b", "--parent", "", "--to", "a"}, source: "b", target: protocol.Target{Agent: "a"}},
		"a capability":          {args: []string{"--capability", "go"}, source: "human", target: protocol.Target{Capability: "go"}},
		"both are for Validate": {args: []string{"--to", "a", "--capability", "go"}, source: "human", target: protocol.Target{Agent: "a", Capability: "go"}},
		"several":               {args: []string{"--to", "a", "--to", "b"}, source: "human", target: protocol.Target{Agents: []string{"a", "b"}}, kind: protocol.Broadcast},
		"a file":                {env: inside, stdin: file, args: []string{"-f", "-"}, source: "filed", parent: ticket, target: protocol.Target{Agent: "x"}},
		"flags over a file":     {stdin: file, args: []string{"-f", "-", "--from", "z", "--capability", "go"}, source: "z", target: protocol.Target{Capability: "go"}},
		"a file without source": {stdin: `{"target":{"agent":"x"}}`, args: []string{"-f", "-"}, source: "human", target: protocol.Target{Agent: "x"}},
	} {
		pkg, err := built(t, c.env, c.stdin, c.args...)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if pkg.Source != c.source || pkg.Parent != c.parent || pkg.Target.Agent != c.target.Agent ||
			pkg.Target.Capability != c.target.Capability || len(pkg.Target.Agents) != len(c.target.Agents) || pkg.Type != c.kind {
			t.Errorf("%s: from %q, parent %q, to %+v, type %q", name, pkg.Source, pkg.Parent, pkg.Target, pkg.Type)
		}
	}
}

func TestPackageRefused(t *testing.T) {
	for name, c := range map[string]struct {
		stdin string
		args  []string
		code  int
		says  string
	}{
		"deadline":          {args: []string{"--deadline", "soon"}, code: exitUsage, says: "--deadline"},
		"relative with key": {args: []string{"--key", "k", "--deadline", "1h"}, code: exitUsage, says: "2026-01-31T13:00:00Z"},
		"no work time":      {args: []string{"--work-timeout", "0s"}, code: exitRefused, says: "expectations.timeout_ms"},
		"history":           {stdin: `{"role":"user"}`, args: []string{"--history-file", "-"}, code: exitRefused, says: "context.conversation_history"},
		"variable":          {args: []string{"--var", "x"}, code: exitUsage, says: "name=value"},
		"artifact":          {args: []string{"--artifact", "x"}, code: exitUsage, says: "name=path"},
		"level":             {args: []string{"--requires", "go:much"}, code: exitUsage, says: "NAME:0.8"},
		"policy value":      {args: []string{"--policy", "max_attempts=many"}, code: exitRefused, says: "policy.max_attempts"},
		"policy name":       {args: []string{"--policy", "retries=3"}, code: exitRefused, says: "policy.retries"},
	} {
		_, err := built(t, nil, c.stdin, c.args...)
		if err == nil || exitFor(err).code != c.code || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want exit code %d and the word %q", name, err, c.code, c.says)
		}
	}
}

func TestHintNamesTheFlag(t *testing.T) {
	missing := protocol.Errorf(protocol.CodeMissing, "task.description", "is missing or empty")
	if err := (&packageFlags{}).hint(missing); !strings.Contains(err.Error(), "--task") {
		t.Errorf("%v does not say which flag is missing", err)
	}
	if err := (&packageFlags{File: "x"}).hint(missing); strings.Contains(err.Error(), "--task") {
		t.Errorf("%v speaks of a flag to somebody who wrote a file", err)
	}
}
