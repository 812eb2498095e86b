package tests

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/agenthandoff/handoff/"

// arrow is one rule of who may import what, and the reason that a person who
// breaks it reads.
type arrow struct {
	who    string // package path below the module; a trailing /... takes what is below it too
	not    []string
	except []string // of who
	why    string
}

var arrows = []arrow{
	{who: "protocol/...", not: []string{module + "broker", module + "worker", module + "supervisor", module + "cmd"},
		why: "imports point one way: cmd -> supervisor | worker -> broker -> lifecycle -> protocol"},
	{who: "protocol", not: []string{module + "protocol/lifecycle", module + "protocol/schema"},
		why: "protocol is the wire and knows nothing of what is decided about it"},
	{who: "broker/...", not: []string{module + "worker", module + "supervisor", module + "cmd"},
		why: "the broker serves workers and supervisors and knows neither"},
	{who: "worker/...", not: []string{module + "supervisor", module + "cmd"},
		why: "a worker reports facts; what follows is the core's decision and the supervisor's append"},
	{who: "supervisor/...", not: []string{module + "worker", module + "cmd"},
		why: "a supervisor looks at handoffs and never works on one"},
	{who: "...", not: []string{"github.com/nats-io/nats.go"}, except: []string{"broker", "broker/backup", "broker/embedded", "broker/brokertest", "broker/bare", "service", "cmd/handoff", "tests/fleet"},
		why: "broker is the only room that knows NATS, and service talks to who stays outside of the engine's account; cmd may wire a connection"},
	{who: "service/...", not: []string{module + "supervisor", module + "index", module + "telemetry", module + "bench", module + "cmd", "github.com/nats-io/nats.go/jetstream"},
		why: "a door relays what agents say and runs the broker for them; it decides nothing, and never touches a stream by itself"},
	{who: "...", not: []string{module + "service"}, except: []string{"service", "cmd/handoff"},
		why: "a worker serves through a Relay and does not know which; cmd chooses"},
	{who: "...", not: []string{"github.com/nats-io/nats-server/v2"}, except: []string{"broker/embedded"},
		why: "broker/embedded is the only room with a server in it"},
	{who: "...", not: []string{"github.com/nats-io/jsm.go"}, except: []string{"broker/backup"},
		why: "snapshots of streams are made and put back in one room"},
	{who: "...", not: []string{"github.com/santhosh-tekuri/jsonschema/v6"}, except: []string{"protocol/schema"},
		why: "JSON Schema is checked in one place"},
	{who: "...", not: []string{"go.opentelemetry.io"}, except: []string{"telemetry"},
		why: "telemetry is the only room that knows OpenTelemetry; the others carry a trace as the words of W3C (protocol.TraceContext)"},
	{who: "...", not: []string{"github.com/spf13/cobra"}, except: []string{"cmd/handoff"},
		why: "flags belong to the command line"},
	{who: "protocol/lifecycle", not: []string{"context", "log", "log/slog", "math/rand", "math/rand/v2", "os", "net", "sync"},
		why: "the core is pure: no clock, chance, I/O, goroutine, logger or context"},
	{who: "protocol", not: []string{"context", "log", "log/slog", "math/rand", "math/rand/v2", "os", "net"},
		why: "the wire does no I/O"},
	{who: "telemetry/...", not: []string{module + "worker", module + "supervisor", module + "index", module + "cmd"},
		why: "telemetry watches the broker; what the others have to show, cmd hands to it"},
	{who: "...", not: []string{module + "telemetry"}, except: []string{"cmd/handoff", "telemetry"},
		why: "nobody depends on being watched: broker.Observer and the small hooks of the others are enough, and cmd wires them"},
	{who: "...", not: []string{"github.com/prometheus"}, except: []string{"telemetry"},
		why: "figures are named and counted in one room"},
	{who: "index/...", not: []string{module + "worker", module + "supervisor", module + "telemetry", module + "cmd"},
		why: "the index reads the ledger through the broker and serves questions; it moves no handoff"},
	{who: "...", not: []string{module + "index"}, except: []string{"index", "bench", "cmd/handoff"},
		why: "the index is disposable: nothing that moves a handoff may depend on it"},
	{who: "...", not: []string{"modernc.org/sqlite", "database/sql"}, except: []string{"index"},
		why: "SQLite is the index's own affair"},
	{who: "...", not: []string{module + "bench"}, except: []string{"bench", "cmd/handoff"},
		why: "what is measured does not know who measures"},
	{who: "...", not: []string{module + "broker/bare"}, except: []string{"broker/bare", "bench"},
		why: "the bare engine is what handoffs are compared with, and nothing to build on"},
	{who: "broker/bare", not: []string{module + "protocol/lifecycle"},
		why: "the bare engine knows no protocol"},
	{who: "...", not: []string{"github.com/HdrHistogram"}, except: []string{"bench", "broker/bare"},
		why: "histograms are for measurements"},
	{who: "...", not: []string{module + "tests"}, except: []string{"tests/fleet"},
		why: "what runs fleets for tests is no part of the product"},
	{who: "...", not: []string{module + "broker/brokertest"}, except: []string{"broker/brokertest"},
		why: "the in-memory engine is for tests alone"},
}

// TestImports keeps the rooms apart. It reads what the packages import outside
// of their tests.
func TestImports(t *testing.T) {
	for path, imports := range packages(t) {
		for _, a := range arrows {
			if !covers(a.who, path) || slices.Contains(a.except, path) {
				continue
			}
			for _, imported := range imports {
				for _, not := range a.not {
					if imported == not || strings.HasPrefix(imported, not+"/") {
						t.Errorf("%s imports %s\n\t%s", path, imported, a.why)
					}
				}
			}
		}
	}
}

// TestNoClockInTheCore: the pure rooms get their time from their callers.
func TestNoClockInTheCore(t *testing.T) {
	out, err := exec.Command("git", "-C", "..", "grep", "-nE", `time\.(Now|Since|Until|After|Sleep)\(`, "--", "protocol").Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 {
		return // nothing found
	}
	if err != nil {
		t.Skipf("git grep: %v", err)
	}
	for line := range strings.Lines(string(out)) {
		if !strings.Contains(line, "_test.go:") {
			t.Errorf("a clock in a pure room: %s\tbring time in as an argument or in the event", line)
		}
	}
}

func packages(t *testing.T) map[string][]string {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "./...")
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	found := map[string][]string{}
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		found[strings.TrimPrefix(p.ImportPath, module)] = p.Imports
	}
	if len(found) < 5 {
		t.Fatalf("go list found %d packages", len(found))
	}
	return found
}

// covers matches a path against "a", "a/..." (a and what is below it) or "...".
func covers(pattern, path string) bool {
	if pattern == "..." {
		return true
	}
	if below, ok := strings.CutSuffix(pattern, "/..."); ok {
		return path == below || strings.HasPrefix(path, below+"/")
	}
	return path == pattern
}
